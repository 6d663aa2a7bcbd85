"""The convergence theorems of FedDyn (Acar et al., ICLR 2021, appendix) on three quadratics, optimum 2.

Client steps are exact, so a round is an affine map of the state (theta, g_1, g_2, g_3), one map per cohort.
Here the maps are read off single rounds of the engine; then expectations over all sequences of cohorts follow
exactly, from first and second moments.
"""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from support import follow, prepare_run, quadratics, run, with_cohorts

from fedflow.methods import build_method

A, B = np.array([1.0, 2.0, 4.0]), np.array([0.0, 1.0, 3.0])
THREE = quadratics(tuple(zip(A, B)), (10, 10, 10), start=0)
L, MU, OPTIMUM = 4, 1, 2
GRADIENTS = A * (OPTIMUM - B)  # of F_k at the optimum: 2, 2, -4
CURVATURE = A.mean()  # of l = mean of F_k: l(w) - l(2) = CURVATURE / 2 (w - 2)^2


def exact(alpha: float) -> dict[str, float]:
    """Gradient steps that leave 1.5 / (alpha + 2.5) of the distance each, 1e-14 of it in all."""
    return {"epochs": int(np.ceil(14 / np.log10((alpha + 2.5) / 1.5))), "lr": 1 / (alpha + 2.5)}


def one_round(alpha: float, cohort: list[int], theta: float, g: np.ndarray) -> np.ndarray:
    """(theta, g_1, g_2, g_3, mean of the cohort's models) after a round of the engine."""
    method = with_cohorts(build_method("feddyn", {"alpha": alpha}), [cohort])
    simulation = prepare_run(method, THREE, training=exact(alpha), rounds=1)
    state, rows = simulation.state, torch.from_numpy(g)[:, None]
    before = torch.tensor([theta], dtype=torch.float64)
    state.server = type(state.server)(before, rows.mean(0), before)
    for k, row in enumerate(rows):
        state.store.put(k, {"g": row})
    ran = follow(simulation)
    assert ran.server("h")[0] == pytest.approx(np.mean(ran.kept("g")[0]), abs=1e-12)
    return np.array([*ran.server("model"), *ran.kept("g")[0], *ran.server("mean")])


def affine(alpha: float, cohort: list[int]) -> np.ndarray:
    """The map [5, 5] from (theta, g_1, g_2, g_3, 1) to (theta, g_1, g_2, g_3, mean) after a round."""
    shift = one_round(alpha, cohort, 0, np.zeros(3))
    units = np.eye(4)
    columns = [one_round(alpha, cohort, unit[0], unit[1:]) - shift for unit in units]
    return np.column_stack([*columns, shift])


@dataclass
class Expected:
    """Expectations after T rounds: of l at the weighted mean of g^0 .. g^{T-1}, and of |grad l(g^t)|^2."""

    loss: float
    gradient: float  # mean over t < T


def expected(alpha: float, rounds: int, r: float = 1) -> Expected:
    """Exact, for one of three clients in each round: g^t is its model, g^0 = 0; g^t has the weight r^t.

    The state is (theta, g_1, g_2, g_3, s, 1) with the weighted sum s, and ``moments`` is E[state state^T].
    """
    maps = [affine(alpha, [k]) for k in range(3)]
    state = np.zeros(6)
    state[5] = 1
    moments, gradient, total = np.outer(state, state), 0.0, 0.0
    squared = OPTIMUM**2  # E (g^t - 2)^2, at first of g^0 = 0
    for t in range(rounds):
        gradient += CURVATURE**2 * squared / rounds
        total += r**t
        after, squared = np.zeros((6, 6)), 0.0
        for found in maps:
            step = np.zeros((6, 6))
            step[:4, [0, 1, 2, 3, 5]] = found[:4]
            step[4, 4] = step[5, 5] = 1
            step[4, [0, 1, 2, 3, 5]] += r ** (t + 1) * found[4] * (t + 1 < rounds)
            row = np.zeros(6)
            row[[0, 1, 2, 3, 5]] = found[4]
            row[5] -= OPTIMUM
            after += step @ moments @ step.T / 3
            squared += row @ moments @ row / 3
        moments = after
    mean, square = moments[4, 5] / total, moments[4, 4] / total**2
    return Expected(CURVATURE / 2 * (square - 2 * OPTIMUM * mean + OPTIMUM**2), gradient)


HETEROGENEITY = (GRADIENTS**2).mean()  # mean_k |grad F_k(w*)|^2


