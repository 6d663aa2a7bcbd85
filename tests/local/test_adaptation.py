"""Adaptation: its worked numbers, gradients through it, what it reduces to, and what it refuses."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import (
    Normed,
    consecutive,
    images,
    one_client,
    prepare_run,
    quadratics,
    refused,
    run,
    run_without_values,
    same,
)
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from fedflow.data import Dataset, Examples
from fedflow.local.drawing import draw_schedule
from fedflow.local.extensions.adaptation import Adaptation, draw_support
from fedflow.local.extensions.augmentation import augmented
from fedflow.local.fast.compiled import why_not
from fedflow.local.local_training import LocalTraining
from fedflow.local.samples import Batch
from fedflow.local.schedule import Schedule
from fedflow.local.trainer import Trainer
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.simulation.compiling import with_compiled
from fedflow.simulation.federation import Federation
from fedflow.simulation.settings import RunSettings

SGD: dict[str, Any] = {"epochs": 2, "batch_size": 8, "lr": 0.1}
MAML: dict[str, Any] = {"name": "maml", "lr": 0.1}
PROTO: dict[str, Any] = {"name": "proto"}
KINDS: dict[str, dict[str, Any]] = {
    "one step": MAML,
    "three steps": MAML | {"steps": 3, "weight_decay": 0.1},
    "first order": MAML | {"steps": 2, "order": "first"},
    "proto": PROTO,
}
SOME_KINDS = [
    "three steps",
    "proto",
    *(pytest.param(k, marks=pytest.mark.full) for k in ("one step", "first order")),
]
EXACT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-10}
ROUGH: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-6}


def training(adaptation: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    return SGD | {"adaptation": adaptation} | more


def parsed(adaptation: dict[str, Any] | None, **more: Any) -> LocalTraining:
    return LocalTraining.parse(training(adaptation, **more))


def convolution() -> nn.Module:
    layers = [nn.Conv2d(1, 4, 3), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 10)]
    return nn.Sequential(*layers)


def tokens(sizes: tuple[int, ...]) -> Federation:
    """Sequences of five tokens with one of ten labels."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(10, (sum(sizes), 5), generator=rng, dtype=torch.int32)
    examples = Examples(x, torch.randint(10, (sum(sizes),), generator=rng))
    network = partial(build, "char_lstm", (5,), 10, hidden=6, embedding=4, bias=True)
    return Federation(FlatModel(network, dtype=torch.float64), examples, examples, consecutive(sizes))


@pytest.fixture(scope="module")
def federations(digits: Dataset) -> dict[str, Federation]:
    """By network, in float64: clients with 1, less than B, less than 2 B and more samples, B = 8."""
    mlp = images(digits, dtype=torch.float64)
    return {
        "mlp": mlp,
        "cnn": replace(mlp, model=FlatModel(convolution, dtype=torch.float64)),
        "lstm": tokens((1, 7, 12, 20)),
    }


# Worked numbers


@pytest.mark.parametrize(
    ("options", "slope"),
    [
        ({}, -4.41),
        ({"order": "first"}, -6.3),
        ({"steps": 0}, -9),
        ({"steps": 5}, -0.2542277),
        ({"weight_decay": 0.5}, 3 * (1.85 - 4) * (1 - 0.1 * 3.5)),
    ],
)
def test_the_gradient_of_a_quadratic(options: dict, slope: float, cohort: str) -> None:
    """F(w) = 3 / 2 (w - 4)^2 at w = 1; an inner weight decay has the factor 1 - eta (a + wd)."""
    ran = run(
        "fedavg",
        quadratics([(3, 4)], [10], start=1),
        rounds=1,
        cohort=cohort,
        training={"epochs": 1, "adaptation": MAML | options},
    )
    assert ran.server("model") == [pytest.approx(1 - 0.1 * slope, abs=1e-8)]
    if not options:
        assert ran.values("train_loss") == [pytest.approx(6.615)]  # after adaptation


