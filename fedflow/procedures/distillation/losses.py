"""Losses and schedules of knowledge distillation (KD) and of DiSK, as functions of logits.

Source: Acar, thesis, Chapter 6, Eq. 6.1 to 6.5, Algorithm 7; the authors' code (anilkagak2/DiSK).

l_S, l_T [B, C] are logits of student and teacher, s^tau and t^tau the softmax of either divided by tau,
g [B] in [0, 1] is the discount of a sample by the guide, and m [B, C] marks the teacher's K top classes.

KD (6.1): alpha CE + (1 - alpha) tau^2 mean KL(t^tau, s^tau)
guided distillation (6.4): - tau tau_s mean sum_c t^tau_c log(s^tau_s_c + m_c g), a cross-entropy
budget (6.3): [sum g CE / n - delta]_+, with n the number of wrong predictions (A.1.5), or of all samples

*Ambiguous*: A.1.5 changes only the denominator of (6.3), so the sum is over all samples. Of classes with
equal logits at the K-th place, the lower ones are in the mask. The authors' code clamps CE in the budget.
"""

import math
import warnings

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, cross_entropy

from fedflow.local.extensions.objective import divergence

SMALLEST = 1e-12  # lower bound of probabilities in logarithms
SLOPES = 1e-4, 1e4  # smallest and largest 1 / tau_s that is fitted


def distillation(student: Tensor, teacher: Tensor, y: Tensor, alpha: float, tau: float) -> Tensor:
    """KD (6.1), scalar; alpha = 1 is cross-entropy."""
    hard = cross_entropy(student, y)
    if alpha == 1:
        return hard
    return alpha * hard + (1 - alpha) * tau**2 * divergence(teacher, student, tau).mean()


def top_classes(teacher: Tensor, k: int) -> Tensor:
    """m, bool [B, C]: the k classes with the largest logits."""
    first = teacher.argsort(dim=-1, descending=True, stable=True)[..., :k]
    return torch.zeros_like(teacher, dtype=torch.bool).scatter(-1, first, True)


def masked_target(teacher: Tensor, mask: Tensor, tau: float, fill: str = "smallest") -> Tensor:
    """The target [B, C] of the authors' code: the softmax of l_T / tau with other logits outside ``mask``.

    These logits are the ``smallest`` of the sample, not divided by tau, or ``zero``. Classes outside the mask
    have target 0, so that the sum is below 1.
    """
    outside = teacher.amin(-1, keepdim=True) if fill == "smallest" else torch.zeros_like(teacher)
    return torch.where(mask, teacher / tau, outside).softmax(-1) * mask


def guided(student: Tensor, target: Tensor, mask: Tensor, g: Tensor, tau: float, tau_s: float) -> Tensor:
    """Guided distillation (6.4) towards ``target`` [B, C], scalar. It can be negative."""
    s = (student / tau_s).softmax(-1).clamp(min=SMALLEST)
    return -tau * tau_s * (target * (s + mask * g[:, None]).log()).sum(-1).mean()


def log_normalizer(g: Tensor, k: int) -> Tensor:
    """Mean log(1 + K g), scalar: the logarithm of the sum of s_c + m_c g over all classes."""
    return (1 + k * g).log().mean()


def guided_cost(
    g: Tensor, losses: Tensor, wrong: Tensor, over: str = "wrong", largest: float | None = 5.0
) -> Tensor:
    """The sum of g CE over all samples, divided by the number of ``wrong`` [B] or of ``all`` samples, scalar.

    ``losses`` [B] are the student's CE, clamped at ``largest``. Without a wrong prediction, it is the sum.
    """
    losses = losses if largest is None else losses.clamp(max=largest)
    return (g * losses).sum() / (wrong.sum().clamp(min=1) if over == "wrong" else len(g))


def map_errors(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean squared error [B] of the student's maps [B, C, h, w]; the teacher's are pooled to that size."""
    teacher = adaptive_avg_pool2d(teacher, (student.shape[-2], student.shape[-1]))
    return (student - teacher).square().flatten(1).mean(1)


def multiplier(r: int, smallest: float, largest: float, period: float) -> float:
    """lambda after r rounds: it rises by half a cosine in every ``period`` rounds and drops back."""
    return smallest + (largest - smallest) * (1 - math.cos(math.pi * (r % period) / period)) / 2


def warn_of_low_end(name: str, rounds: int, smallest: float, largest: float, period: float) -> None:
    """Warn, as ``name``, if lambda is below the middle of its range in the last of ``rounds``."""
    if smallest < largest and (rounds - 1) % period < period / 2:
        last = multiplier(rounds - 1, smallest, largest, period)
        length = f"{rounds} round{'s' * (rounds > 1)} of periods of {period:g}"
        reason = f"lambda ends at {last:.3g}, so that the budget is hardly enforced"
        warnings.warn(f"{name}: in {length}, {reason}", stacklevel=3)


def allowance(r: int, largest: float, smallest: float, period: int, decay: float) -> float:
    """delta after r rounds: it falls by half a cosine in every period.

    A period starts at ``decay`` times the start of the last one, but not below ``smallest``.
    """
    start = max(largest * decay ** (r // period), smallest)
    return smallest + (start - smallest) * (1 + math.cos(math.pi * (r % period) / period)) / 2


def student_temperature(student: Tensor, teacher: Tensor, tau: float) -> float:
    """tau_s, the minimum of sum KL(t^tau, s^tau_s) over samples [n, C], by bisection, within `SLOPES`.

    The sum is convex in u = 1 / tau_s, with the derivative sum (s_c - t_c) l_S_c.
    """
    logits, target = student.double(), (teacher.double() / tau).softmax(-1)
    low, high = map(math.log, SLOPES)
    for _ in range(60):
        middle = (low + high) / 2
        rising = (((logits * math.exp(middle)).softmax(-1) - target) * logits).sum() > 0
        low, high = (low, middle) if rising else (middle, high)
    return math.exp(-(low + high) / 2)
