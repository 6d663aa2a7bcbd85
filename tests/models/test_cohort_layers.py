"""Layers of cohorts equal PyTorch's, client by client: outputs, gradients and running statistics."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedflow.data import Dataset
from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.models import build
from fedflow.models.cohorts import CohortBatchNorm, CohortGroupNorm, CohortLSTM
from fedflow.models.flat import FlatModel
from fedflow.simulation import worker
from tests.support import forbid_fallback, images, run, run_without_values

CLIENTS, BATCH = 4, 5
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "GroupNorm": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4)), (3, 6, 6)),
    "GroupNorm without scales": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.GroupNorm(2, 4, affine=False)),
        (3,),
    ),
    "LayerNorm": (lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)), (7, 3)),
    "BatchNorm1d": (lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), (3,)),
    "BatchNorm2d": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=0.3)), (3, 6, 6)),
    "BatchNorm without scales": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, affine=False)),
        (3,),
    ),
    "BatchNorm of the batch": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)),
        (3, 6, 6),
    ),
    "LSTM": (lambda: Last(nn.LSTM(3, 4, 2, batch_first=True)), (7, 3)),
    "LSTM without biases, positions first": (lambda: Last(nn.LSTM(3, 4, bias=False)), (7, 3)),
}


class Last(nn.Module):
    """The outputs of a recurrent layer at all positions, batch first."""

    def __init__(self, layer: nn.LSTM) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        first = self.layer.batch_first
        out = self.layer(x if first else x.transpose(0, 1))[0]
        return out if first else out.transpose(0, 1)


def alone(model: FlatModel, w: Tensor, x: Tensor, pull: Tensor, train: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, gradient and statistics of one client, by PyTorch's layers."""
    w = w.requires_grad_()
    outputs, after = model.train_outputs(w, x) if train else (model.outputs(w, x), None)
    (g,) = torch.autograd.grad((outputs * pull).sum(), w)
    return outputs.detach(), g, w[model.parameters :].detach() if after is None else after.detach()


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("ragged", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_of_a_cohort_is_that_of_every_client(
    name: str, ragged: bool, train: bool, monkeypatch
) -> None:
    """With batches of 2 to 5 samples, whose padding has large values."""
    forbid_fallback(monkeypatch)
    make, shape = LAYERS[name]
    model, rng = FlatModel(make, dtype=torch.float64), torch.Generator().manual_seed(0)
    ws = torch.stack([model.init(k) for k in range(CLIENTS)])
    ws[:, model.parameters :] += torch.rand(CLIENTS, model.buffers, generator=rng, dtype=ws.dtype)
    x = torch.randn(CLIENTS, BATCH, *shape, generator=rng, dtype=ws.dtype)
    sizes = torch.tensor([2, 5, 3, 4]) if ragged else torch.full((CLIENTS,), BATCH)
    real = torch.arange(BATCH) < sizes[:, None]
    x[~real] = 1e3
    pull = torch.randn(model.outputs(ws[0], x[0]).shape, generator=rng, dtype=ws.dtype)

    def one(w: Tensor, x: Tensor, real: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        given = real if ragged else None

        def pulled(w: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            after = None
            if train:
                outputs, after = model.train_outputs(w, x, real=given)
            else:
                outputs = model.outputs(w, x, given)
            value = (outputs * pull).sum(tuple(range(1, outputs.ndim)))
            return (value * real).sum(), (outputs, w[model.parameters :] if after is None else after)

        g, (outputs, after) = torch.func.grad(pulled, has_aux=True)(w)
        return outputs, g, after

    with model.for_cohorts():
        found = torch.func.vmap(one)(ws, x, real)
    for k, n in enumerate(sizes.tolist()):
        expected = alone(model, ws[k].clone(), x[k, :n], pull[:n], train)
        close: Any = partial(torch.testing.assert_close, rtol=1e-9, atol=1e-9)
        close(found[0][k, :n], expected[0])
        close(found[1][k], expected[1])
        close(found[2][k], expected[2])


def test_all_these_layers_have_a_form_for_cohorts() -> None:
    forms = {"GroupNorm": CohortGroupNorm, "BatchNorm2d": CohortBatchNorm, "LSTM": CohortLSTM}
    for name, form in forms.items():
        model = FlatModel(LAYERS[name][0])
        with model.for_cohorts():
            module, _ = model._own_modules()[True]
        assert any(type(layer) is form for layer in module.modules())
        plain, _ = model._own_modules()[True]
        assert not any(type(layer) is form for layer in plain.modules())


def test_directions_and_projections_of_an_lstm_keep_its_own_form() -> None:
    for options in ({"bidirectional": True}, {"proj_size": 2}):
        model = FlatModel(partial(Last, nn.LSTM(3, 4, **options)))
        with model.for_cohorts():
            module, _ = model._own_modules()[True]
        assert not any(type(layer) is CohortLSTM for layer in module.modules())


SETTINGS: dict[str, Any] = {"training": {"batch_size": 4, "epochs": 2, "lr": 0.05}, "rounds": 2}


@pytest.mark.parametrize("augment", ["none", "flip_crop"])
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "ditto", "superfed", "fedsgd"])
def test_convolutions_with_batch_norm_train_as_in_the_loop(
    digits: Dataset, monkeypatch, method: str, augment: str
) -> None:
    """Statistics too, of clients with 5, 9 and 14 images: a batch of one image has several positions."""
    forbid_fallback(monkeypatch)
    settings = SETTINGS | {"training": SETTINGS["training"] | {"augment": augment}}
    if method == "fedsgd":
        settings["training"] |= {"batch_size": 0, "epochs": 1, "augment": "none"}
    options = {"filters": (4,), "kernel": 3, "hidden": (8,), "batch_norm": True}
    federation = images(digits, (5, 9, 14), "cnn", dtype=torch.float64, **options)
    loop, vmap = (run(method, federation, cohort=cohort, **settings).state() for cohort in ("loop", "vmap"))
    assert federation.model.buffers
    torch.testing.assert_close(vmap, loop, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("sizes", "alone"), [((6, 9), False), ((5, 9), True)])
def test_a_batch_of_one_sample_that_cannot_be_normalized_trains_in_the_loop(
    digits: Dataset, monkeypatch, sizes: tuple[int, int], alone: bool
) -> None:
    """Batches of 4 leave one of 5 and of 9 samples; those of 3 leave none."""
    monkeypatch.setattr(worker, "WARNED_METHODS", set())

    def make() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))

    model = FlatModel(make, dtype=torch.float64)
    federation = replace(images(digits, sizes), model=model)
    settings = SETTINGS | {"training": SETTINGS["training"] | {"batch_size": 4 if alone else 3}}
    loop = run("fedavg", federation, cohort="loop", **settings)
    if alone:
        with pytest.warns(UserWarning, match="BatchNorm cannot normalize a batch of one sample"):
            vmap = run("fedavg", federation, cohort="vmap", **settings)
        assert torch.equal(vmap.servers[-1]["model"], loop.servers[-1]["model"])
    else:
        forbid_fallback(monkeypatch)
        vmap = run("fedavg", federation, cohort="vmap", **settings)
        torch.testing.assert_close(vmap.servers[-1]["model"], loop.servers[-1]["model"], rtol=0, atol=1e-9)