@pytest.mark.parametrize(("options", "w"), [({}, 1.9), ({"steps": 5}, 3.495790), ({"clip_norm": 4.5}, 1.45)])
def test_a_quadratic_after_adaptation(options: dict, w: float) -> None:
    client = one_client(quadratics([(3, 4)], [600], start=1))  # in two chunks
    start = torch.ones(1, dtype=torch.float64)
    decayed = MAML | {"weight_decay": 0.0 if options else 0.5}  # of training only
    assert Adaptation.parse(decayed | options).adapted(client, start).item() == pytest.approx(w, abs=1e-6)


IDENTITY = torch.tensor([1.0, 0, 0, 1, 0, 0] + [0.7] * 9, dtype=torch.float64)


def points() -> Federation:
    """Case K of the specification of PFL: with the first layer of `IDENTITY`, the features are the inputs."""
    x = torch.tensor([[0.0, 0], [2, 0], [0, 4], [0, 2]], dtype=torch.float64)
    examples = Examples(x, torch.tensor([0, 0, 1, 1]))
    model = FlatModel(lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3)), dtype=torch.float64)
    return Federation(model, examples, examples, consecutive((4,)))


def test_prototypes_by_hand() -> None:
    """(1, 0) and (0, 3); the third class is absent."""
    client = one_client(points(), training=parsed(PROTO))
    w, (x, y) = IDENTITY, client.data()
    query = torch.tensor([[1.0, 1], [0, 2]], dtype=torch.float64)
    batch = Batch(query, torch.tensor([0, 1]), extra={"support": Batch(x, y)})
    found = client.gradient(w, batch)
    assert client.loss(w, batch).item() == found.loss.item() == pytest.approx(0.01814993, abs=1e-8)
    assert found.gradient[:6].any() and not found.gradient[6:].any()  # the last layer is not in use
    outputs = client.model.outputs(Adaptation.parse(PROTO).adapted(client, w), query)
    assert outputs.argmax(1).tolist() == [0, 1]
    assert (outputs[0, 0] - outputs[0, 1]).item() == pytest.approx(4)  # -1 and -5
    assert (outputs[1, 0] - outputs[1, 1]).item() == pytest.approx(-4)
    assert (outputs[:, 2] < -1e8).all()


def test_queries_of_absent_classes_do_not_count() -> None:
    client = one_client(points(), training=parsed(PROTO))
    w, (x, y) = IDENTITY, client.data()
    support = Batch(x, y, torch.tensor([True, True, True, False]))
    some, known = torch.tensor([0, 2, 1]), torch.tensor([True, False, True])
    mixed = Batch(x[:3], some, extra={"support": support})
    assert client.loss(w, mixed) == client.loss(
        w, Batch(x[:3][known], some[known], extra={"support": support})
    )


@pytest.mark.parametrize("vmapped", [False, True])
def test_without_a_query_that_counts_there_is_no_gradient(
    federations: dict[str, Federation], vmapped: bool
) -> None:
    """Also with clipping: no 0 / 0."""
    settings = parsed(PROTO, clip_norm=1)
    client = one_client(federations["mlp"], 3, settings)
    client._task = replace(client._task, vmapped=vmapped)
    x = client.data()[0]
    three, four = torch.full((4,), 3), torch.full((4,), 4)
    start = client.initial_state(client.model.init(0))
    found = client.gradient(start.w, Batch(x[:4], three, extra={"support": Batch(x[4:8], four)}))
    assert not found.gradient.any() and found.loss == 0
    assert torch.equal(client.descend(start, found).w, start.w)


# Gradients through the adaptation


def plain(model: FlatModel, adaptation: Adaptation, w: Tensor, query: tuple, support: tuple) -> Tensor:
    """The loss after adaptation, by autograd with graphs of gradients, and distances to prototypes."""
    module = model.to_module(w).train()

    def outputs(v: Tensor, x: Tensor) -> Tensor:
        return functional_call(module, model.views(v), (x,))

    def features(x: Tensor) -> Tensor:
        seen: list[Tensor] = []
        last = [layer for layer in module.modules() if isinstance(layer, nn.Linear)][-1]
        hook = last.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
        outputs(w, x)
        hook.remove()
        return seen[0]

    (x, y), (near, labels) = query, support
    if adaptation.name == "maml":
        v = w
        for _ in range(adaptation.steps):
            (g,) = torch.autograd.grad(cross_entropy(outputs(v, near), labels), v, create_graph=True)
            g = g + adaptation.weight_decay * v
            v = v - adaptation.lr * (g.detach() if adaptation.order == "first" else g)
        return cross_entropy(outputs(v, x), y)
    classes = labels.unique()
    centers = torch.stack([features(near)[labels == label].mean(0) for label in classes])
    kept = torch.isin(y, classes)
    if not kept.any():
        return 0 * w.sum()
    distances = torch.cdist(features(x[kept]), centers).square()
    return cross_entropy(-distances, torch.searchsorted(classes, y[kept]))


