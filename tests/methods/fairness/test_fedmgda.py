"""FedMGDA+: its quadratic program, worked numbers, and FedAvg without it."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from lines import ONE_STEP, lines
from support import quadratics, run

from fedflow.methods.fairness.fedmgda import least_norm
from fedflow.simulation.federation import Federation


def at(degrees: float, length: float = 1) -> tuple[float, float]:
    angle = np.deg2rad(degrees)
    return length * np.cos(angle), length * np.sin(angle)


ANGLES = (at(0, 3), at(10), at(100, 0.5))
PROGRAMMES = [  # updates, options, weights, squared length
    (ANGLES, {"eps": 1}, (0.5, 0, 0.5), 0.4131759112),
    (ANGLES, {"eps": 0.2}, (0.3773933579, 0.1333333333, 0.4892733087), 0.4345734530),
    (ANGLES, {"eps": 0.05}, (0.3333333333, 0.2833333333, 0.3833333333), 0.4799758191),
    (ANGLES, {"eps": 0}, (1 / 3, 1 / 3, 1 / 3), 0.5135910167),
    (ANGLES, {"eps": 1, "normalize": False}, (0, 0.2, 0.8), 0.2),
    ((at(0, 3), at(90)), {"eps": 1, "normalize": False}, (0.1, 0.9), 0.9),
    ((at(0, 3), at(77)), {"eps": 1}, (0.5, 0.5), (1 + np.cos(np.deg2rad(77))) / 2),
    (((1, 0), (0, 1), (-0.6, 0.8)), {"eps": 1}, (0.5, 0, 0.5), 0.2),
    (((1, 0), (0, 1), (-0.6, 0.8)), {"eps": 0.1}, (0.433333, 0.233333, 0.333333), 0.233333**2 + 0.5**2),
]


@pytest.mark.parametrize(("updates", "hyper", "weights", "squared"), PROGRAMMES)
def test_fedmgda(updates: tuple, hyper: dict, weights: tuple, squared: float, cohort: str) -> None:
    clients = lines((1,) * len(updates), updates)
    ran = run("fedmgda", clients, hyper, rounds=1, training=ONE_STEP, cohort=cohort)
    d = 1 - np.array(ran.server("model")[0])
    assert d @ d == pytest.approx(squared, abs=1e-6)
    units = [np.array(u) / (np.linalg.norm(u) if hyper.get("normalize", True) else 1) for u in updates]
    assert d == pytest.approx(sum(x * u for x, u in zip(weights, units)), abs=1e-6)


def test_the_common_direction_of_a_worked_example() -> None:
    ran = run("fedmgda", lines((1,) * 3, ANGLES), {"eps": 1}, rounds=1, training=ONE_STEP)
    assert 1 - np.array(ran.server("model")[0]) == pytest.approx([0.4131759112, 0.4924038765], abs=1e-9)


@example(seed=150, clients=7, eps=0.5)  # takes more than 7 steps
@given(seed=st.integers(0, 10**6), clients=st.integers(1, 12), eps=st.sampled_from([0.01, 0.1, 0.5, 1]))
def test_the_quadratic_program_is_solved(seed: int, clients: int, eps: float) -> None:
    """Feasible; moving weight between two clients, where bounds allow it, does not improve it."""
    rng = np.random.default_rng(seed)
    u = rng.normal(size=(clients, 6)) + rng.normal(size=6)
    u /= np.linalg.norm(u, axis=1)[:, None]
    gram, prior = u @ u.T, rng.dirichlet(np.ones(clients))
    x = least_norm(gram, prior, eps)
    assert x.sum() == pytest.approx(1, abs=1e-12)
    low, high = np.maximum(prior - eps, 0), np.minimum(prior + eps, 1)
    assert (x >= low - 1e-12).all() and (x <= high + 1e-12).all()
    slope = gram @ x
    takes, gives = slope[x < high - 1e-9], slope[x > low + 1e-9]
    assert takes.min(initial=np.inf) >= gives.max(initial=-np.inf) - 1e-9
    if eps == 1:  # a descent direction for every client
        assert (u @ (x @ u) >= x @ gram @ x - 1e-9).all()


def test_equal_clients_share_their_weight() -> None:
    """The program then has many solutions; the nearest to the prior is taken."""
    x = least_norm(np.ones((4, 4)), np.array([0.1, 0.2, 0.3, 0.4]), 0.5)
    assert x == pytest.approx([0.1, 0.2, 0.3, 0.4], abs=1e-5)


@pytest.mark.parametrize(("eps", "share"), [(0, 1 / 3), (0.1, 0.5667 / 2), (0.5, 1 / 12), (1, 0)])
@pytest.mark.parametrize("normalize", [True, False])
def test_a_client_that_did_not_move_keeps_its_weight(
    eps: float, share: float, normalize: bool, cohort: str
) -> None:
    """Its vector is 0: with eps = 1 it is the shortest of all, and the model stays."""
    clients = lines((1,) * 3, ((1, 0), (0, 0), (0, 1)))
    hyper = {"eps": eps, "normalize": normalize}
    ran = run("fedmgda", clients, hyper, rounds=1, training=ONE_STEP, cohort=cohort)
    assert ran.server("model") == [pytest.approx([1 - share, 1 - share], abs=1e-4 if eps == 0.1 else 1e-7)]
    assert ran.values("method/unmoved") == [1]


def test_a_model_that_fits_all_clients_does_not_change() -> None:
    assert run("fedmgda", quadratics(((1, 0.5), (2, 0.5)))).server("model") == [0.5] * 3


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_fedmgda_without_freedom_is_fedavg(federation: Federation, weighting: str, cohort: str) -> None:
    settings: dict[str, Any] = {"participation": 0.5, "training": {"batch_size": 8}, "cohort": cohort}
    hyper = {"eps": 0, "normalize": False, "weighting": weighting}
    ran = run("fedmgda", federation, hyper, **settings)
    plain = run("fedavg", federation, {"weighting": weighting}, **settings)
    torch.testing.assert_close(ran.servers[-1]["model"], plain.servers[-1]["model"], rtol=0, atol=1e-6)