def test_statistics_of_the_batch_train_as_in_the_loop(digits: Dataset, monkeypatch) -> None:
    """Without running statistics; Ditto and q-FedAvg also evaluate clients' samples in cohorts."""
    forbid_fallback(monkeypatch)

    def make() -> nn.Module:
        norm = nn.BatchNorm2d(4, track_running_stats=False)
        return nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))

    federation = replace(images(digits, (6, 9, 14)), model=FlatModel(make, dtype=torch.float64))
    for method in ("fedavg", "qfedavg", "ifca"):
        loop, vmap = (
            run(method, federation, cohort=cohort, **SETTINGS).state() for cohort in ("loop", "vmap")
        )
        torch.testing.assert_close(vmap, loop, rtol=0, atol=1e-9)


@pytest.mark.parametrize("network", ["BatchNorm", "LSTM"])
def test_a_graph_can_hold_these_layers(digits: Dataset, monkeypatch, network: str) -> None:
    """No operation reads a value of the device on the host."""
    options = {"filters": (4,), "kernel": 3, "hidden": (8,), "batch_norm": True}
    federation = images(digits, (5, 9), "cnn", **options)
    if network == "LSTM":  # over the rows of an image

        def make() -> nn.Module:
            return nn.Sequential(
                nn.Flatten(1, 2), Last(nn.LSTM(8, 4, batch_first=True)), nn.Flatten(), nn.Linear(32, 10)
            )

        federation = replace(federation, model=FlatModel(make))
    run_without_values("fedavg", federation, monkeypatch, training={"batch_size": 4, "epochs": 1})


