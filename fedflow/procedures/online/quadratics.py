"""Learners on quadratics F^t(w) = h_t / 2 (w - c_t)^2 of one number, whose solutions are in closed form.

Adaptation is the identity. `play` runs any learner.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedflow.procedures.online.learners import Learner
from fedflow.seeding import generator


@dataclass(frozen=True)
class ByHand:
    """A round on the mean of the ``readable`` losses: solved exactly, or by ``steps`` gradient steps."""

    curvatures: Tensor  # h [T]
    minima: Tensor  # c [T]
    number: int
    readable: Sequence[int]
    alpha: float
    steps: int | None = None
    lr: float = 0.1

    def gradient(self, w: Tensor, current: bool = False) -> Tensor:
        tasks = torch.tensor([self.number] if current else self.readable) - 1
        return (self.curvatures[tasks] * (w - self.minima[tasks])).mean(0, keepdim=True)

    def descend(self, w: Tensor, pull: Callable[[Tensor], Tensor | float]) -> Tensor:
        if self.steps is None:
            zero = torch.zeros_like(w)
            at_zero = self.gradient(zero) + pull(zero)  # the gradient of the sum is affine
            return at_zero / (at_zero - self.gradient(zero + 1) - pull(zero + 1))
        for _ in range(self.steps):
            w = w - self.lr * (self.gradient(w) + pull(w))
        return w

    def fit(self, w: Tensor) -> Tensor:
        return self.descend(w, lambda _: 0.0)


def play(
    learner: Learner,
    minima: Sequence[float],
    curvatures: Sequence[float] | None = None,
    alpha: float = 1.0,
    steps: int | None = None,
    lr: float = 0.1,
    first: float = 0.0,
    seed: int = 0,
) -> dict[str, list[Any]]:
    """The loss ``suffered`` at w^t and the learner's vectors after the round, by round.

    ``curvatures`` are 1 by default. A round takes ``steps`` steps of ``lr``, or is solved exactly (None).
    """
    c, h, w = (
        torch.tensor(numbers, dtype=torch.float64)
        for numbers in (minima, curvatures or [1.0] * len(minima), [first])
    )
    now, memory = learner.begin(w), torch.empty(0, dtype=torch.int64)
    rounds: dict[str, list[Any]] = {name: [] for name in ("suffered", *now)}
    for t in range(1, len(c) + 1):
        memory = learner.keep(memory, t, generator(seed, "online memory", t))
        kept = memory.tolist()
        rounds["suffered"].append((h[t - 1] / 2 * (now["w"] - c[t - 1]) ** 2).item())
        readable = kept if t in kept else [*kept, t]
        now = learner.learn(now, ByHand(h, c, t, readable, alpha, steps, lr))
        for name, vector in now.items():
            rounds[name].append(vector.squeeze().tolist())
    return rounds


def follow_the_leader(minima: Sequence[float], mu: float = 0.0) -> np.ndarray:
    """(5.2) with h = 1: w^{t+1} [T], the minimum of mu / 2 w^2 and all losses so far (FTRL; mu = 0: FTL)."""
    return np.cumsum(minima) / (mu + np.arange(1, len(minima) + 1))
