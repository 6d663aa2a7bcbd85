"""Every method with a data curriculum: only the source of its batches changes."""

from typing import Any

import pytest
import torch
from profiles import abilities
from support import (
    SIZES,
    Ran,
    Workers,
    follow,
    forbid_fallback,
    images,
    one_client,
    prepare_run,
    same,
    suited,
    with_newcomers,
)

from fedflow.data import Dataset
from fedflow.local.extensions.curriculum import Curriculum
from fedflow.local.local_training import LocalTraining
from fedflow.methods import METHODS
from fedflow.simulation.federation import Federation
from fedflow.simulation.loop import Simulation

FULL_GRADIENTS = {"fedsgd", "qfedsgd"}
SGD: dict[str, Any] = {"epochs": 3, "batch_size": 8, "lr": 0.1, "momentum": 0.5}
HALF: dict[str, Any] = {"participation": 0.5, "rounds": 3}
LARGEST = SIZES.index(max(SIZES))
HARD: dict[str, Any] = {"score": "both", "order": "anti"}
QUICK: dict[str, dict[str, Any]] = {"flt": {"encoder": "pixels"}}
ADAPTING = {"pavg", "pfldyn", "pflscaf"}  # their support batches have samples of all difficulties
NO_CLASSIFIER = {"fedcgan", "fedcvae"}  # of clients, by which samples are sorted
hosts = pytest.mark.parametrize("name", sorted(METHODS.keys() - FULL_GRADIENTS - ADAPTING - NO_CLASSIFIER))


@pytest.fixture(scope="module")
def federation(digits: Dataset) -> Federation:
    """In float64, so that rounding does not change the order of samples."""
    return images(digits, dtype=torch.float64)


def prepare(name: str, federation: Federation, curriculum: Any, **settings: Any) -> Simulation:
    training = SGD | {"curriculum": curriculum}
    return prepare_run(name, suited(name, federation), QUICK.get(name), training=training, **HALF | settings)


def curricular(*what: Any, **settings: Any) -> Ran:
    return follow(prepare(*what, **settings))


def traffic(ran: Ran) -> list[list[float]]:
    return [ran.values("bytes_down"), ran.values("bytes_up")]


@pytest.mark.by_profile(kind=abilities)
@pytest.mark.parametrize("cohort", ["vmap", pytest.param("loop", marks=pytest.mark.full)], indirect=True)
@hosts
def test_neutral_values_are_the_method_bit_for_bit(name: str, federation: Federation, cohort: str) -> None:
    plain, neutral = (
        curricular(name, federation, curriculum, cohort=cohort, rounds=2)
        for curriculum in (None, HARD | {"b": 1})
    )
    assert same(plain.state(), neutral.state())
    for column in ("gradients", "clock", "train_loss"):
        assert plain.values(column) == neutral.values(column)
    assert traffic(plain) == traffic(neutral)


@pytest.mark.by_profile(kind=abilities)
@hosts
def test_curricula(name: str, federation: Federation, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loop and cohorts agree, a killed run resumes, and the time of scoring counts."""
    scored, difficulty = [], Curriculum.difficulty
    monkeypatch.setattr(Curriculum, "difficulty", lambda *a: scored.append(a) or difficulty(*a))
    simulation = prepare(name, federation, HARD, executor=Workers(2))
    simulation.state.onboarded = simulation.onboard(range(simulation.clients))
    scored.clear()
    loop = follow(simulation)
    method, server = simulation.job.method, simulation.state.server
    works = [method.work(simulation.round(t, "test"), server, 1, 1) for t in (1, 2, 3)]
    streams = len(method.streams(simulation.job.training))
    fits = [streams if passes.fits is None else passes.fits for passes in works]
    assert len(scored) == sum(n * len(report.cohort) for n, report in zip(fits, loop.rounds))
    next(rounds := prepare(name, federation, HARD, checkpoints=tmp_path, checkpoint_every=2).rounds())
    next(rounds)
    resumed = follow(prepare(name, federation, HARD, checkpoints=tmp_path, checkpoint_every=2))
    assert [report.replayed for report in resumed.rounds] == [True, True, False]
    assert same(resumed.state(), loop.state())
    forbid_fallback(monkeypatch)
    vmapped = curricular(name, federation, HARD, cohort="vmap")
    torch.testing.assert_close(vmapped.state(), loop.state(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("order", ["curriculum", "anti", "random", "vanilla"])
@pytest.mark.parametrize("name", ["fedavg", "fedprox", "scaffold", "fednova"])
def test_messages_do_not_change(name: str, order: str, federation: Federation) -> None:
    plain, sorted_ = (
        curricular(name, federation, curriculum, rounds=2)
        for curriculum in (None, {"order": order, "score": "both"})
    )
    assert traffic(plain) == traffic(sorted_)
    assert same(plain.state(), sorted_.state()) is (order == "vanilla")


@pytest.mark.parametrize(
    ("curriculum", "passes"),
    [
        ({}, 1),
        ({"score": "local_pred"}, 1),
        (HARD, 2),
        ({"order": "random"}, 0),
        (HARD | {"a": 0}, 0),
        ({"mode": "lazy_epoch"}, 1),
    ],
)
def test_scoring_and_steps_take_simulated_time(
    curriculum: dict[str, Any], passes: int, federation: Federation
) -> None:
    """A pass without gradients is a third of an epoch; a step costs the same, however small its batch."""
    given = {"given": [[0.0, 1.0, 0.0]] * 8}
    ran = curricular("fedavg", federation, curriculum, participation=1.0, rounds=1, timing=given)
    training, sizes = ran.simulation.job.training, ran.simulation.sizes.tolist()
    loads = [training.workload(n) for n in sizes]
    epochs = [load.steps / training.batches(n) for load, n in zip(loads, sizes)]
    assert ran.values("clock") == [pytest.approx(max(epochs) + passes / 3)]
    assert ran.values("gradients") == [sum(load.samples for load in loads)]
    if curriculum.get("mode") != "lazy_epoch":
        assert set(epochs) == {3}


def test_lazy_epochs_change_the_steps_of_fednova(federation: Federation) -> None:
    """Its tau_k are the steps that clients really take."""
    counts = []
    for order in ("curriculum", "vanilla"):
        training = LocalTraining.parse(SGD | {"curriculum": {"mode": "lazy_epoch", "order": order}})
        client = one_client(federation, LARGEST, training)
        assert int(client.steps()) == training.workload(max(SIZES)).steps
        counts.append(int(client.steps()))
    assert counts[0] != counts[1]


def test_fine_tuning_has_no_curriculum(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = curricular("fedavg", federation, HARD, fine_tune=True)
    monkeypatch.delattr(Curriculum, "difficulty")
    assert ran.outcome().metrics["tuned_accuracy"] > 0


def test_newcomers_have_no_last_model(federation: Federation) -> None:
    """FedEff's clients train when they are onboarded."""
    joined = with_newcomers(federation, 2)
    ran = curricular("fedeff", joined, HARD, participation=1.0)
    assert ran.outcome().metrics["newcomers"] == 2
