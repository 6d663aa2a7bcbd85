"""Side losses: their worked numbers, what they reduce to, and what they leave alone."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import (
    Normed,
    Workers,
    consecutive,
    forbid_fallback,
    images,
    one_client,
    prepare_run,
    quadratics,
    refused,
    run,
    same,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from fedflow.config import load_params
from fedflow.data import Dataset, Examples
from fedflow.local.client import Client
from fedflow.local.drawing import draw_schedule
from fedflow.local.extensions.augmentation import augmented
from fedflow.local.fast.compiled import why_not
from fedflow.local.local_training import LocalTraining
from fedflow.local.samples import Batch
from fedflow.local.teacher import Teacher
from fedflow.local.trainer import Trainer
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.simulation.federation import Federation

ROOT = Path(__file__).parents[2]
NAMES = ("robust", "distil", "both")
SGD: dict[str, Any] = {"epochs": 2, "batch_size": 8, "lr": 0.1, "momentum": 0.5, "augment": "flip_crop"}
BOTH: dict[str, Any] = {"name": "both", "teacher": "large"}


def objective(name: str, **options: Any) -> dict[str, Any]:
    return {"name": name} | ({} if name == "robust" else {"teacher": "large"}) | options


def training(name: str | None, **options: Any) -> dict[str, Any]:
    return SGD | ({} if name is None else {"objective": objective(name, **options)})


def taught(federation: Federation) -> Federation:
    """The same, with its own random network as teacher."""
    example, dtype = tuple(federation.train.x.shape[1:]), federation.model.dtype
    model = FlatModel(partial(build, "mlp", example, 10, hidden=(12, 8)), dtype=dtype)
    return replace(federation, inputs={"teacher": Teacher(model, 3 * model.init(1))})


@pytest.fixture(scope="module")
def ragged(digits: Dataset) -> Federation:
    return taught(images(digits, (12, 7, 20, 33, 13, 5)))


# Worked numbers


def by_hand(name: str, **options: Any) -> Client:
    """A client whose logits are its inputs, and whose teacher answers 3, 0, -1."""
    model = FlatModel(partial(nn.Linear, 3, 3), dtype=torch.float64)
    answers = torch.cat([torch.zeros(9), torch.tensor([3.0, 0, -1])]).double()
    x = Examples(torch.zeros(3, 3, dtype=torch.float64), torch.zeros(3, dtype=torch.int64))
    federation = Federation(model, x, x, consecutive((3,)), inputs={"teacher": Teacher(model, answers)})
    return one_client(federation, training=LocalTraining.parse(training(name, **options)))


IDENTITY = torch.cat([torch.eye(3).flatten(), torch.zeros(3)]).double()
FIRST, SECOND = ([[2.0, 1, 0]], [[1.0, 1.5, 0]])


def example(first: list = FIRST, second: list | None = SECOND) -> Batch:
    x, other = (None if v is None else torch.tensor(v).double() for v in (first, second))
    assert x is not None
    return Batch(x, torch.zeros(len(x), dtype=torch.int64), extra={} if other is None else {"other": other})


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("robust", {}, 0.312911),
        ("distil", {}, 0.487480),
        ("both", {}, 0.683873),
        ("robust", {"alpha": 0}, 0.218215),
        ("distil", {"alpha": 0}, 0.496355),
        ("robust", {"alpha": 0, "symmetric": True}, (0.218215 + 0.215212) / 2),
        ("robust", {"alpha": 0, "stop_gradient": True}, 0.218215),
        *((name, {"alpha": 1}, 0.407606) for name in NAMES),
    ],
)
def test_the_worked_numbers(name: str, options: dict, expected: float) -> None:
    """Equations 7.2 to 7.4; KL already holds tau^2 = 12.25 (erratum M7)."""
    assert float(by_hand(name, **options).loss(IDENTITY, example())) == pytest.approx(expected, abs=6e-7)


def test_the_other_order_of_the_views() -> None:
    swapped, symmetric = example(SECOND, FIRST), by_hand("robust", alpha=0, symmetric=True)
    assert float(by_hand("robust", alpha=0).loss(IDENTITY, swapped)) == pytest.approx(0.215212, abs=6e-7)
    assert torch.equal(symmetric.loss(IDENTITY, swapped), symmetric.loss(IDENTITY, example()))


def by_torch(logits: Tensor, other: Tensor, teacher: Tensor, y: Tensor, **options: Any) -> Tensor:
    """Equation 7.4 with PyTorch's own divergence of batches."""

    def kl(p: Tensor, q: Tensor) -> Tensor:
        p, q = (F.log_softmax(v / 3.5, -1) for v in (p, q))
        return 3.5**2 * F.kl_div(q, p, reduction="batchmean", log_target=True)

    target = logits.detach() if options.get("stop_gradient") else logits
    rob = kl(target, other)
    if options.get("symmetric"):
        rob = (rob + kl(other.detach() if options.get("stop_gradient") else other, logits)) / 2
    return 0.1 * F.cross_entropy(logits, y) + 0.9 * kl(teacher, logits) + 0.9 * rob


