"""Every method with a data curriculum: only the source of its batches changes."""

from typing import Any

import pytest
import torch
from support import Ran, Workers, follow, forbid_fallback, images, prepare_run, same

from fedflow.data import Dataset
from fedflow.local.curriculum import Curriculum
from fedflow.methods import METHODS
from fedflow.simulation.federation import Federation
from fedflow.simulation.loop import Simulation

FULL_GRADIENTS = {"fedsgd", "qfedsgd"}
SGD: dict[str, Any] = {"epochs": 3, "batch_size": 8, "lr": 0.1, "momentum": 0.5}
HALF: dict[str, Any] = {"participation": 0.5, "rounds": 3}
HARD = {"score": "both", "order": "anti"}
QUICK: dict[str, dict[str, Any]] = {"flt": {"encoder": "pixels"}}
hosts = pytest.mark.parametrize("name", [name for name in METHODS if name not in FULL_GRADIENTS])


@pytest.fixture(scope="module")
def federation(digits: Dataset) -> Federation:
    """In float64, so that rounding does not change the order of samples."""
    return images(digits, dtype=torch.float64)


def prepare(name: str, federation: Federation, curriculum: Any, **settings: Any) -> Simulation:
    training = SGD | {"curriculum": curriculum}
    return prepare_run(name, federation, QUICK.get(name), training=training, **HALF | settings)


def curricular(*what: Any, **settings: Any) -> Ran:
    return follow(prepare(*what, **settings))


def traffic(ran: Ran) -> list[list[float]]:
    return [ran.values("bytes_down"), ran.values("bytes_up")]


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


@hosts
def test_curricula(name: str, federation: Federation, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loop and cohorts agree, a killed run resumes, and the time of scoring counts."""
    scored, difficulty = [], Curriculum.difficulty
    monkeypatch.setattr(Curriculum, "difficulty", lambda *a: scored.append(a) or difficulty(*a))
    simulation = prepare(name, federation, HARD, executor=Workers(2))
    simulation.state.onboarded = simulation.onboard(range(simulation.clients))
    scored.clear()
    loop = follow(simulation)
    fits = [
        simulation.job.method.fits(simulation.round(t, "test"), simulation.job.training) for t in (1, 2, 3)
    ]
    assert len(scored) == sum(n * len(report.cohort) for n, report in zip(fits, loop.rounds))
    next(rounds := prepare(name, federation, HARD, checkpoints=tmp_path, checkpoint_every=2).rounds())
    next(rounds)
    resumed = follow(prepare(name, federation, HARD, checkpoints=tmp_path, checkpoint_every=2))
    assert [report.replayed for report in resumed.rounds] == [True, True, False]
    assert same(resumed.state(), loop.state())
    forbid_fallback(monkeypatch)
    vmapped = curricular(name, federation, HARD, cohort="vmap")
    for vector, value in loop.state().items():
        torch.testing.assert_close(vmapped.state()[vector], value, rtol=0, atol=1e-9, msg=vector)
