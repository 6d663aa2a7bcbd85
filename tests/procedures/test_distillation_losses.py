"""KD and DiSK by the worked numbers of their specification."""

import pytest
import torch
from torch import Tensor

from fedflow.procedures.distillation.losses import (
    allowance,
    distillation,
    guided,
    guided_cost,
    log_normalizer,
    masked_target,
    multiplier,
    student_temperature,
    top_classes,
)

T = torch.tensor([[4.0, 2.0, 0.0, -2.0]], dtype=torch.float64)
S = torch.tensor([[1.0, 2.0, 0.0, 0.0]], dtype=torch.float64)
Y, TAU = torch.tensor([0]), 4.0


def close(*expected: float, abs: float = 1e-6) -> object:
    return pytest.approx(list(expected) if len(expected) > 1 else expected[0], abs=abs)


def soft(logits: Tensor, tau: float = TAU) -> Tensor:
    return (logits / tau).softmax(-1)


def dist(g: float | Tensor, k: int, tau_s: float = TAU, student: Tensor = S) -> Tensor:
    guide = g if isinstance(g, Tensor) else torch.tensor([g], dtype=torch.float64)
    return guided(student, soft(T), top_classes(T, k), guide, TAU, tau_s)


def in_student(loss: object) -> list[float]:
    """The gradient of a loss of the student's logits."""
    leaf = S.clone().requires_grad_()
    return torch.autograd.grad(loss(leaf), leaf)[0][0].tolist()  # type: ignore[operator]


def test_distillation() -> None:
    assert soft(T)[0].tolist() == close(0.455054, 0.276004, 0.167405, 0.101536)
    assert soft(S)[0].tolist() == close(0.260306, 0.334240, 0.202727, 0.202727)
    assert distillation(S, T, Y, 1, TAU).item() == close(1.493812)
    assert distillation(S, T, Y, 0, TAU).item() == close(1.585277)
    assert distillation(S, T, Y, 0.1, TAU).item() == close(1.576130)
    leaf = T.clone().requires_grad_()
    same = distillation(leaf, T, Y, 0, TAU)
    assert same.item() == 0 and torch.autograd.grad(same, leaf)[0].abs().max() < 1e-12


@pytest.mark.parametrize("k", [1, 2, 4])
def test_without_guidance_it_is_kd(k: int) -> None:
    assert dist(0.0, k).item() == close(21.506084)
    gradient = in_student(lambda s: dist(0.0, k, student=s))
    assert gradient == close(-0.778991, 0.232943, 0.141287, 0.404762)
    assert gradient == pytest.approx(in_student(lambda s: distillation(s, T, Y, 0, TAU)), abs=1e-12)


@pytest.mark.parametrize(
    ("k", "values"),
    [
        (1, (16.604953, 13.701997, 10.022329)),
        (2, (14.138788, 9.662787, 3.909350)),
        (4, (10.681580, 4.313611, -3.752198)),
    ],
)
def test_guided_distillation(k: int, values: tuple[float, ...]) -> None:
    assert [dist(g, k).item() for g in (0.25, 0.5, 1.0)] == close(*values)


def test_temperature_of_the_student() -> None:
    assert [dist(g, 2, 2.0).item() for g in (0.0, 0.5)] == close(10.780779, 5.154408)


def test_the_normalizer_makes_an_inner_minimum() -> None:
    def both(g: Tensor, k: int) -> Tensor:
        return dist(g, k) + TAU * TAU * log_normalizer(g, k)

    guides = torch.tensor([0, 0.25, 0.5, 1], dtype=torch.float64)
    values = [both(g[None], 2).item() for g in guides]
    assert values == close(21.506084, 20.626230, 20.753142, 21.487147)
    assert (torch.stack([both(g[None], 4) for g in guides]).diff() > 0).all()
    slopes = {"free": list[float](), "normalized": list[float]()}
    for g in (0.0, 0.5, 1.0):
        leaf = torch.tensor([g], dtype=torch.float64, requires_grad=True)
        for name, loss in (("free", dist(leaf, 2)), ("normalized", both(leaf, 2))):
            slopes[name].append(torch.autograd.grad(loss, leaf)[0].item())
    assert slopes["free"] == close(-41.182649, -14.869753, -9.086863)
    assert slopes["normalized"] == close(-9.182649, 1.130247, 1.579803)