@pytest.mark.parametrize(
    "options", [{}, {"stop_gradient": True}, {"symmetric": True}, {"stop_gradient": True, "symmetric": True}]
)
def test_gradients_are_those_of_plain_pytorch(ragged: Federation, options: dict) -> None:
    client = one_client(ragged, 2, LocalTraining.parse(training("both", **options)))
    w, (x, y) = ragged.model.init(0), client.data()
    teacher = ragged.inputs["teacher"].outputs(x)
    found = client.gradient(w, Batch(x, y, extra={"other": x.flip(-1)}))
    leaf = w.clone().requires_grad_()
    outputs = (ragged.model.outputs(leaf, view) for view in (x, x.flip(-1)))
    (expected,) = torch.autograd.grad(by_torch(*outputs, teacher, y, **options), leaf)
    torch.testing.assert_close(found.gradient, expected, rtol=1e-4, atol=1e-6)
    assert found.loss == ragged.model.loss(ragged.model.outputs(w, x), y)  # recorded: the data loss


def test_two_equal_views_and_a_teacher_that_agrees_cost_nothing(ragged: Federation) -> None:
    federation = replace(ragged, inputs={"teacher": Teacher(ragged.model, w := ragged.model.init(0))})
    for name in NAMES:
        client = one_client(federation, 2, LocalTraining.parse(training(name, alpha=0)))
        x, y = client.data()
        batch = Batch(x, y, extra={"other": x})
        assert abs(client.loss(w, batch)) < 1e-7
        assert client.gradient(w, batch).gradient.norm() < 1e-6


# Reductions


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("method", ["fedavg", "feddyn"])
def test_with_alpha_1_it_is_cross_entropy_bit_for_bit(
    ragged: Federation, name: str, method: str, cohort: str
) -> None:
    """The first views, and batches, are those of a run with one view."""
    side, plain = (
        run(method, ragged, cohort=cohort, rounds=2, participation=0.5, fine_tune=True, training=settings)
        for settings in (training(name, alpha=1), training(None))
    )
    assert same(side.state(), plain.state())
    assert side.values("train_loss") == plain.values("train_loss")
    assert np.array_equal(
        side.outcome().scores.more["tuned_accuracy"], plain.outcome().scores.more["tuned_accuracy"]
    )


@pytest.mark.parametrize("name", NAMES)
def test_with_alpha_1_dropout_draws_the_noise_of_cross_entropy(digits: Dataset, name: str) -> None:
    federation = taught(images(digits, (12, 7, 20), dropout=0.5))
    side, plain = (
        run("fedavg", federation, rounds=2, training=settings)
        for settings in (training(name, alpha=1), training(None))
    )
    assert same(side.state(), plain.state())


