"""Krum: the vector with the closest neighbors in place of the mean; multi-Krum: the mean of several.

Source: Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent", NIPS 2017.
"""

from typing import ClassVar

import torch
from torch import Tensor

from fedflow.settings import option
from fedflow.simulation.updates.rules import CountingRule, averaged, distances
from fedflow.simulation.updates.step import register


@register("krum", "Krum")
class Krum(CountingRule):
    """The mean of the ``keep`` vectors with the smallest scores, with equal weights.

    The score of a vector is the sum of the squared distances to its m - f - 2 closest others.
    """

    needs: ClassVar[tuple[int, int]] = (2, 3)

    keep: int = option(1, "averaged vectors: 1 is Krum, more is multi-Krum", symbol="m", ge=1)

    def against(self, f: int, vectors: Tensor) -> Tensor:
        order = scores(distances(vectors), f).argsort(stable=True)
        return averaged(vectors[order[: self.keep]])


def scores(squares: Tensor, f: int) -> Tensor:
    """The scores [m] of vectors with these squared distances [m, m]; of equal ones, the first is chosen."""
    others = squares + torch.diag(torch.full_like(squares[0], torch.inf))
    return others.sort(dim=1).values[:, : max(1, len(squares) - f - 2)].sum(1)