def twin(federation: Federation, settings: LocalTraining, k: int, w: Tensor) -> tuple[Tensor, list[float]]:
    """Client k's model after a round from ``w`` [D], and the loss of every step."""
    model, losses = federation.model, list[float]()
    assert settings.adaptation is not None
    rows = torch.as_tensor(federation.partition.train(k))
    x = federation.train.inputs(rows, torch.float64)
    y = federation.train.y[rows]
    schedule = draw_schedule(settings, len(rows), settings.epochs, 0, "batches", 1, k)
    assert "support" in schedule.further
    for (own, *_), (others, *_) in zip(
        schedule.batches(), schedule.further["support"].batches(), strict=True
    ):
        leaf = w.clone().requires_grad_()
        value = plain(model, settings.adaptation, leaf, (x[own], y[own]), (x[others], y[others]))
        (g,) = torch.autograd.grad(value, leaf)
        if settings.clip_norm is not None:
            g = g * min(1.0, settings.clip_norm / max(float(g.norm()), 1e-300))
        w = w - settings.lr * (g + settings.weight_decay * w)
        losses.append(value.item())
    return w, losses


@pytest.mark.parametrize("network", ["mlp", "cnn", "lstm"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_round_is_that_of_plain_autograd(
    federations: dict[str, Federation], network: str, kind: str, cohort: str
) -> None:
    """With clipping, weight decay and ragged clients, whose batches and supports are padded in a cohort."""
    federation, settings = federations[network], training(KINDS[kind], clip_norm=0.5, weight_decay=0.01)
    close = EXACT
    if (network, cohort) == ("lstm", "vmap"):  # vmap has LSTMs in float32 only
        federation, close = replace(federation, model=FlatModel(federation.model.factory)), ROUGH
    go: dict[str, Any] = {"hyper": {"weighting": "uniform"}, "rounds": 1, "training": settings}
    start = prepare_run("fedavg", federation, **go).state.server.model.double()
    ran = run("fedavg", federation, cohort=cohort, **go)
    found = [
        twin(federations[network], LocalTraining.parse(settings), k, start)
        for k in range(ran.simulation.clients)
    ]
    mean = torch.stack([w for w, _ in found]).mean(0)
    torch.testing.assert_close(ran.servers[0]["model"].double(), mean, **close)
    assert ran.values("train_loss") == [pytest.approx(np.mean([np.mean(losses) for _, losses in found]))]


@pytest.mark.parametrize("network", ["mlp", "cnn", "lstm"])
@pytest.mark.parametrize("kind", ["one step", "three steps", "proto"])
def test_gradients_are_those_of_finite_differences(
    federations: dict[str, Federation], network: str, kind: str
) -> None:
    """Along five directions, with masks on query and support."""
    client = one_client(federations[network], 3, parsed(KINDS[kind]))
    w, (x, y) = client.model.init(0), client.data()
    masks = torch.arange(10) < 8, torch.arange(10) > 2
    batch = Batch(x[:10], y[:10], masks[0], extra={"support": Batch(x[10:], y[10:], masks[1])})
    g, rng = client.gradient(w, batch).gradient, torch.Generator().manual_seed(0)
    for _ in range(5):
        v = torch.randn(len(w), generator=rng, dtype=w.dtype)
        ahead, behind = (client.loss(w + h * v, batch).item() for h in (1e-6, -1e-6))
        assert (g @ v).item() == pytest.approx((ahead - behind) / 2e-6, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("network", ["mlp", "cnn"])  # vmap has LSTMs in float32 only
@pytest.mark.parametrize("kind", ["one step", "three steps", "proto"])
def test_so_are_those_of_a_vmapped_cohort(
    federations: dict[str, Federation], network: str, kind: str
) -> None:
    """Three clients mask different queries and supports; clipped steps are as long as allowed."""
    limit = 0.05
    plain = one_client(federations[network], 4, parsed(KINDS[kind], clip_norm=limit))
    client = one_client(federations[network], 4, plain.training)
    client._task = replace(client._task, vmapped=True)
    model, rng = client.model, torch.Generator().manual_seed(0)
    ws, (x, y) = torch.stack([model.init(i) for i in range(3)]), client.data()
    rows = torch.stack([torch.randperm(len(x), generator=rng)[:20] for _ in ws])
    masks = torch.arange(20) % 10 < torch.tensor([[8], [10], [3]])

    def batch(rows: Tensor, mask: Tensor) -> Batch:
        near = Batch(x[rows[10:]], y[rows[10:]], mask[10:].flip(0))
        return Batch(x[rows[:10]], y[rows[:10]], mask[:10], extra={"support": near})

    def step(w: Tensor, rows: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        found = client.gradient(w, batch(rows, mask))
        return found.gradient, found.loss, client.descend(client.initial_state(w), found).w

    with model.for_cohorts():
        gradients, losses, ends = torch.func.vmap(step)(ws, rows, masks)
    for w, g, loss, end, *own in zip(ws, gradients, losses, ends, rows, masks):
        assert loss.item() == pytest.approx(plain.loss(w, batch(*own)).item())
        for _ in range(5):
            v = torch.randn(len(w), generator=rng, dtype=w.dtype)
            ahead, behind = (plain.loss(w + h * v, batch(*own)).item() for h in (1e-6, -1e-6))
            assert (g @ v).item() == pytest.approx((ahead - behind) / 2e-6, rel=1e-5, abs=1e-7)
        assert g.norm() > limit  # so that the step is clipped
        torch.testing.assert_close(end, w - plain.training.lr * limit * g / g.norm(), **EXACT)


def test_names_of_classes_do_not_matter_to_prototypes(
    federations: dict[str, Federation], cohort: str
) -> None:
    """Up to rounding; the last layer only decays."""
    federation = federations["mlp"]
    renamed = federation.train.relabeled((federation.train.y.numpy() * 3 + 4) % 10)
    settings: dict[str, Any] = {"training": training(PROTO, weight_decay=0.1), "rounds": 1}
    ran, other = (
        run("fedavg", replace(federation, train=train), cohort=cohort, **settings)
        for train in (federation.train, renamed)
    )
    torch.testing.assert_close(ran.servers[0]["model"], other.servers[0]["model"], **EXACT)
    assert ran.values("train_loss") == pytest.approx(other.values("train_loss"))
    last = federation.model.head().of
    first = prepare_run("fedavg", federation, **settings).state.server.model
    sizes = torch.as_tensor(federation.partition.sizes, dtype=torch.float64)
    decayed = (sizes * 0.99 ** (2 * (sizes / 8).ceil())).sum() / sizes.sum()
    torch.testing.assert_close(last(ran.servers[0]["model"]), decayed * last(first), **EXACT)


@pytest.mark.parametrize("kind", ["one step", "proto"])
def test_all_samples_are_adapted_to_as_one_batch(
    federations: dict[str, Federation], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, adaptation = one_client(federations["mlp"], 7), Adaptation.parse(KINDS[kind])
    w, (x, y) = client.model.init(0), client.data()
    expected, _ = adaptation.adapt(client, w, Batch(x, y, extra={"support": Batch(x, y)}))
    monkeypatch.setattr("fedflow.local.samples.EVALUATION_BATCH", 7)
    torch.testing.assert_close(adaptation.adapted(client, w), expected, **EXACT)


# Which samples


@given(st.integers(1, 60), st.integers(0, 25), st.integers(1, 3))
def test_support_is_disjoint_from_the_query_unless_that_is_all(n: int, size: int, epochs: int) -> None:
    settings = parsed(PROTO, batch_size=size)
    drawn = draw_schedule(settings, n, epochs, 0, "batches", 1, 0)
    host = draw_schedule(parsed(None, batch_size=size), n, epochs, 0, "batches", 1, 0)
    assert torch.equal(drawn.positions, host.positions) and drawn.sizes == host.sizes
    assert "support" in drawn.further
    for (query, *_), (support, *_) in zip(drawn.batches(), drawn.further["support"].batches(), strict=True):
        own, others = set(query.tolist()), set(support.tolist())
        assert len(others) == len(support)
        if len(own) == n:
            assert others == own
        else:
            assert not own & others and len(others) == min(size, n - len(own))


def test_every_other_sample_is_equally_often_in_the_support() -> None:
    """And at each place: with 3 of 8 samples in the query, at 3 of 5 others."""
    positions = torch.tensor([[0, 3, 7]]).repeat(8000, 1)
    support = draw_support(np.random.default_rng(0), Schedule(positions), 8).positions.numpy()
    counts = np.stack([np.bincount(place, minlength=8) for place in support.T])
    assert not counts[:, [0, 3, 7]].any()
    assert np.abs(counts[:, [1, 2, 4, 5, 6]] / 8000 - 1 / 5).max() < 4 * np.sqrt(0.16 / 8000)


@pytest.mark.parametrize("how", ["held", "gathered"])
def test_query_and_support_have_their_own_views(
    padded: Dataset, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "gathered":  # as for more images than are kept normalized
        monkeypatch.setattr("fedflow.local.trainer.HELD", 0)
    federation, seen = images(padded, (20, 7)), list[Batch]()
    settings = parsed(MAML, augment="flip_crop")

    def step(now: tuple[Tensor], batch: Batch) -> tuple[tuple[Tensor], Tensor]:
        seen.append(batch)
        return now, torch.zeros(())

    one_client(federation, 0, settings).run_steps(step, (torch.zeros(()),))
    x = federation.train.x[torch.as_tensor(federation.partition.train(0))]
    drawn = draw_schedule(settings, 20, 2, 0, "batches", 1, 0)
    host = draw_schedule(parsed(None, augment="flip_crop"), 20, 2, 0, "batches", 1, 0)
    assert "support" in drawn.further and torch.equal(drawn.extra["views"].values, host.extra["views"].values)
    for batch, query, support in zip(seen, drawn.batches(), drawn.further["support"].batches(), strict=True):
        for found, (rows, _, extra) in ((batch, query), (batch.extra["support"], support)):
            assert torch.equal(found.x, augmented(x[rows], extra["views"][..., 0, :]))


# Reductions


@pytest.mark.parametrize("method", ["fedavg", "feddyn", "scaffold", "fedprox", "ditto", "ifca"])
def test_without_steps_it_is_the_host_bit_for_bit(
    federations: dict[str, Federation], method: str, cohort: str
) -> None:
    federation = replace(federations["mlp"], model=FlatModel(federations["mlp"].model.factory))
    identity, host = (
        run(method, federation, cohort=cohort, rounds=2, participation=0.5, fine_tune=True, training=settings)
        for settings in (training(MAML | {"steps": 0}, momentum=0.5), training(None, momentum=0.5))
    )
    assert same(identity.state(), host.state())
    for name in ("train_loss", "gradients", "clock", "bytes_up"):
        assert identity.values(name) == host.values(name)
    one, other = (ran.outcome().scores.more["tuned_accuracy"] for ran in (identity, host))
    assert np.array_equal(one, other)


def test_fine_tuning_and_losses_are_those_of_the_model_as_it_is(federations: dict[str, Federation]) -> None:
    """In a run whose global model does not move."""
    still: dict[str, Any] = {"hyper": {"server_lr": 1e-30}, "fine_tune": True}
    runs = [run("fedavg", federations["mlp"], training=training(each), **still) for each in (None, PROTO)]
    for name in ("local_loss", "local_accuracy", "tuned_accuracy"):
        assert np.array_equal(*(ran.outcome().scores.column(name) for ran in runs))
    work = [ran.rounds[-1].values for ran in runs]
    assert work[1]["gradients"] == 2 * work[0]["gradients"] and work[1]["clock"] == 2 * work[0]["clock"]


# Networks and engines


@pytest.mark.parametrize("kind", ["one step", "three steps", "proto"])
@pytest.mark.parametrize("samples", [1, 4])
def test_statistics_of_batch_norm_are_those_of_the_query(
    federations: dict[str, Federation], kind: str, samples: int
) -> None:
    """The support leaves them as they are; one sample alone is not normalized."""
    model = FlatModel(Normed, dtype=torch.float64)
    client = one_client(replace(federations["mlp"], model=model), 3, parsed(KINDS[kind]))
    w, (x, y) = model.init(0), client.data()
    batch = Batch(x[:4], y[:4], extra={"support": Batch(x[4 : 4 + samples], y[4 : 4 + samples])})
    found = client.gradient(w, batch)
    assert client.training.adaptation is not None
    adapted, _ = client.training.adaptation.adapt(client, w, batch)
    assert torch.equal(adapted[model.parameters :], w[model.parameters :])
    assert torch.equal(found.buffers, model.train_outputs(adapted, x[:4])[1])
    g, v = found.gradient, model.trainable(torch.linspace(-1, 1, len(w), dtype=w.dtype))
    ahead, behind = (client.loss(w + h * v, batch).item() for h in (1e-6, -1e-6))
    assert (g @ v).item() == pytest.approx((ahead - behind) / 2e-6, rel=1e-5, abs=1e-7)
    evaluated = client.training.adaptation.adapted(client, w)
    assert torch.equal(evaluated[model.parameters :], w[model.parameters :])


@pytest.mark.parametrize("network", ["dropout", "batch norm"])
@pytest.mark.parametrize("kind", SOME_KINDS)
def test_a_run_with_dropout_or_batch_norm(digits: Dataset, network: str, kind: str) -> None:
    """The noise is keyed; without adaptation steps, it is that of the host."""
    federation = images(digits, dropout=0.5)
    if network == "batch norm":
        federation = replace(federation, model=FlatModel(Normed))
    go = partial(run, "fedavg", federation, rounds=2)
    one, again = (go(training=training(KINDS[kind])) for _ in range(2))
    assert same(one.state(), again.state()) and one.rounds[-1].values["train_loss"] > 0
    identity, host = (go(training=training(each)) for each in (MAML | {"steps": 0}, None))
    assert same(identity.state(), host.state()) and not same(one.state(), host.state())


@pytest.mark.full
@pytest.mark.parametrize("kind", SOME_KINDS)
def test_bf16_is_close_to_float32(digits: Dataset, kind: str, cohort: str) -> None:
    exact, rounded = (
        run("fedavg", images(digits), training=training(KINDS[kind], precision=precision), cohort=cohort)
        for precision in ("float32", "bf16")
    )
    assert rounded.values("train_loss") == pytest.approx(exact.values("train_loss"), rel=0.05)
    assert not same(exact.state(), rounded.state())


@pytest.mark.parametrize("kind", SOME_KINDS)
def test_local_steps_never_look_at_values(
    digits: Dataset, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_without_values("fedavg", images(digits), monkeypatch, training=training(KINDS[kind]), rounds=2)


# Refusals


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "training.adaptation.name: missing; expected one of maml, proto"),
        ({"name": "reptile"}, "training.adaptation.name: 'reptile' .* one of maml, proto"),
        (PROTO | {"lr": 0.2}, "training.adaptation.lr: 0.2 .* 0.1 with proto"),
        (PROTO | {"steps": 3}, "training.adaptation.steps: 3 .* 1 with proto"),
        (PROTO | {"clip_norm": 3}, "training.adaptation.clip_norm: 3.0 .* null with proto"),
        (MAML | {"steps": -1}, "training.adaptation.steps: -1 .* a whole number >= 0"),
        (MAML | {"order": "third"}, "training.adaptation.order: 'third' .* one of first, second"),
        (MAML | {"alpha": 1}, "training.adaptation.alpha"),
    ],
)
def test_bad_adaptations_are_refused(settings: dict, message: str) -> None:
    with refused(message):
        parsed(settings)


def test_what_cannot_be_adapted_is_refused(federations: dict[str, Federation], tmp_path: Path) -> None:
    federation = federations["mlp"]
    with refused("training.curriculum: a mapping .* null with training.adaptation"):
        parsed(MAML, curriculum={"a": 0.5})
    with refused("training.adaptation.clip_norm: 10.0 .* null with fedavg, which serves unadapted models"):
        prepare_run("fedavg", federation, training=training(MAML | {"clip_norm": 10}))
    prepare_run("pavg", federation, {"adaptation": MAML | {"clip_norm": 10}})
    with refused("training.objective: 'distil' .* null or robust with proto"):
        parsed(PROTO, objective={"name": "distil", "teacher": "large"})
    with refused("training.adaptation.name: 'proto' .* maml, as the samples do not have one label each"):
        prepare_run("fedavg", quadratics(), training=training(PROTO))
    sequences = replace(tokens((5, 5)), train=Examples(torch.zeros(10, 5).int(), torch.zeros(10, 5).long()))
    with refused("training.adaptation.name: 'proto' .* do not have one label each"):
        prepare_run("fedavg", sequences, training=training(PROTO))
    for layers, why in (
        ([nn.Linear(64, 8), nn.Linear(8, 10, bias=False)], "does not end with a linear layer with biases"),
        ([nn.Linear(64, 10), nn.LogSoftmax(1)], "does not end with a linear layer with biases"),
        ([nn.Linear(64, 10)], "has no layer before the last one"),
    ):
        model = FlatModel(partial(nn.Sequential, nn.Flatten(), *layers), dtype=torch.float64)
        with refused(f"training.adaptation.name: 'proto' .* maml, as the network {why}"):
            prepare_run("fedavg", replace(federation, model=model), training=training(PROTO))
    with refused("training.adaptation: a mapping .* null in central training"):
        Trainer.central(federation.model, federation.train, parsed(MAML), np.random.default_rng(0))
    assert why_not(federation.model, parsed(None)) is None
    for method, hyper, own in (
        ("fedavg", {}, MAML),
        ("pfldyn", {}, None),
        ("perfedavg", {"order": "second"}, None),
    ):
        job = prepare_run(method, federation, hyper, training=training(own)).job
        with refused("engine.compile: 'always' .* auto or never here: .* which needs second derivatives"):
            with_compiled(job, RunSettings.parse({}), "always", tmp_path)
        assert with_compiled(job, RunSettings.parse({}), "auto", tmp_path)[1].startswith("no: clients minim")


def test_prototypes_suit_deep_networks_and_second_derivatives_no_lstm_on_a_gpu() -> None:
    """A check with large weights would find infinite outputs."""
    x = Examples(torch.randn(1, 3, 32, 32), torch.zeros(1, dtype=torch.int64))
    for name in ("preact_resnet18_gn", "lenet5_bn"):
        Adaptation.parse(PROTO).check(FlatModel(partial(build, name, (3, 32, 32), 10)), x)
    recurrent = tokens((5,))
    recurrent.model.device = torch.device("cuda")
    with refused("training.adaptation.order: 'second' .* first with a recurrent network on a GPU"):
        Adaptation.parse(MAML).check(recurrent.model, recurrent.train)
    Adaptation.parse(MAML | {"order": "first"}).check(recurrent.model, recurrent.train)


@pytest.mark.parametrize(
    ("method", "hyper", "why"),
    [
        ("fedsgd", {}, "which trains on full gradients"),
        ("qfedsgd", {}, "which trains on full gradients"),
        ("cfl", {}, "which places clients by gradients over all samples"),
        ("fesem", {}, "which places new clients by a step on all samples"),
        ("fedac", {}, "which places newcomers by a step on all samples"),
        ("ifca", {"averaging": "gradient"}, "whose averaging: gradient is over all samples"),
    ],
)
def test_methods_that_take_full_gradients_refuse_it(
    federations: dict[str, Federation], method: str, hyper: dict, why: str
) -> None:
    with refused(f"training.adaptation: a mapping .* null with {method}, {why}"):
        prepare_run(method, federations["mlp"], hyper, training=training(MAML))
    with refused("method.variate: 'I' .* II: with training.adaptation"):
        prepare_run("scaffold", federations["mlp"], {"variate": "I"}, training=training(MAML))