@pytest.mark.parametrize(
    ("alpha", "losses", "bounds"),
    [
        (25 * L, (3.074025, 0.2206742, 0.002251103), (201.2, 20.12, 2.012)),
        (30 * L * 3**0.5, (3.793236, 0.7550820, 0.009473195), (416.3, 41.63, 4.163)),
    ],
    ids=["25 L", "30 L sqrt(m/P)"],
)
def test_convex_losses_converge_as_one_over_t(alpha: float, losses: tuple, bounds: tuple) -> None:
    """Theorem 5: at most 1/T (10 alpha |w_0 - w*|^2 + 100 m/P / alpha mean |grad F_k(w*)|^2)."""
    for rounds, loss, bound in zip((20, 200, 2000), losses, bounds):
        found = expected(alpha, rounds).loss
        assert found == pytest.approx(loss, rel=1e-6)
        theorem = (10 * alpha * OPTIMUM**2 + 100 * 3 / alpha * HETEROGENEITY) / rounds
        assert theorem == pytest.approx(bound, rel=1e-3)
        assert found <= theorem


def test_strongly_convex_losses_converge_linearly() -> None:
    """Theorem 6, alpha = max(5 mu m/P, 30 L), weights r^t with r = 1 + mu / alpha."""
    alpha = max(5 * 3 * MU, 30 * L)
    r = 1 + MU / alpha
    for rounds in (20, 200, 2000):
        bound = r ** -(rounds - 1) * (20 * alpha * OPTIMUM**2 + 400 * 3 / alpha * HETEROGENEITY)
        assert expected(alpha, rounds, r).loss <= bound


def test_gradients_vanish_as_for_losses_that_are_not_convex() -> None:
    """Theorem 7, alpha = 20 L m/P; w_k^0 has a zero local gradient: it is b_k."""
    alpha = 20 * L * 3
    for rounds in (20, 200, 2000):
        gap, spread = CURVATURE / 2 * OPTIMUM**2, (B**2).mean()
        assert expected(alpha, rounds).gradient <= (3 * alpha * gap + 90 * L**3 / alpha * spread) / rounds


@pytest.mark.slow
def test_sampled_cohorts_have_the_exact_expectation() -> None:
    """200 runs of 20 rounds, whose cohorts are those of the published sample."""
    alpha, losses = 25 * L, []
    for seed in range(200):
        cohorts = np.random.default_rng(seed).integers(0, 3, 20)[:, None].tolist()
        method = with_cohorts(build_method("feddyn", {"alpha": alpha}), cohorts)
        means = run(method, THREE, training=exact(alpha), rounds=20).server("mean")
        losses.append(CURVATURE / 2 * (np.mean([0, *means[:-1]]) - OPTIMUM) ** 2)
    assert np.mean(losses) == pytest.approx(3.02579, abs=1e-5)
    assert np.mean(losses) == pytest.approx(3.074025, rel=0.03)


@pytest.mark.parametrize("rounds", [60, pytest.param(2000, marks=pytest.mark.slow)])
def test_every_round_comes_nearer(rounds: int) -> None:
    """Lemmas 1 and 7 with P = m and alpha = 25 L, where no expectation is needed.

    |x_t - 2|^2 + kappa C_t <= |x_{t-1} - 2|^2 + kappa C_{t-1} - kappa_0 (l(x_{t-1}) - l(2)), where x_t is the
    mean of the clients' models and C_t = mean_k |g_k - grad F_k(2)|^2, which bounds |h|^2. Near the limit the
    two sides are equal up to rounding.
    """
    alpha = 25 * L
    kappa = 8 / alpha * (L + alpha) / (alpha**2 - 20 * L**2)
    kappa_0 = 2 / alpha * (alpha**2 - 20 * alpha * L - 40 * L**2) / (alpha**2 - 20 * L**2)
    assert (kappa, kappa_0) == (pytest.approx(8.595041e-4), pytest.approx(2.809917e-3))
    ran = run("feddyn", THREE, {"alpha": alpha}, rounds=rounds, training=exact(alpha))
    gaps = np.array([0, *ran.server("mean")]) - OPTIMUM
    spread = ((np.array([[0, 0, 0], *ran.kept("g")]) - GRADIENTS) ** 2).mean(1)
    left, losses = gaps**2 + kappa * spread, CURVATURE / 2 * gaps**2
    assert (left[:-1] - kappa_0 * losses[:-1] - left[1:]).min() >= -1e-12
    assert (spread[1:] - np.array(ran.server("h")) ** 2).min() >= -1e-12
