"""FedEvg: the worked numbers and invariants of its energies, mixture, client loss, schedule and traffic."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support import (
    a_round,
    one_client,
)
from torch import Tensor

from fedflow.data import Examples
from fedflow.local.training import LocalTraining
from fedflow.methods.generative.fedevg import FedEvg, State, mixed
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.partition import Partition
from fedflow.simulation.federation import Federation

F64 = torch.float64
X = torch.tensor([[0.2, 0.4], [0.9, 0.1]], dtype=F64)[:, None, None]  # two images 1x1x2
Y = torch.tensor([0, 1])
WEIGHTS = [
    ([[1, 0], [0, 1]], [0, -1]),
    ([[0.5, -1], [2, 0.25]], [-0.5, 0.1]),
]  # of two linear classifiers
ADAM = {"optimiser": "adam", "betas": [0.5, 0.999], "lr": 1e-3, "weight_decay": 1e-4, "batch_size": 32}
BRIEF = {"classifier": {"epochs": 1}}


def linear() -> FlatModel:
    return FlatModel(partial(build, "logistic", (1, 1, 2), 2), dtype=F64)


def vector(model: FlatModel, weight: Any, bias: Any) -> Tensor:
    pieces = {"classifier.weight": weight, "classifier.bias": bias}
    values = [torch.tensor(next(v for k, v in pieces.items() if n.endswith(k.split(".")[1])), dtype=F64)
              for n in model.names]  # fmt: skip
    return torch.cat([v.reshape(-1) for v in values])


def fields(method: FedEvg) -> tuple[Tensor, Tensor]:
    """E_k [2, 2] and their gradients [2, 2, ...] of both classifiers."""
    model = linear()
    found = [method.field(model, vector(model, *each), X, Y) for each in WEIGHTS]
    return torch.stack([e for e, _ in found]), torch.stack([g for _, g in found])


class Sent:
    """The answers of clients with ``sizes``."""

    def __init__(self, energies: Tensor, gradients: Tensor, sizes: Any) -> None:
        self.named = {"energies": energies, "gradients": gradients}
        self.weights = np.array(sizes, dtype=float)

    def stack(self, name: str) -> Tensor:
        return self.named[name]


SIZES = np.array([30.0, 10.0])


# 6.2: the worked aggregation


def test_energies_and_their_gradients() -> None:
    energies, g = fields(FedEvg())
    torch.testing.assert_close(energies, torch.tensor([[-0.2, 0.9], [0.8, -1.925]], dtype=F64))
    expected = [[[-1, 0], [0, -1]], [[-0.5, 1], [-2, -0.25]]]
    torch.testing.assert_close(g[:, :, 0, 0], torch.tensor(expected, dtype=F64))
    marginal, slope = FedEvg(energy="marginal").field(linear(), vector(linear(), *WEIGHTS[0]), X, Y)
    assert marginal.tolist() == pytest.approx([-0.5711006659, -1.0529776105], abs=1e-9)
    shares = torch.tensor([[0.6899744811, 0.3100255189], [0.8581489351, 0.1418510649]], dtype=F64)
    torch.testing.assert_close(slope[:, 0, 0], -shares, rtol=0, atol=1e-9)  # W_1 is the identity


@pytest.mark.parametrize(
    ("weights", "direction", "after"),
    [
        (
            "raw",
            [[-0.9453841137, 0.1092317726], [-1.6978995710, -0.3632876609]],
            [[0.2945384114, 0.3890768227], [1.0, 0.1363287661]],
        ),
        (
            "signed",
            [[-0.9784177335, 0.0431645330], [-1.4224691885, -0.4665740543]],
            [[0.2978417734, 0.3956835467], [1.0, 0.1466574054]],
        ),
        ("mean", [[-0.875, 0.25], [-0.5, -0.8125]], [[0.2875, 0.375], [0.95, 0.18125]]),
    ],
)
def test_the_worked_step_of_the_server(weights: str, direction: Any, after: Any) -> None:
    method = FedEvg(weights=weights, beta_first=0.1, beta_last=0.1, server_sigma=0)
    energies, g = fields(method)
    sent = Sent(energies.sign() if weights == "signed" else energies, g, SIZES)
    found = mixed(g, None if weights == "mean" else sent.stack("energies"), SIZES)[:, 0, 0]
    torch.testing.assert_close(found, torch.tensor(direction, dtype=F64), rtol=0, atol=1e-9)
    server, diagnostics = method.aggregate(a_round(shell()), State(X), sent)  # type: ignore[arg-type]
    torch.testing.assert_close(server.images[:, 0, 0], torch.tensor(after, dtype=F64), rtol=0, atol=1e-9)
    assert diagnostics["norm_G"] == pytest.approx(float(found.norm()))


def shell() -> Federation:
    """A federation of one sample, for what a server needs of a round."""
    examples = Examples(X, Y)
    rows = [np.arange(2)]
    return Federation(linear(), examples, examples, Partition.from_lists(rows, rows, [np.arange(2)]))


def test_raw_is_the_gradient_of_the_energy_of_the_mixture() -> None:
    """Where no entry is clipped; the mixture of two Gaussians has equal normalisers."""
    model, both = linear(), [vector(linear(), *each) for each in WEIGHTS]

    def mixture(x: Tensor) -> Tensor:
        each = torch.stack([FedEvg().field(model, w, x, Y)[0] for w in both])
        return -(torch.tensor([[0.75], [0.25]], dtype=F64).log() - each).logsumexp(0)

    assert mixture(X).tolist() == pytest.approx([-0.0279889392, -0.7024608787], abs=1e-9)
    energies, g = fields(FedEvg(clip=None))
    direction, step = mixed(g, energies, SIZES), 1e-6
    for place in ((0, 0), (0, 1), (1, 0), (1, 1)):
        moved = torch.zeros_like(X)
        moved[place[0], 0, 0, place[1]] = step
        slope = (mixture(X + moved) - mixture(X - moved)).sum() / (2 * step)
        assert direction[place[0], 0, 0, place[1]].item() == pytest.approx(slope.item(), abs=1e-8)
    m, x = torch.tensor([-1.0, 2.0], dtype=F64), 0.5
    one = mixed((x - m)[:, None, None], ((x - m) ** 2 / 2)[:, None], np.array([1.0, 3.0]))
    assert one.item() == pytest.approx(-0.75, abs=1e-12)


# 6.1: invariants of the aggregation


def test_invariants_of_the_mixture() -> None:
    rng = torch.Generator().manual_seed(0)
    g = torch.randn(5, 7, 3, generator=rng, dtype=F64).clamp(-3, 3)
    energies = 300 * torch.randn(5, 7, generator=rng, dtype=F64)
    sizes = np.array([3.0, 1, 10, 4, 2])
    order = [3, 0, 4, 1, 2]
    plain = mixed(g, None, sizes)
    for values in (energies, energies.sign()):
        found = mixed(g, values, sizes)
        assert found.isfinite().all() and (found.abs() <= 3).all()
        torch.testing.assert_close(mixed(g[order], values[order], sizes[order]), found)
        torch.testing.assert_close(mixed(g, values, 7 * sizes), found)
        torch.testing.assert_close(mixed(g[:1].expand_as(g), values, sizes), g[0])  # one model for all
        torch.testing.assert_close(mixed(g, values[:1].expand_as(values), sizes), plain)  # equal signs
    shifted = energies + 11
    torch.testing.assert_close(mixed(g, shifted, sizes), mixed(g, energies, sizes))
    assert not torch.equal(mixed(g, (energies + 400).sign(), sizes), mixed(g, energies.sign(), sizes))
    ones = torch.eye(2, dtype=F64)[:, None]  # the weights themselves
    a = mixed(ones, torch.tensor([[-1.0], [1.0]], dtype=F64), np.array([2.0, 5.0]))[0]
    assert a.sum().item() == pytest.approx(1)
    assert (a[0] / a[1]).item() == pytest.approx(math.e**2 * 2 / 5)


# 6.3: the worked client loss


def client_of_6_3(**received: Any) -> Any:
    x = torch.tensor([[0.0, 1.0], [1.0, 0.5]], dtype=F64)[:, None, None]
    examples = Examples(x, torch.tensor([1, 0]))
    rows = [np.arange(2)]
    federation = Federation(linear(), examples, examples, Partition.from_lists(rows, rows, [np.arange(2)]))
    client = one_client(federation, training=LocalTraining(batch_size=0, lr=1.0), images=X)
    client.noise = torch.Generator().manual_seed(0)
    client.phase = "kept"
    client.kept = {"network": vector(client.model, *WEIGHTS[0])}
    return client


def test_the_worked_client_loss() -> None:
    """One step of SGD with eta = 1 moves the network by the gradient of the loss."""
    method = FedEvg(spc=1, reinit=None, alpha=0.3, sigma=0)
    client = client_of_6_3()
    w = client.kept["network"]
    moved = method.sample(client, w, X, Y)[:, 0, 0]
    torch.testing.assert_close(moved, torch.tensor([[0.5, 0.4], [0.9, 0.4]], dtype=F64))
    update = method.local(client)
    assert update.diagnostics["energy_real"].item() == pytest.approx(-0.5, abs=1e-12)
    assert update.diagnostics["energy_negative"].item() == pytest.approx(0.05, abs=1e-12)
    assert update.diagnostics["energy_gap"].item() == pytest.approx(-0.55, abs=1e-12)
    assert client.train_loss.item() == pytest.approx(0.4472802293, abs=1e-9)  # of the data
    model, g = client.model, client.model.views(w - update.keep["network"])
    synthetic = model.loss(model.outputs(w, X), Y).item()
    assert synthetic == pytest.approx(1.1620391382, abs=1e-9)
    assert 0.4472802293 + 0.1 * synthetic - 0.5 - 0.05 == pytest.approx(0.0134841431, abs=1e-9)
    weight, bias = (v for _, v in sorted(g.items(), key=lambda each: -each[1].ndim))
    expected = [[-0.305696315, 0.1524838533], [0.505696315, -0.5024838533]]
    torch.testing.assert_close(weight, torch.tensor(expected, dtype=F64), rtol=0, atol=1e-9)
    torch.testing.assert_close(
        bias, torch.tensor([0.1861934089, -0.1861934089], dtype=F64), rtol=0, atol=1e-9
    )


# 6.4: schedules


def test_schedules() -> None:
    assert FedEvg().betas(10).tolist() == pytest.approx(
        [9.748834634, 9.3205572643, 8.8804361227, 8.4052942714, 7.8644662283, 7.211049039, 6.3639717126,
         5.1670164012, 3.3055356979, 1.0], abs=1e-9,
    )  # fmt: skip
    t = {1: 9.9992131833, 2: 9.9990383134, 50: 9.9905631141, 100: 9.9812681899, 250: 9.9435508107,
         400: 9.8284461176, 450: 9.6533531006, 475: 9.3223806627, 490: 8.4385223300, 495: 7.2502226109,
         498: 5.0000647579, 499: 3.2500218557, 500: 1.0}  # fmt: skip
    betas = FedEvg().betas(500)
    assert [betas[i - 1] for i in t] == pytest.approx(list(t.values()), abs=1e-9)
    assert FedEvg(schedule="linear").betas(4).tolist() == pytest.approx([10, 7, 4, 1])
    assert FedEvg(schedule="half_cosine").betas(3).tolist() == pytest.approx([10, 5.5, 1])
    assert FedEvg(schedule="constant").betas(2).tolist() == [10, 10]
    quadratic = FedEvg(schedule="quadratic", beta_first=9).betas(3)
    assert quadratic.tolist() == pytest.approx([9, 4, 1])
    ends = FedEvg(schedule="sigmoid").betas(9)
    assert ends[4] == pytest.approx(5.5) and ends[0] == pytest.approx(10 - 9 / (1 + math.e**6))


# 6.5: Langevin


class Bowl(torch.nn.Module):
    """E(x, 0) = x^2 / 2, E(x, 1) = 0."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(1, dtype=F64))

    def forward(self, x: Tensor) -> Tensor:
        energy = self.w * x.flatten(1).square() / 2
        return torch.cat([-energy, 0 * energy], 1)


@pytest.mark.parametrize(("alpha", "sigma", "variance"), [(0.1, 0.2**0.5, 1.0526315789), (1.0, 0.01, 1e-4)])
def test_langevin_has_its_stationary_variance(alpha: float, sigma: float, variance: float) -> None:
    assert sigma**2 / (1 - (1 - alpha) ** 2) == pytest.approx(variance, rel=1e-9)
    method = FedEvg(alpha=alpha, sigma=sigma, sgld_steps=60, clip=None, limits=False)
    client, count = client_of_6_3(), 10_000
    client.model = FlatModel(Bowl, dtype=F64)
    x = torch.randn(count, 1, 1, 1, generator=client.noise, dtype=F64)
    found = method.sample(client, client.model.init(0), x, torch.zeros(count, dtype=torch.int64)).var().item()
    assert found == pytest.approx(variance, rel=4 * (2 / count) ** 0.5)
