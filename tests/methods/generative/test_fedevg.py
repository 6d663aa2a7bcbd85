"""FedEvg: the worked numbers and invariants of its energies, mixture, client loss, schedule and traffic."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support import a_round, follow, images, one_client, prepare_run, refused, run, same, suited
from torch import Tensor

from fedflow.data import Dataset, Examples
from fedflow.local.local_training import LocalTraining
from fedflow.methods import build_method
from fedflow.methods.generative.fedevg import FedEvg, State, mixed
from fedflow.metrics.generation import Gaussian
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.partition import Partition
from fedflow.simulation.federation import Federation

F64 = torch.float64
X = torch.tensor([[0.2, 0.4], [0.9, 0.1]], dtype=F64)[:, None, None]  # two images 1x1x2
Y = torch.tensor([0, 1])
WEIGHTS = [([[1, 0], [0, 1]], [0, -1]), ([[0.5, -1], [2, 0.25]], [-0.5, 0.1])]  # of two linear classifiers
ADAM = {
    "epochs": 1,
    "optimizer": "adam",
    "betas": [0.5, 0.999],
    "lr": 1e-3,
    "weight_decay": 1e-4,
    "batch_size": 32,
}
BRIEF = {"classifier": {"epochs": 1}}


def linear() -> FlatModel:
    return FlatModel(partial(build, "logistic", (1, 1, 2), 2), dtype=F64)


def vector(model: FlatModel, weight: Any, bias: Any) -> Tensor:
    pieces = {"classifier.weight": weight, "classifier.bias": bias}
    values = [
        torch.tensor(next(v for k, v in pieces.items() if n.endswith(k.split(".")[1])), dtype=F64)
        for n in model.names
    ]
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
    """Where no entry is clipped; the mixture of two Gaussians has equal normalizers."""
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
    first = "9.748834634 9.3205572643 8.8804361227 8.4052942714 7.8644662283 7.211049039 6.3639717126"
    expected = [float(beta) for beta in f"{first} 5.1670164012 3.3055356979 1.0".split()]
    assert FedEvg().betas(10).tolist() == pytest.approx(expected, abs=1e-9)
    t = {
        1: 9.9992131833,
        2: 9.9990383134,
        50: 9.9905631141,
        100: 9.9812681899,
        250: 9.9435508107,
        400: 9.8284461176,
        450: 9.6533531006,
        475: 9.3223806627,
        490: 8.4385223300,
        495: 7.2502226109,
        498: 5.0000647579,
        499: 3.2500218557,
        500: 1.0,
    }
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


def test_chains_stay_and_are_clipped_once() -> None:
    """alpha = sigma = 0 leaves the copy of the images, apart from the clip, which comes after all steps."""
    client = client_of_6_3()
    w, x = client.kept["network"], torch.cat([X - 0.5, X])
    y = torch.cat([Y, Y])
    assert torch.equal(FedEvg(alpha=0, sigma=0, sgld_steps=3).sample(client, w, x, y), x.clamp(0, 1))
    assert torch.equal(FedEvg(alpha=0, sigma=0, limits=False).sample(client, w, x, y), x)
    moved = FedEvg(alpha=0.9, sigma=0, sgld_steps=2).sample(client, w, x, y)[:, 0, 0]
    slope = torch.eye(2, dtype=F64)[y]  # of a linear network: constant
    torch.testing.assert_close(moved, (x[:, 0, 0] + 2 * 0.9 * slope).clamp(0, 1))
    clipped = FedEvg(clip=0.5, alpha=1, sigma=0, limits=False).sample(client, w, x, y)[:, 0, 0]
    torch.testing.assert_close(clipped, x[:, 0, 0] + 0.5 * slope)


# Clients


@pytest.fixture(scope="module")
def small(digits: Dataset) -> Federation:
    return suited("fedevg", images(digits, (20, 13, 31)))


def client(
    federation: Federation, method: FedEvg, training: dict[str, Any] = ADAM, **received: Tensor
) -> Any:
    """Client 2, which starts from the first network and has received these vectors."""
    found = one_client(federation, 2, LocalTraining.parse(training), **received)
    found.noise, found.phase = torch.Generator().manual_seed(3), "kept"
    found.kept = {"network": federation.model.init(0)}
    return found


def test_without_images_and_energies_clients_train_as_fedavg(small: Federation) -> None:
    """Bit for bit, with the buffers of the spectral norm."""
    training = ADAM | {"batch_size": 8, "epochs": 2}
    ours = FedEvg(lam=0, generative=False, reinit=None)
    one = client(small, ours, training, images=torch.rand(100, 1, 8, 8))
    other = client(small, ours, training, model=small.model.init(0))
    update = build_method("fedavg").local(other)
    assert torch.equal(ours.local(one).keep["network"], update.vectors["model"])
    assert not torch.equal(update.vectors["model"], small.model.init(0))


@pytest.mark.parametrize("proposal", ["pcd", "cd", "noise"])
@pytest.mark.parametrize("batch_size", [8, 0])
def test_negatives_are_distinct_images_at_most_all(small: Federation, proposal: str, batch_size: int) -> None:
    """A batch of 31 samples meets 20 images; negatives of cd are as many as the batch has."""
    seen: list[tuple[Tensor, Tensor]] = []

    class Watched(FedEvg):
        def sample(self, client: Any, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
            seen.append((x, y))
            return super().sample(client, w, x, y)

    received = torch.rand(20, 1, 8, 8)
    method = Watched(spc=2, proposal=proposal, alpha=0, sigma=0, reinit=None)
    one = client(small, method, ADAM | {"batch_size": batch_size}, images=received)
    update = method.local(one)
    sizes = [31] if batch_size == 0 else [8, 8, 8, 7]
    assert [len(x) for x, _ in seen] == (sizes if proposal == "cd" else [min(n, 20) for n in sizes])
    for x, y in seen:
        assert len(x.unique(dim=0)) == len(x) and 0 <= x.min() <= x.max() <= 1
        if proposal == "pcd":
            rows = (x[:, None] == received[None]).all((2, 3, 4)).int().argmax(1)
            assert torch.equal(y, rows // 2)  # their labels
    assert update.vectors["gradients"].shape == received.shape
    energy, g = method.field(small.model, update.keep["network"], received, method.labels(small.model))
    assert torch.equal(update.vectors["gradients"], g)  # at the images that were received
    assert torch.equal(update.vectors["energies"], energy.sign())


def test_one_client_makes_plain_steps_of_langevin(digits: Dataset) -> None:
    """K = 1: X <- clip(X - beta_t dE/dX), whatever its size; its network is kept without reinit."""
    alone = suited("fedevg", images(digits, (40,)))
    hyper = {"spc": 2, "server_sigma": 0, "reinit": None}
    ran = run("fedevg", alone, hyper, training=ADAM, rounds=2)
    method = FedEvg(**hyper)
    images_, y = [each["images"] for each in ran.servers], method.labels(alone.model)
    w = ran.clients[1]["network"][0]
    expected = images_[0] - method.betas(2)[1] * method.field(alone.model, w, images_[0], y)[1]
    torch.testing.assert_close(images_[1], expected.clamp(0, 1))
    assert torch.bincount(y).tolist() == [2] * 10


def test_networks_are_fresh_or_kept(small: Federation) -> None:
    """By default clients keep nothing; every second round with reinit: 2; half of them take part."""
    default, second, never = (
        run("fedevg", small, {"spc": 1, "reinit": reinit}, training=ADAM, rounds=4) for reinit in (1, 2, None)
    )
    assert not default.clients[-1] and default.rounds[-1].values["updates"] == 12
    now = [FedEvg(reinit=2).phase(a_round(small, t)) for t in (1, 2, 3, 4)]
    assert now == ["fresh", "kept", "fresh", "kept"]
    assert [FedEvg(reinit=None).phase(a_round(small, t)) for t in (1, 2)] == ["kept", "kept"]
    assert not same(second.state(), never.state())
    assert torch.equal(default.servers[0]["images"], second.servers[0]["images"])
    for name in ("energy_real", "energy_negative", "energy_gap", "norm_g", "clipped", "positive"):
        assert math.isfinite(default.values(f"client/{name}/mean")[-1])
    assert default.values("method/beta") == pytest.approx(FedEvg().betas(4).tolist())


# 3.2: traffic


@pytest.mark.parametrize(
    ("shape", "classes", "down", "up", "parameters"),
    [
        ((1, 32, 32), 10, 102_400, 102_500, 4_979_914),
        ((3, 32, 32), 10, 307_200, 307_300, 4_981_066),
        ((1, 64, 64), 11, 450_560, 450_670, 5_258_443),
        ((3, 64, 64), 7, 860_160, 860_230, 5_128_519),
    ],
)
def test_published_traffic(shape: tuple[int, ...], classes: int, down: int, up: int, parameters: int) -> None:
    model = FlatModel(partial(build, "resnet10", shape, classes))
    assert model.parameters == parameters
    assert FedEvg().published_bytes(model, 500, 10) == 500 * 10 * 4 * (down + up)


def test_counters_are_the_formulas(small: Federation) -> None:
    """4 N d down, 4 N (d + 1) up by client; without energies for weights: mean; half of the clients."""
    for weights, signs in (("signed", 1), ("raw", 1), ("mean", 0)):
        ran = run("fedevg", small, {"spc": 3, "weights": weights}, training=ADAM, rounds=2, participation=0.7)
        assert ran.values("bytes_down") == [4 * 2 * 30 * 64, 2 * 4 * 2 * 30 * 64]
        assert ran.values("bytes_up")[-1] == 2 * 4 * 2 * 30 * (64 + signs)
        method = FedEvg(spc=3, weights=weights)
        traffic = sum(ran.values(name)[-1] for name in ("bytes_down", "bytes_up"))
        assert method.published_bytes(small.model, rounds=2, cohort=2) == traffic


# Refusals


def test_bad_input_is_one_line(small: Federation, digits: Dataset) -> None:
    for name, value in (("spc", 0), ("proposal", "mala"), ("weights", "squared"), ("schedule", "cosine")):
        with refused(f"^method.{name}: {value!r} "):
            build_method("fedevg", {name: value})
    with refused("^method.beta_last: 20.* at most method.beta_first = 10"):
        build_method("fedevg", {"beta_last": 20})
    with refused("^method.reinit: 3 .* less than the 3 rounds of the run, or null"):
        run("fedevg", small, {"reinit": 3})
    with refused("^data.normalize: 'source' .* none with fedevg, whose images have pixels in"):
        run("fedevg", images(digits))
    partition = Partition.from_lists([small.partition.train(0)[:1]], [np.arange(9)], [np.arange(10)])
    with refused("^data.keep_labels: .* only labels that clients hold, with fedevg; none trains on label"):
        run("fedevg", replace(small, partition=partition))
    with refused("^training.objective: 'robust' .* null with fedevg"):
        run("fedevg", small, training=ADAM | {"objective": {"name": "robust"}, "augment": "flip_crop"})
    exits = FlatModel(partial(build, "cnn_exit", (1, 8, 8), 10, filters=[8, 8, 8], exits="both"))
    with refused("^model.name: cnn_exit .* a network with one logit per class, fedevg's energies"):
        run("fedevg", replace(small, model=exits))


# 6.6: the toy


def toy(seed: int, iid: bool = False) -> tuple[Federation, Tensor]:
    """Four classes, each a smooth prototype with noise; client k has 97 % of class k. The prototypes too."""
    rng = torch.Generator().manual_seed(seed)
    smooth = torch.nn.functional.interpolate(torch.randn(4, 1, 4, 4, generator=rng), size=8, mode="bilinear")
    low, high = smooth.amin((1, 2, 3), keepdim=True), smooth.amax((1, 2, 3), keepdim=True)
    prototypes = (smooth - low) / (high - low)

    def draw(y: Tensor) -> Examples:
        x = prototypes[y] + 0.1 * torch.randn(len(y), 1, 8, 8, generator=rng)
        return Examples(x.clamp(0, 1), y)

    others = torch.rand(512, generator=rng) < (1 if iid else 0.03 * 4 / 3)
    own = torch.arange(4).repeat_interleave(128)
    train = draw(torch.where(others, torch.randint(4, (512,), generator=rng), own))
    rows = np.split(np.arange(512), 4)
    partition = Partition.from_lists(rows, [np.arange(400)] * 4, [np.arange(4)] * 4)
    model = FlatModel(partial(build, "cnn_energy", (1, 8, 8), 4))
    return Federation(model, train, draw(torch.arange(4).repeat(100)), partition), prototypes


class Toy:
    """Measures of the images of a run, before the first round and after each."""

    def __init__(self, seed: int, rounds: int, iid: bool = False, **hyper: Any) -> None:
        self.federation, self.prototypes = toy(seed, iid)
        settings = {"evaluate_every": rounds, "seed": seed, "training": ADAM, "rounds": rounds}
        simulation = prepare_run("fedevg", self.federation, hyper, **settings)
        first = simulation.state.server.images
        ran = follow(simulation)
        self.images = [x.clamp(0, 1) for x in (first, *(server["images"] for server in ran.servers))]
        self.accuracy = ran.values("global_accuracy")[-1]

    def distance(self, t: int) -> float:
        """Mean squared distance of the images after round t to the prototype of their class."""
        own = self.prototypes.repeat_interleave(10, 0)
        return float((self.images[t] - own).square().mean())

    def share(self, t: int) -> float:
        """Share of the images after round t that are nearest to the prototype of their class."""
        each = (self.images[t][:, None] - self.prototypes).square().mean((2, 3, 4)).argmin(1)
        return float((each == torch.arange(4).repeat_interleave(10)).double().mean())

    def frechet(self, t: int) -> float:
        real, made = (Gaussian.of(x.flatten(1)) for x in (self.federation.test.x, self.images[t]))
        return real.distance(made)


def test_toy_in_a_few_rounds() -> None:
    """Images approach the prototypes of their classes; signed weights lead under strong skew."""
    signed, raw = (Toy(0, 8, weights=weights) for weights in ("signed", "raw"))
    assert signed.distance(8) < 0.8 * signed.distance(0)
    assert signed.share(8) > raw.share(8) + 0.1
    assert signed.frechet(8) < raw.frechet(8) - 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_toy_in_full(seed: int) -> None:
    """Section 6.6; its numbers are in studies/fedevg/README.md."""
    classifier = {"classifier": {"epochs": 200}}
    signed, raw, mean, iid, kept = (
        Toy(seed, 40, **classifier, **about)
        for about in ({}, {"weights": "raw"}, {"weights": "mean"}, {"iid": True}, {"reinit": None})
    )
    for other in (raw, mean):
        assert signed.share(10) > other.share(10) + 0.1 and signed.frechet(10) < other.frechet(10) - 1
    assert signed.distance(40) < 0.55 * signed.distance(0)
    assert signed.accuracy > 0.9
    assert kept.frechet(40) > kept.frechet(0)
    assert iid.distance(40) < signed.distance(40) and iid.frechet(40) < signed.frechet(40)
    assert iid.share(40) >= signed.share(40)
