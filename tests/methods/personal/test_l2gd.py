"""L2GD with given coins on the test-bed T1, the objective that it minimizes, and its limits."""

from typing import Any

import numpy as np
import pytest
import torch
from support import Ran, follow, near, prepare_run, quadratics, run

from fedflow.methods import build_method
from fedflow.methods.method import Method
from fedflow.methods.personal.l2gd import L2GD
from fedflow.simulation.federation import Federation

T1 = {"lam": 1, "p": 0.4}
ETA = 0.2 / (2 * 0.6)  # alpha / (n (1 - p)) with alpha = 0.2, so that theta = 0.25


def tossed(hyper: dict, numbers: list[tuple[int, int]]) -> Method:
    """L2GD with given numbers of ones and zeros."""
    given = iter(numbers)

    class Tossed(L2GD):
        def toss(self, rng: np.random.Generator) -> tuple[int, int]:
            return next(given)

    return Tossed.parse(hyper)


def periods(numbers: list[tuple[int, int]], hyper: dict, federation: Federation, **settings: Any) -> Ran:
    """Rounds of ``zeros`` local steps each, after the ``ones`` of the round before."""
    (_, zeros), *later = numbers
    simulation = prepare_run(tossed(hyper, [*later, (1, 1)]), federation, rounds=len(numbers), **settings)
    simulation.state.server.zeros.fill_(zeros)
    return follow(simulation)


def served(ran: Ran) -> list[float]:
    return [float(w) for w in ran.outcome().models.values()]


COINS = [  # models after each coin of 0, 0, 1, 1, 0, 1
    (0.5833333333, 0),
    (0.6527777778, -0.3333333333),
    (0.5295138889, -0.2100694444),
    (0.4370659722, -0.1176215278),
    (0.5308883102, -0.4117476852),
    (0.4130588108, -0.2939181858),
]


def test_l2gd(cohort: str) -> None:
    """A period of two zeros and two ones, then one of each: two exchanges."""
    more: dict[str, Any] = {"training": {"lr": ETA}, "cohort": cohort}
    assert periods([(0, 1)], T1, quadratics(), **more).kept("model") == near([list(COINS[0])])
    ran = periods([(0, 2), (2, 1)], T1, quadratics(), **more)
    assert ran.kept("model") == near([list(COINS[1]), list(COINS[4])])
    assert served(ran) == near(list(COINS[5]))
    assert ran.values("bytes_up")[-1] == 2 * 2 * 8  # both clients' 64-bit numbers
    for ones in (1, 2):
        first = follow(prepare_run(tossed(T1, [(ones, 1)]), quadratics(), rounds=1, **more))
        assert served(first) == near(list(COINS[1 + ones]))


def after(x: list[float], zeros: int, ones: int, hyper: dict, curves: Any, lr: float, cohort: str) -> list:
    """Two clients' models after one period from ``x``."""
    simulation = prepare_run(
        tossed(hyper, [(1, 1)]), quadratics(curves, (5, 5)), training={"lr": lr}, rounds=1, cohort=cohort
    )
    for k, own in enumerate(x):
        simulation.state.store.put(k, {"model": torch.full((1,), own, dtype=torch.float64)})
        simulation.state.participations[k] = 1
    for name, value in {"mean": sum(x) / 2, "zeros": zeros, "ones": ones}.items():
        getattr(simulation.state.server, name).fill_(value)
    return follow(simulation).kept("model")[0]


def test_two_given_clients(cohort: str) -> None:
    """Optima 0 and 4, p = 1/2, lambda 1, alpha 0.1, from 1 and 3: a zero, or a one (SuPerFed, 3.10)."""
    given: dict[str, Any] = {
        "hyper": {"lam": 1, "p": 0.5},
        "curves": ((1, 0), (1, 4)),
        "lr": 0.1,
        "cohort": cohort,
    }
    assert after([1, 3], 1, 0, **given) == near([0.9, 3.1])
    assert after([1, 3], 0, 1, **given) == near([1.1, 2.9])