@pytest.mark.parametrize(
    ("network", "options"),
    [
        ("vit", {"patch": 2, "dim": 8, "heads": 2, "depth": 1, "mlp": 8}),
        ("cnn", {"filters": (4,), "kernel": 3, "groups": 2, "hidden": (8,)}),
    ],
)
def test_a_graph_can_hold_these_networks(digits: Dataset, monkeypatch, network, options) -> None:
    """Also the steps that adapt and tune a model before it is scored."""
    scored = {
        "adapt": [{"name": "proto"}, {"name": "maml", "steps": 1}],
        "fine_tune": True,
        "evaluate_every": 1,
    }
    training = {"batch_size": 4, "epochs": 1}
    federation = images(digits, (5, 9), network, **options)
    run_without_values("fedavg", federation, monkeypatch, training=training, rounds=1, **scored)


class Careless(FedAvg):
    """FedAvg that looks a number up on the host."""

    def local(self, client: Any) -> Any:
        w = client.fit(start=client.received["model"])
        return client.update(model=w.index_fill(0, self.first(w), 0))

    def first(self, w: Tensor) -> Tensor:
        return torch.arange(2).to(w.device)


class Listing(Careless):
    """The same with a list, which PyTorch copies to the device."""

    def first(self, w: Tensor) -> Tensor:
        return torch.arange(9, device=w.device)[[0, 1]]


OLD = pytest.mark.skipif(torch.__version__ < "2.15", reason="only PyTorch 2.15 shows the copy of a list")


@pytest.mark.parametrize("method", [Careless(), pytest.param(Listing(), marks=OLD)])
def test_what_reads_the_host_is_found(digits: Dataset, monkeypatch, method: FedAvg) -> None:
    with pytest.raises(AssertionError, match="reads the host: a tensor on it, or a list"):
        run_without_values(method, images(digits, (5, 9)), monkeypatch)


def test_a_network_that_is_built_keeps_its_size() -> None:
    plain = FlatModel(partial(build, "lenet5_bn", (1, 28, 28), 10))
    size = plain.size
    with plain.for_cohorts():
        plain.prepare()
    assert plain.size == size and plain.why_alone is None


@pytest.mark.parametrize("name", ["GroupNorm", "BatchNorm2d", "LSTM"])
def test_second_derivatives_are_those_of_pytorch(name: str) -> None:
    """The gradient of the squared norm of a gradient, as in MAML."""
    make, shape = LAYERS[name]
    model, rng = FlatModel(make, dtype=torch.float64), torch.Generator().manual_seed(0)
    w, x = model.init(0), torch.randn(BATCH, *shape, generator=rng, dtype=torch.float64)

    def second(w: Tensor, x: Tensor) -> Tensor:
        def loss(v: Tensor) -> Tensor:
            return model.train_outputs(v, x)[0].pow(3).sum()

        return torch.func.grad(lambda v: torch.func.grad(loss)(v)[: model.parameters].square().sum())(w)

    def plain(w: Tensor, x: Tensor) -> Tensor:
        w = w.clone().requires_grad_()
        (g,) = torch.autograd.grad(model.train_outputs(w, x)[0].pow(3).sum(), w, create_graph=True)
        return torch.autograd.grad(g[: model.parameters].square().sum(), w)[0]

    with model.for_cohorts():
        found = torch.func.vmap(second, in_dims=(None, 0))(w, torch.stack([x, 2 * x]))
    for own, given in zip(found, (x, 2 * x)):
        expected = plain(w, given)
        torch.testing.assert_close(own, expected, rtol=1e-8, atol=1e-8 * float(expected.abs().max()))