def test_feddyn_without_its_terms_is_fedavg(ragged: Federation) -> None:
    """In the first round, where h = g_k = 0, a weight of 1e-30 changes nothing."""
    dyn = run("feddyn", ragged, {"alpha": 1e-30}, training=training("both"), rounds=1)
    avg = run("fedavg", ragged, {"weighting": "uniform"}, training=training("both"), rounds=1)
    assert torch.equal(dyn.servers[0]["mean"], avg.servers[0]["model"])


def test_feddyn_hits_the_optimum_in_one_round_and_stays(cohort: str) -> None:
    """F_k(v) = (v - c_k)^2 / 2, c = 0, 4; one step of 1/2 is exact for alpha = 1."""
    exact: dict[str, Any] = {"training": {"epochs": 1, "lr": 0.5}, "cohort": cohort}
    ran = run("feddyn", quadratics(((1, 0), (1, 4)), (10, 10), start=0), {"alpha": 1}, **exact)
    assert ran.server("model") == [2, 2, 2] and ran.server("h") == [-1, -0.5, -0.25]
    assert ran.kept("g") == [[0, -2], [1, -2], [1.5, -2]]


# In a run


@pytest.mark.parametrize("name", NAMES)
def test_workers_and_a_resume_do_not_change_a_bit(ragged: Federation, name: str, tmp_path: Any) -> None:
    settings: dict[str, Any] = {"training": training(name), "participation": 0.5, "rounds": 2}
    alone = run("feddyn", ragged, **settings)
    assert same(run("feddyn", ragged, **settings, executor=Workers(3)).state(), alone.state())
    kept = partial(prepare_run, "feddyn", ragged, **settings, checkpoints=tmp_path, checkpoint_every=1)
    next(kept().rounds())
    resumed = kept()
    list(resumed.rounds())
    assert torch.equal(resumed.state.server.model, alone.servers[-1]["model"])


