"""Federations for methods that weight clients by their losses, with any losses and updates."""

import functools
from collections.abc import Sequence

import torch
from support import by_hand, quadratics
from torch import Tensor, nn

from fedflow.simulation.federation import Federation

ONE_STEP = {"epochs": 1, "batch_size": 0, "lr": 0.1}


class Line(nn.Module):
    """F(w) = f + <g, w - 1> of a sample (f, g), from w = (1, ..., 1): one step of 0.1 goes to 1 - 0.1 g."""

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(dimensions, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0] + (x[:, 1:] * (self.w - 1)).sum(-1)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return outputs

    def hits(self, outputs: Tensor, y: Tensor) -> Tensor:
        return outputs < 1


def lines(
    losses: Sequence[float], updates: Sequence[Sequence[float]], sizes: Sequence[int] | None = None
) -> Federation:
    """Clients with these losses at (1, 1), whose one step of 0.1 is minus ``updates`` (w_t - w_k)."""
    samples = [(f, *(10 * x for x in u)) for f, u in zip(losses, updates)]
    return by_hand(functools.partial(Line, len(updates[0])), samples, sizes or [1] * len(losses))


def three() -> Federation:
    """Losses 0.5, 1 and 2; from (1, 1) to (0.9, 1), (1, 0.8) and (0.7, 0.9); weights 0.2, 0.3 and 0.5."""
    return lines((0.5, 1, 2), ((0.1, 0), (0, 0.2), (0.3, 0.1)), (2, 3, 5))


def outlier() -> Federation:
    """Five equal clients F_k = (w - c_k)^2 / 2, c = (0, 0, 0, 0, 10), from 1: the minimax point is 5."""
    return quadratics(((1, 0), (1, 0), (1, 0), (1, 0), (1, 10)), (1,) * 5, start=1)