def test_the_training_loss_is_of_the_steps_taken(cohort: str) -> None:
    """Of F(w) = w^2 / 2 from w = 1: one step of two, then both, the second from 0.9."""
    federation = quadratics(((1, 0),) * 2, start=1)
    for zeros, loss in ((1, 0.5), (2, (0.5 + 0.405) / 2), (9, (0.5 + 0.405) / 2)):
        ran = periods([(1, zeros)], {"lam": 0}, federation, cohort=cohort)
        assert ran.values("train_loss")[0] == near(loss)


def test_simulated_time_is_that_of_the_steps_taken() -> None:
    """One, two and nine zeros, of two steps that take 4 each."""
    ran = periods([(1, 1), (1, 2), (1, 9)], T1, quadratics(), timing={"given": [[0, 4, 0]] * 2})
    assert ran.values("clock") == near([4.0, 12.0, 20.0])


OPTIMUM = [0.4285714286, -0.7142857143]  # of T1: a_k (x_k - b_k) + lambda (x_k - mean) = 0


def test_at_the_optimum_zeros_and_ones_cancel_on_average(cohort: str) -> None:
    given: dict[str, Any] = {"hyper": T1, "curves": ((1, 1), (2, -1)), "lr": ETA, "cohort": cohort}
    zero, one = (np.array(after(OPTIMUM, z, o, **given)) - OPTIMUM for z, o in ((1, 0), (0, 1)))
    assert np.abs(zero).min() > 0.05
    assert 0.6 * zero + 0.4 * one == pytest.approx(0, abs=1e-9)


def test_models_come_near_the_optimum() -> None:
    ran = run("l2gd", quadratics(), T1, rounds=300, training={"lr": 0.02, "epochs": 8})
    late = np.array(ran.kept("model"))[100:]
    assert late.mean(0) == pytest.approx(OPTIMUM, abs=0.05)


def test_the_coin_shows_ones_with_probability_p() -> None:
    method, rng = build_method("l2gd", {"p": 0.2}), np.random.default_rng(0)
    ones, zeros = np.array([method.toss(rng) for _ in range(4000)]).T  # type: ignore[attr-defined]
    assert ones.min() == zeros.min() == 1
    assert ones.sum() / (ones + zeros).sum() == pytest.approx(0.2, abs=0.01)
    assert (zeros > 5).mean() == pytest.approx(0.8**5, abs=0.02)


HALF: dict[str, Any] = {
    "training": {"epochs": 2, "batch_size": 8, "lr": 0.1, "momentum": 0.5},
    "participation": 0.5,
}
MANY = [(1, 1000)] * 3  # every batch is used


def test_without_lambda_it_is_local(federation: Federation, cohort: str) -> None:
    ran = periods(MANY, {"lam": 0}, federation, cohort=cohort, **HALF)
    local = run("local", federation, cohort=cohort, **HALF)
    assert all(map(torch.equal, ran.clients[-1]["model"], local.clients[-1]["model"]))


def test_with_an_endless_pull_it_is_uniform_fedavg(federation: Federation, cohort: str) -> None:
    ran = periods(MANY, {"lam": 1e9}, federation, cohort=cohort, **HALF)
    plain = run("fedavg", federation, {"weighting": "uniform"}, cohort=cohort, **HALF)
    torch.testing.assert_close(ran.servers[-1]["mean"], plain.servers[-1]["model"], rtol=0, atol=1e-6)


def test_other_seeds_give_other_coin_tosses(federation: Federation) -> None:
    tosses = [
        [(int(s["ones"]), int(s["zeros"])) for s in run("l2gd", federation, seed=seed, rounds=4).servers]
        for seed in (0, 0, 1)
    ]
    assert tosses[0] == tosses[1] != tosses[2]
    assert len(set(tosses[0])) > 1