@pytest.mark.parametrize("kind", ["flip_crop", "flip_crop_cutout"])
@pytest.mark.parametrize("how", ["held", "gathered"])
def test_a_step_gets_two_independent_views(
    padded: Dataset, how: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "gathered":  # as for more images than are kept normalized
        monkeypatch.setattr("fedflow.local.trainer.HELD", 0)
    federation, seen = images(padded, (12, 7)), []
    settings = LocalTraining.parse(training("robust") | {"augment": kind})

    def step(now: tuple[Tensor], batch: Batch) -> tuple[tuple[Tensor], Tensor]:
        seen.append(batch)
        return now, torch.zeros(())

    one_client(federation, 0, settings).run_steps(step, (torch.zeros(()),))
    x = federation.train.x[torch.as_tensor(federation.partition.train(0))]
    drawn = draw_schedule(settings, 12, 2, 0, "batches", 1, 0)
    plain = draw_schedule(LocalTraining.parse(SGD | {"augment": kind}), 12, 2, 0, "batches", 1, 0)
    views, first = drawn.extra["views"].values, plain.extra["views"].values
    assert torch.equal(drawn.positions, plain.positions) and torch.equal(views[..., :1, :], first)
    assert not torch.equal(views[..., 0, :], views[..., 1, :])
    for batch, (rows, _, extra) in zip(seen, drawn.batches(), strict=True):
        first, second = (augmented(x[rows], view) for view in extra["views"].unbind(-2))
        assert torch.equal(batch.x, first) and torch.equal(batch.extra["other"], second)


@pytest.mark.parametrize("name", NAMES)
def test_only_chosen_samples_count(ragged: Federation, name: str) -> None:
    client = one_client(ragged, 2, LocalTraining.parse(training(name)))
    w, (x, y) = ragged.model.init(0), client.data()
    batch, chosen = Batch(x, y, extra={"other": x.flip(-1)}), torch.arange(20) % 3 == 0
    part = client.loss(w, Batch(x[chosen], y[chosen], extra={"other": batch.extra["other"][chosen]}))
    torch.testing.assert_close(client.loss(w, batch.only(chosen)), part)


def test_losses_scores_and_fine_tuning_keep_the_data_loss(ragged: Federation) -> None:
    """In a run whose global model does not move."""
    still: dict[str, Any] = {"hyper": {"server_lr": 1e-30}, "fine_tune": True}
    plain, side = (run("fedavg", ragged, training=training(name), **still) for name in (None, "both"))
    for name in ("local_loss", "local_accuracy", "tuned_accuracy"):
        assert np.array_equal(*(ran.outcome().scores.column(name) for ran in (plain, side)))
    w = ragged.model.init(0)
    clients = [one_client(ragged, 2, LocalTraining.parse(training(name))) for name in (None, "both")]
    for what in ("losses", "full_loss"):
        assert torch.equal(*(getattr(client, what)(w) for client in clients))


def test_a_full_gradient_is_that_of_distillation(ragged: Federation) -> None:
    client, w = one_client(ragged, 2, LocalTraining.parse(training("distil", alpha=0))), ragged.model.init(0)
    x = client.data()[0]
    leaf = w.clone().requires_grad_()
    p, q = (
        (v / 3.5).log_softmax(-1)
        for v in (ragged.inputs["teacher"].outputs(x), ragged.model.outputs(leaf, x))
    )
    kl = 3.5**2 * F.kl_div(q, p, reduction="batchmean", log_target=True)
    torch.testing.assert_close(client.full_gradient(w), *torch.autograd.grad(kl, leaf), rtol=1e-4, atol=1e-6)


def test_a_central_training_has_objectives_too(digits: Dataset, ragged: Federation) -> None:
    settings = LocalTraining.parse(training("both") | {"batch_size": 100, "epochs": 1})
    made = partial(Trainer.central, ragged.model, digits.test, settings)
    trainer = made(np.random.default_rng(0), inputs=ragged.inputs)
    w = ragged.model.init(0)
    plain = Trainer.central(
        ragged.model,
        digits.test,
        LocalTraining.parse(SGD | {"batch_size": 100, "epochs": 1}),
        np.random.default_rng(0),
    )
    assert not torch.equal(trainer.fit(start=w), plain.fit(start=w))
    with refused("training.objective.teacher: 'large' .* a trained network of central"):
        made(np.random.default_rng(0))


def test_an_objective_is_not_compiled(ragged: Federation) -> None:
    reasons = [why_not(ragged.model, LocalTraining.parse(training(name))) for name in (None, "distil")]
    assert reasons == [None, "clients minimize side losses"]


@pytest.mark.parametrize(
    ("name", "units"),
    [
        pytest.param(None, 3, marks=pytest.mark.full),
        ("robust", 6),
        pytest.param("distil", 5.1, marks=pytest.mark.full),
        ("both", 8.1),
    ],
)
def test_the_relative_cost_of_a_step(name: str | None, units: float) -> None:
    """In forward passes of a PreActResNet-18 whose teacher has 34 layers, by floating-point operations."""
    student, teacher = (
        FlatModel(partial(build, f"preact_resnet{depth}_gn", (3, 8, 8), 100)) for depth in (18, 34)
    )
    x = Examples(torch.randn(2, 3, 8, 8), torch.tensor([3, 7]))
    federation = Federation(
        student, x, x, consecutive((2,)), inputs={"teacher": Teacher(teacher, teacher.init(0))}
    )
    client = one_client(federation, training=LocalTraining.parse(training(name)))
    w, batch = student.init(0), Batch(x.x, x.y, extra={"other": x.x})
    counts = []
    for work in (partial(student.outputs, w, x.x), partial(client.gradient, w, batch)):
        with FlopCounterMode(display=False) as counter:
            work()
        counts.append(counter.get_total_flops())
    assert counts[1] / counts[0] == pytest.approx(units, rel=0.02)


def test_they_go_with_a_curriculum_and_adam(ragged: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Views belong to places in a batch, and samples are sorted by their data loss."""
    settings = training("both") | {
        "momentum": 0,
        "optimizer": "adam",
        "lr": 0.01,
        "curriculum": {"a": 0.4, "b": 0.5},
    }
    loop, plain = (
        run("fedavg", ragged, training=each) for each in (settings, settings | {"curriculum": None})
    )
    forbid_fallback(monkeypatch)
    vmapped = run("fedavg", ragged, training=settings, cohort="vmap")
    torch.testing.assert_close(vmapped.state(), loop.state(), rtol=0, atol=1e-4)
    assert not same(loop.state(), plain.state())


def test_statistics_of_batch_norm_follow_the_first_view(ragged: Federation) -> None:
    model = FlatModel(Normed)
    client = one_client(replace(ragged, model=model), 2, LocalTraining.parse(training("both")))
    w, (x, y) = model.init(0), client.data()
    found = client.gradient(w, Batch(x, y, extra={"other": x.flip(-1)}))
    assert torch.equal(found.buffers, model.train_outputs(w, x)[1])


def test_a_new_thread_trains_cohorts(digits: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """The teacher's modules, in float64 here, cannot be cast within a transform."""
    federation = taught(images(digits, (12, 7), dtype=torch.float64))
    forbid_fallback(monkeypatch)
    simulation = prepare_run("fedavg", federation, cohort="vmap", training=training("both"), rounds=1)
    with ThreadPoolExecutor(1) as thread:
        (report,) = thread.submit(lambda: list(simulation.rounds())).result()
    assert report.values["train_loss"] > 0


# Refusals


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "training.objective.name: missing; expected one of robust, distil, both"),
        ({"name": "ce"}, "training.objective.name: 'ce' .* one of both, distil, robust"),
        ({"name": "distil"}, "training.objective.teacher: None .* a network of central, as distil needs one"),
        ({"name": "both"}, "training.objective.teacher: None .* a network of central, as both needs one"),
        ({"name": "robust", "teacher": "large"}, "training.objective.teacher: 'large' .* null with robust"),
        (BOTH | {"alpha": 1.5}, "training.objective.alpha: 1.5 .* a number >= 0 and <= 1"),
        (BOTH | {"tau": 0}, "training.objective.tau: 0.* a number > 0"),
        ({"name": "distil", "teacher": "a", "symmetric": True}, "symmetric: True .* false with distil"),
        (BOTH | {"views": 2}, "training.objective.views"),
    ],
)
def test_bad_objectives_are_refused(settings: dict, message: str) -> None:
    with refused(message):
        LocalTraining.parse(SGD | {"objective": settings})


