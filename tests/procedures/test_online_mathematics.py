"""Learners on quadratics, adaptation and Hedge against worked numbers and identities of the source."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from support import quadratics
from torch import Tensor

from fedflow.procedures.online import (
    LEARNERS,
    Expert,
    Lesson,
    Online,
    Stream,
    StreamTask,
    hedge,
    meta_gradient,
)
from fedflow.procedures.online.learners import BMOML, MOGD, MOML, Learner, Proximal
from fedflow.procedures.online.quadratics import ByHand, follow_the_leader, play
from fedflow.procedures.online.stream import Rows

MINIMA = [1.0, 3.0, 2.0, 0.0]


def gradient_descent(minima: list[float], lr: float, w: float = 0.0) -> np.ndarray:
    """(5.3) with h = 1: w^{t+1} [T], online gradient descent."""
    return np.array([w := w - lr * (w - c) for c in minima])


OTHERS: dict[str, Learner] = {
    "averaged": BMOML(buffer=2, states="averaged_states"),
    "gradient": MOML(rule="gradient"),
}


@pytest.mark.parametrize(
    ("learner", "alpha", "steps", "expected"),
    [
        (MOML(), 1.0, None, {
            "suffered": [0.5, 3.125, 0.125, 0.6328125], "w": [0.5, 1.5, 1.125, 0.5],
            "linear": [-0.5, -1.5, -0.875, 0.5], "center": [0.5, 1.75, 1.875, 0.9375],
        }),
        (MOML(), 2.0, None, {
            "suffered": [0.5, 3.555556, 0.5, 0.302469], "w": [0.333333, 1, 0.777778, 0.444444],
            "linear": [-0.666667, -2, -1.222222, 0.444444], "center": [0.333333, 1.166667, 1.277778, 0.75],
        }),
        (MOML(), 1.0, 2, {"w": [0.18, 0.6552], "linear": [-0.18, -0.6552], "center": [0.18, 0.7452]}),
        (Proximal(), 1.0, None, {
            "w": [0.5, 1.625, 1.46875, 0.6015625], "center": [0.25, 0.9375, 1.203125, 0.90234375],
        }),
        (BMOML(buffer=2), 1.0, None, {
            "w": [0.5, 1, 1.375, 0.875], "linear": [-0.5, -1, -1.125, -0.125],
            "center": [0.5, 1.25, 1.875, 1.4375],
        }),
        (LEARNERS["ftml"](), 1.0, None, {"w": follow_the_leader(MINIMA)}),
        (LEARNERS["toe"](), 1.0, None, {"w": follow_the_leader(MINIMA)}),
        (MOGD(), 1.0, 1, {"w": gradient_descent(MINIMA, 0.1)}),
        (LEARNERS["fs"](), 1.0, None, {"w": [0, 0, 0, 0]}),
    ],
)  # fmt: skip
def test_worked_examples(learner: Learner, alpha: float, steps: int | None, expected: dict[str, Any]) -> None:
    found = play(learner, MINIMA, alpha=alpha, steps=steps)
    for name, numbers in expected.items():
        assert found[name][: len(numbers)] == pytest.approx(list(numbers), abs=1e-6)


def test_conceptual_baselines() -> None:
    assert follow_the_leader(MINIMA, mu=1) == pytest.approx([0.5, 4 / 3, 1.5, 1.2])
    assert follow_the_leader(MINIMA) == pytest.approx([1, 2, 2, 1.5])
    assert gradient_descent(MINIMA, 0.5) == pytest.approx([0.5, 1.75, 1.875, 0.9375])
    full_information = gradient_descent([float(np.mean(MINIMA))] * 40, 0.5)  # (5.4)
    assert full_information[[0, -1]] == pytest.approx([0.75, 1.5])


class AnySolver(ByHand):
    """An inner solver that solves nothing."""

    def descend(self, w: Tensor, pull: Any) -> Tensor:
        return torch.randn(5, generator=torch.Generator().manual_seed(self.number), dtype=torch.float64)


@pytest.mark.parametrize("alpha", [0.3, 4.0])
def test_identities_hold_for_any_inner_solver(alpha: float) -> None:
    none, zero = torch.zeros(0), torch.zeros(5, dtype=torch.float64)
    states = [MOML().begin(zero)]
    for t in range(1, 7):
        states.append(MOML().learn(states[-1], AnySolver(none, none, t, [t], alpha)))
    for before, now in pairwise(states):
        w, center, linear = now["w"], now["center"], now["linear"]
        torch.testing.assert_close(center, w - before["linear"] / (2 * alpha))  # 1
        z, earlier = (s["center"] + s["linear"] / (2 * alpha) for s in (now, before))
        torch.testing.assert_close(z, earlier - linear / (2 * alpha))  # 2
        torch.testing.assert_close(center, (before["center"] + w - linear / alpha) / 2)  # 4: FedDyn's server
    for a, b, c in zip(states[1:], states[2:], states[3:]):
        step = (b["linear"] - c["linear"] - a["linear"] / 2) / alpha
        torch.testing.assert_close(c["w"] - b["w"], step)  # 3


def test_lambda_is_the_gradient_only_after_an_exact_solution() -> None:
    exact, short, long = (play(MOML(), MINIMA, steps=steps) for steps in (None, 2, 300))
    for found, same in ((exact, True), (short, False), (long, True)):
        gradients = np.array(found["w"]) - MINIMA
        assert np.allclose(found["linear"], gradients, atol=1e-9) is same  # (5.10), identity 7
    assert play(OTHERS["gradient"], MINIMA)["center"] == pytest.approx(exact["center"])
    true = play(OTHERS["gradient"], MINIMA, steps=2)
    assert true["linear"] == pytest.approx(list(np.array(true["w"]) - MINIMA))


def test_centers_follow_gradient_descent_if_alpha_is_the_curvature() -> None:
    rng = np.random.default_rng(0)
    minima = rng.normal(size=30).tolist()
    for h in (0.5, 2.0):
        found = play(MOML(), minima, [h] * 30, alpha=h)
        assert found["center"] == pytest.approx(
            gradient_descent(minima, 0.5).tolist()
        )  # identity 6: h / (2 h)


def test_averaged_states_by_hand() -> None:
    found = play(OTHERS["averaged"], MINIMA)
    w1 = 0.5  # lambda and center are 0
    s1 = w1 - 1
    center = (0 + w1 - s1) / 2
    w2 = ((1 + 3) / 2 + s1 + center) / 2  # mean loss of both tasks
    mean = (s1 + w2 - 3) / 2
    assert found["w"][:2] == pytest.approx([w1, w2])
    assert found["linear"][:2] == pytest.approx([s1, mean])
    assert found["center"][1] == pytest.approx((center + w2 - mean) / 2)


def test_regret_is_below_the_bound() -> None:
    rng = np.random.default_rng(0)
    for rounds, published in ((10, (2.13, 12.98)), (100, (5.71, 43.98)), (1000, (19.62, 124.69))):
        minima, alpha = rng.normal(1, 1, rounds), rounds**0.5
        found = play(MOML(), minima.tolist(), alpha=alpha)
        best, suffered = minima.mean(), np.array(found["suffered"])
        regret = suffered.sum() - ((best - minima) ** 2 / 2).sum()
        bound = alpha * best**2 + 3 / alpha * (2 * suffered).sum()  # ||grad F||^2 = 2 F
        assert regret <= bound  # Theorem 8
        assert (regret, bound) == pytest.approx(published, abs=0.005)


@pytest.mark.parametrize(
    ("learner", "cycles"),
    [
        (MOML(), {1: (0.5217, 1.8261), 10: (1.2632, 1.5789), 100: (1.4724, 1.5092)}),
        (Proximal(), {1: (0.7059, 1.7647), 10: (1.3483, 1.5506), 100: (1.4833, 1.5056)}),
    ],
)
def test_limit_cycles_of_two_tasks(learner: Learner, cycles: dict[int, tuple[float, float]]) -> None:
    for alpha, expected in cycles.items():
        turns = 40 + 12 * alpha
        found = play(learner, [0, 2] * turns, [1, 3] * turns, alpha=alpha, first=1.4)
        assert found["w"][-2:] == pytest.approx(expected, abs=1e-4)
        if "linear" in found:
            assert sum(found["linear"][-2:]) == pytest.approx(0, abs=1e-3)


def test_meta_gradient_has_second_derivatives() -> None:
    federation = quadratics([(1.0, 0.5)], [2])
    model, w = federation.model, torch.tensor([2.0], dtype=torch.float64)
    batch = federation.train.x, federation.train.y
    assert meta_gradient(model, w, batch, batch, 1, 0.1).item() == pytest.approx(1.215)  # first order: 1.35
    assert meta_gradient(model, w, batch, batch, 0, 0.1).item() == pytest.approx(1.5)


def test_the_gradient_of_several_tasks_is_their_mean() -> None:
    federation = quadratics([(1.0, 1.0), (2.0, -1.0)], [2, 4])
    rows = [Rows(federation.train, torch.arange(0, 2)), Rows(federation.train, torch.arange(2, 6))]
    w = torch.tensor([0.5], dtype=torch.float64)
    stream = Stream([StreamTask(own, own) for own in rows], federation.model, w, 0)
    lesson = Lesson(stream, Expert("moml", MOML(), 0, 0.0), Online(partition="tasks"), 2, [1, 2])
    assert lesson.gradient(w).item() == pytest.approx((-0.5 + 3.0) / 2)
    assert lesson.gradient(w, current=True).item() == pytest.approx(3.0)


def test_hedge_pays_before_it_looks() -> None:
    losses = np.array([[0.2, 0.5, 0.9]])
    paid, weights = hedge(losses)
    assert paid[0] == pytest.approx(0.533333, abs=1e-6)
    assert weights[0] == pytest.approx([1 / 3] * 3)
    assert weights[1] == pytest.approx([0.587989, 0.294692, 0.117319], abs=1e-6)
    assert hedge(losses, peek=True)[0][0] == pytest.approx(0.370531, abs=1e-6)


def test_hedge_finds_the_best_expert_in_long_streams() -> None:
    paid, weights = hedge(np.tile([0.9, 0.3, 0.6], (5000, 1)))
    assert weights[-1] == pytest.approx([0, 1, 0]) and paid[-1] == pytest.approx(0.3)
