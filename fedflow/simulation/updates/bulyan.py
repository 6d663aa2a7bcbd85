"""Bulyan: vectors that Krum chooses one after another, averaged near their median in every coordinate.

Source: El Mhamdi et al., "The Hidden Vulnerability of Distributed Learning in Byzantium", ICML 2018.
"""

from typing import ClassVar

import torch
from torch import Tensor

from fedflow.simulation.updates.krum import scores
from fedflow.simulation.updates.rules import CountingRule, averaged, by_chunk, distances, middle
from fedflow.simulation.updates.step import register


@register("bulyan", "Bulyan")
class Bulyan(CountingRule):
    """Krum chooses m - 2 f vectors, each among those that are left.

    Every entry is the mean of the m - 4 f entries of these that are closest to their median; weights do not
    count.
    """

    needs: ClassVar[tuple[int, int]] = (4, 3)

    def against(self, f: int, vectors: Tensor) -> Tensor:
        squares, left = distances(vectors), [*range(len(vectors))]
        chosen = [
            left.pop(int(scores(squares[left][:, left], f).argmin())) for _ in range(len(vectors) - 2 * f)
        ]

        def near(part: Tensor) -> Tensor:
            part = part[sorted(chosen)]
            order = (part.double() - middle(part)).abs().argsort(dim=0, stable=True)
            return averaged(torch.gather(part, 0, order[: len(vectors) - 4 * f]))

        return by_chunk(vectors, near)