def test_what_cannot_have_side_losses_is_refused(ragged: Federation, digits: Dataset) -> None:
    with refused("training.augment: 'none' .* flip_crop or flip_crop_cutout, as robust compares two"):
        LocalTraining.parse({"objective": objective("robust")})
    with refused("methods.feddyn.training.objective.teacher: None"):
        load_params(ROOT / "params.yaml", ["methods.feddyn.training.objective={name: distil}"])
    with refused("training.augment: 'flip_crop' .* not images"):
        prepare_run("fedavg", quadratics(), training=training("robust"))
    with refused("training.objective: 'distil' .* null, as the samples do not have one label each"):
        prepare_run("fedavg", quadratics(), training={"objective": objective("distil")})
    with refused("training.objective.teacher: 'large' .* a trained network of central"):
        prepare_run("fedavg", replace(ragged, inputs={}), training=training("both"))
    other = FlatModel(partial(build, "mlp", (1, 8, 8), 7))
    with refused("training.objective.teacher: 'large' .* a network with 10 outputs as the clients', not 7"):
        federation = replace(ragged, inputs={"teacher": Teacher(other, other.init(0))})
        prepare_run("fedavg", federation, training=training("distil"))
    with refused("method.variate: 'I' .* II: over all samples, the gradient of an objective with two views"):
        prepare_run("scaffold", ragged, {"variate": "I"}, training=training("robust"))
    prepare_run("scaffold", ragged, {"variate": "I"}, training=training("distil"))