def test_guidance_can_turn_the_gradient_of_the_top_class() -> None:
    """As printed, the guide helps only the top K classes, so the student is pushed towards the others."""
    assert in_student(lambda s: dist(0.5, 2, student=s)) == close(-0.065799, 0.273375, -0.235525, 0.027950)
    whole = in_student(lambda s: dist(1.0, 2, student=s))
    assert whole == close(0.073932, 0.301095, -0.319251, -0.055776)
    mask, guide = top_classes(T, 2), torch.ones(1, dtype=torch.float64)
    target = masked_target(T, mask, TAU)
    masked = in_student(lambda s: guided(s, target, mask, guide, TAU, TAU))
    assert whole[2] < 0 < masked[2] and whole[3] < 0 < masked[3]


@pytest.mark.parametrize(
    ("tau_s", "losses"),
    [
        (4.0, [(18.855493, 13.734189), (3.600790, 2.622786)]),
        (3.5, [(16.293459, 11.868024), (3.068651, 2.235181)]),
    ],
)
def test_target_of_the_code(tau_s: float, losses: list[tuple[float, float]]) -> None:
    mask = top_classes(T, 2)
    targets = [masked_target(T, mask, TAU, fill) for fill in ("smallest", "zero")]
    assert targets[0][0].tolist() == close(0.586130, 0.355506, 0, 0)
    assert targets[1][0].tolist() == close(0.426933, 0.258948, 0, 0)
    assert [each.sum().item() for each in targets] == close(0.941637, 0.685880, abs=2e-6)
    for g, expected in zip((0.0, 0.5), losses):
        guide = torch.tensor([g], dtype=torch.float64)
        assert [guided(S, q, mask, guide, TAU, tau_s).item() for q in targets] == close(*expected, abs=3e-6)


def test_budget() -> None:
    g, losses = torch.tensor([0.9, 0.1, 0.5]), -torch.tensor([0.2, 0.7, 0.4]).log()
    wrong = torch.tensor([True, False, True])
    assert guided_cost(g, losses, wrong, "all").item() == close(0.647436)
    assert guided_cost(g, losses, wrong).item() == close(0.971153)
    assert guided_cost(g * wrong, losses, wrong).item() == close(0.953320)  # the other reading
    assert guided_cost(g, wrong.float(), wrong, "all").item() == close(0.466667)
    assert guided_cost(g, wrong.float(), wrong).item() == close(0.7)
    assert guided_cost(g, 10 * losses, wrong).item() == close(
        (5 * 0.9 + 0.1 * 3.56675 + 5 * 0.5) / 2, abs=1e-5
    )
    assert guided_cost(g, 10 * losses, wrong, largest=None).item() == close(9.71153, abs=1e-5)
    assert guided_cost(g, losses, torch.zeros(3, dtype=torch.bool)).item() == close(1.942306)


def test_schedules() -> None:
    values = [multiplier(r, 0.1, 50, 50) for r in (0, 1, 10, 25, 49, 50, 199)]
    assert values == close(0.1, 0.149233, 4.865026, 25.05, 49.950767, 0.1, 49.950767)
    falling = [allowance(r, 0.6, 0.4, 20, 0.9) for r in (0, 10, 20, 80)]
    assert falling == close(0.6, 0.5, 0.54, 0.4)


@pytest.mark.parametrize(("scale", "tau_s"), [(0.5, 2), (1, 4), (2, 8)])
def test_fitted_temperature(scale: float, tau_s: float) -> None:
    points = torch.tensor([[4.0, 2.0, 0.0, -2.0], [0.0, 3.0, 1.0, 0.5]])
    assert student_temperature(scale * points, points, TAU) == pytest.approx(tau_s, rel=1e-9)


def test_fitted_temperature_of_a_pair() -> None:
    tau_s = student_temperature(S, T, TAU)
    divergence = (soft(T) * (soft(T) / soft(S, tau_s)).log()).sum().item()
    assert (tau_s, divergence) == pytest.approx((2.808, 0.094922), abs=5e-4)
    assert divergence == close(0.094922)


def test_equal_logits_at_the_last_place() -> None:
    teacher = torch.tensor([[1.0, 3.0, 1.0, 1.0], [2.0, 2.0, 2.0, 2.0]])
    assert top_classes(teacher, 2).int().tolist() == [[1, 1, 0, 0], [1, 1, 0, 0]]
    assert top_classes(teacher, 4).all()
