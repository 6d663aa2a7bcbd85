"""Compiled gradients against plain ones, on a convolution network small enough to compile in a test."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support import Workers, images, one_client
from torch import Tensor, nn

from fedflow.data import Dataset, Examples
from fedflow.errors import BadInput
from fedflow.local.client import Client
from fedflow.local.fast import compiled as compiling
from fedflow.local.fast.compiled import Gradient, compiled_gradient, pays, why_not
from fedflow.local.fast.pieces import Product
from fedflow.local.local_training import LocalTraining
from fedflow.local.samples import Batch
from fedflow.methods import build_method
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.simulation.compiling import with_compiled
from fedflow.simulation.federation import Federation
from fedflow.simulation.job import Job
from fedflow.simulation.loop import Simulation
from fedflow.simulation.settings import RunSettings

TRAINING = LocalTraining(epochs=2, batch_size=8, lr=0.05)
SIZES = (23, 8, 3)  # ragged last batches, and a client with no full batch at all


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(scope="module")
def federation(digits: Dataset) -> Federation:
    return images(digits, SIZES, "cnn", filters=(4,), hidden=(16,), feature_dropout=0.25, dropout=0.5)


@pytest.fixture(scope="module")
def gradient(federation: Federation, folder: Path) -> Gradient:
    """The one compilation that these tests share."""
    made = compiled_gradient(federation.model, federation.train, TRAINING, str(folder))
    return made


def client(federation: Federation, gradient: Gradient | None, k: int = 0, **training: Any) -> Client:
    federation.model.seed_noise(0)
    own = LocalTraining.parse(TRAINING.as_dict() | training)
    return one_client(federation, k, own, compiled=gradient)


def differ(one: Tensor, other: Tensor, start: Tensor) -> float:
    """The distance of two end points, relative to their distance from the start."""
    return float((one - other).norm() / (other - start).norm())


def test_compiled_steps_have_the_noise_of_plain_ones(federation: Federation, gradient: Gradient) -> None:
    """Two dropouts in two epochs of two full batches and a smaller one."""
    start, ends = federation.model.init(0), []
    for made, seed in ((gradient, 1), (gradient, 1), (None, 1), (gradient, 2)):
        one = client(federation, made)
        federation.model.seed_noise(seed)
        ends.append(one.fit(start=start))
    assert torch.equal(ends[0], ends[1])
    assert differ(ends[0], ends[2], start) < 1e-4
    assert differ(ends[3], ends[2], start) > 1e-2


def test_compiled_noise_is_that_of_the_client(federation, gradient, folder, tmp_path) -> None:
    """Whoever trains it, and after a resume."""
    job = Job(federation, build_method("scaffold"), TRAINING, seed=0)
    settings = RunSettings(rounds=3, participation=1.0, fine_tune=False, checkpoint_every=1)
    compiled, why = with_compiled(job, settings, "always", folder)
    assert why == "yes: engine.compile is always"
    runs = [Simulation(compiled, settings, Workers(n)) for n in (1, 2, 4)]
    interrupted, resumed = (Simulation(compiled, settings, checkpoints=tmp_path) for _ in range(2))
    next(interrupted.rounds())
    for each in (*runs, resumed):
        assert [report.replayed for report in each.rounds()] == [each is resumed, False, False]
        assert torch.equal(each.state.server.model, runs[0].state.server.model)


@pytest.mark.parametrize("k", range(3))
@pytest.mark.parametrize(
    "training", [{}, {"momentum": 0.9, "weight_decay": 0.01}, {"clip_norm": 0.5}, {"augment": "flip_crop"}]
)
def test_compiled_and_plain_steps_agree(federation, gradient, k, training) -> None:
    """To 1e-4 of the way that the steps go: single precision over a few steps."""
    start = federation.model.init(0)
    correction = federation.model.init(1) * 0.01
    ends, losses = [], []
    for made in (gradient, None):
        one = client(federation, made, k, **training)
        ends.append(one.fit(start=start, correction=correction))
        losses.append(one.train_loss)
    assert differ(*ends, start) < 1e-4
    torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-6)


@pytest.mark.full
def test_large_dense_layers_take_steps_along_products(digits: Dataset, folder: Path, monkeypatch) -> None:
    """Their gradients are not formed in plain SGD; with momentum, in methods and as a whole they are."""
    monkeypatch.setattr(compiling, "LARGE_PIECE", 1000)
    dense = images(digits, SIZES, "mlp", hidden=(40, 34))
    gradient = compiled_gradient(dense.model, dense.train, TRAINING, str(folder))
    assert gradient is not None
    w, (x, y) = (
        dense.model.init(0),
        (dense.train.inputs(torch.arange(8)), dense.train.targets(torch.arange(8))),
    )
    pieces, _ = gradient.pieces(w, x, y)
    assert [isinstance(piece, Product) for piece in pieces] == [True, False, True, False, False, False]
    expected = torch.func.grad(lambda v: dense.model.loss(dense.model.outputs(v, x), y))(w)
    torch.testing.assert_close(gradient(w, x, y)[0], expected)
    formed = []
    monkeypatch.setattr(Product, "value", property(lambda own: formed.append(own) or own.a @ own.b))
    for training, corrected in (
        ({}, False),
        ({"momentum": 0.9}, False),
        ({"weight_decay": 0.1}, False),
        ({}, True),
    ):
        correction = 0.01 * dense.model.init(1) if corrected else None
        formed.clear()
        ends = [
            client(dense, made, **training).fit(start=w, correction=correction) for made in (gradient, None)
        ]
        assert differ(*ends, w) < 1e-4
        assert bool(formed) == bool(training or corrected)


def test_a_methods_own_loss_agrees(federation: Federation, gradient: Gradient) -> None:
    start, ends = federation.model.init(0), []
    head = federation.model.head()
    for made in (gradient, None):
        one = client(federation, made, momentum=0.5)

        def loss(w: Tensor, batch: Batch, one: Client = one) -> Tensor:
            frozen = torch.where(head.mask, w, start)
            return 0.5 * one.loss(frozen, batch).square() + 0.1 * (w - start).square().sum()

        ends.append(one.fit(loss, start=start))
    assert differ(*ends, start) < 1e-4
    assert torch.equal(head.outside(ends[0]), head.outside(start))


def test_a_cost_of_the_loss_agrees(federation: Federation, gradient: Gradient) -> None:
    start = federation.model.init(0)
    ends = [client(federation, made).fit(start=start, cost=torch.sqrt) for made in (gradient, None)]
    assert differ(*ends, start) < 1e-4
    assert not torch.equal(ends[1], client(federation, None).fit(start=start))


def test_full_batches_are_compiled_and_smaller_ones_are_plain(federation, gradient, monkeypatch) -> None:
    seen: list[int] = []
    run = gradient._run
    monkeypatch.setattr(gradient, "_run", lambda w, x, y, *noise: seen.append(len(x)) or run(w, x, y, *noise))
    client(federation, gradient).fit(start=federation.model.init(0))
    assert seen == [8, 8] * TRAINING.epochs  # of 8, 8 and 7 samples
    start = federation.model.init(0)
    assert torch.equal(*(client(federation, made, 2).fit(start=start) for made in (gradient, None)))


def test_a_loss_is_differentiated_once_only(federation: Federation, gradient: Gradient) -> None:
    x, y = federation.train.inputs(torch.arange(8)), federation.train.targets(torch.arange(8))
    w = federation.model.init(0).requires_grad_()
    federation.model.seed_noise(0)
    (g,) = torch.autograd.grad(gradient.loss(w, x, y).square(), w, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        g.sum().backward()


def test_compiled_code_is_found_in_the_cache(
    federation: Federation, gradient: Gradient, folder: Path, monkeypatch
) -> None:
    """As in another process: it computes the same bits, without compilation."""
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*.so")}
    monkeypatch.setattr(compiling, "_compile", lambda *_: pytest.fail("it is compiled again"))
    again = compiling._compiled(federation.model, federation.train, 8, str(folder))
    assert before and before == {file: file.stat().st_mtime_ns for file in folder.rglob("*.so")}
    x, y = federation.train.inputs(torch.arange(8)), federation.train.targets(torch.arange(8))
    w = federation.model.init(3)
    found = []
    for each in (gradient, again):
        federation.model.seed_noise(0)
        found.append(each(w, x, y))
    assert all(map(torch.equal, *found))
    assert all(place.stat().st_mode & 0o077 == 0 for place in folder.iterdir() if place.is_dir())


@pytest.mark.slow
def test_compiled_code_reads_the_frozen_parameters_of_its_own_network(federation, folder: Path) -> None:
    """Networks that differ in them only share the code in the cache."""
    x, y = federation.train.inputs(torch.arange(8)), federation.train.targets(torch.arange(8))
    for seed in (1, 2):
        whole = FlatModel(partial(build, "mlp", federation.train.x.shape[1:], 10, hidden=(8,)))
        first = {"layers.1.weight": whole.views(whole.init(seed))["layers.1.weight"]}
        model = FlatModel(whole.factory, frozen=first)
        gradient = compiling._compiled(model, federation.train, 8, str(folder / "frozen"))
        assert gradient is not None
        leaf = model.init(0).requires_grad_()
        plain = model.loss(model.train_outputs(leaf, x)[0], y)
        (g,) = torch.autograd.grad(plain, leaf)
        found, loss = gradient(leaf, x, y)
        torch.testing.assert_close(found, g)
        torch.testing.assert_close(loss, plain.detach())


def test_without_a_compiler_steps_are_plain(federation, tmp_path, monkeypatch) -> None:
    def no_compiler(*_: Any) -> None:
        raise RuntimeError("no C++ compiler found\nat all")

    monkeypatch.setattr(compiling, "_compile", no_compiler)
    job = Job(federation, build_method("fedavg"), TRAINING, seed=0)
    with pytest.warns(UserWarning, match=r"not compiled.*\(RuntimeError: no C\+\+ compiler found\)"):
        after, why = with_compiled(job, RunSettings(), "always", tmp_path)
    assert after is job and why == "no: the compiler failed"


def test_an_impossible_compilation_is_refused(federation: Federation, tmp_path: Path) -> None:
    half = LocalTraining.parse(TRAINING.as_dict() | {"precision": "bf16"})
    job = Job(federation, build_method("fedavg"), half, seed=0)
    with pytest.raises(BadInput, match=r"engine.compile: 'always' .* auto or never here: .*bf16"):
        with_compiled(job, RunSettings(), "always", tmp_path)
    assert with_compiled(job, RunSettings(), "auto", tmp_path)[1].startswith("no: ")


def test_long_runs_compile_and_short_ones_do_not(federation, monkeypatch) -> None:
    few, _ = pays(federation.model, federation.train, TRAINING, 100)
    some, why = pays(federation.model, federation.train, TRAINING, 10_000)
    many, _ = pays(federation.model, federation.train, TRAINING, 10_000_000)
    assert not few and not some and many
    assert "10,000 local steps of" in why
    assert not pays(federation.model, federation.train, TRAINING, 10_000_000, networks=1000)[0]
    monkeypatch.setattr(compiling, "LARGE", 1e4)  # operations of a step
    assert not pays(federation.model, federation.train, TRAINING, 10_000_000)[0]


@pytest.mark.parametrize("positions, worth", [(4, True), (30, False)])
def test_long_sequences_stay_with_the_recurrent_operator(positions: int, worth: bool) -> None:
    model = FlatModel(partial(build, "char_lstm", (positions,), 5))
    tokens = torch.randint(0, 5, (8, positions), generator=torch.Generator().manual_seed(0))
    found, why = pays(model, Examples(tokens, tokens[:, 0]), TRAINING, 100_000_000)
    assert found == worth
    assert worth or why == "a recurrent network over 30 positions would be slower"


def test_obstacles_to_compilation_are_named(digits: Dataset) -> None:
    norm = images(digits, SIZES, "cnn", filters=(4,), batch_norm=True).model
    assert why_not(norm, TRAINING) == "the network has BatchNorm"
    untracked = FlatModel(lambda: nn.Sequential(nn.BatchNorm2d(1, track_running_stats=False), nn.Flatten()))
    assert why_not(untracked, TRAINING) == "the network has BatchNorm"
    plain = images(digits, SIZES).model
    assert "shape for every client" in str(why_not(plain, LocalTraining(batch_size=0)))
    assert why_not(plain, LocalTraining(precision="bf16")) == "local steps are in bf16"
    assert why_not(plain, TRAINING) is None


def test_a_compiled_run_is_another_experiment_and_repeats_itself(federation, gradient, folder) -> None:
    job = Job(federation, build_method("fedprox"), TRAINING, seed=0)
    settings = RunSettings(rounds=2, participation=1.0, fine_tune=False)
    there, why = with_compiled(job, settings, "always", folder)
    assert why == "yes: engine.compile is always"
    assert with_compiled(job, settings, "auto", folder)[1].startswith("no: 12 local steps")
    assert with_compiled(job, settings, "never", folder) == (job, "no: engine.compile is never")
    runs = [Simulation(j, settings) for j in (there, there, job)]
    one, again, plain = (([*run.rounds()], run.state.server.model)[1] for run in runs)
    assert runs[0].fingerprint == runs[1].fingerprint != runs[2].fingerprint
    assert torch.equal(one, again) and not torch.equal(one, plain)
    torch.testing.assert_close(one, plain, rtol=1e-4, atol=1e-5)
