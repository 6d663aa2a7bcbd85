"""The coordinate-wise trimmed mean.

Source: Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018.
"""

from typing import ClassVar

from torch import Tensor

from fedflow.simulation.updates.rules import CountingRule, averaged, by_chunk
from fedflow.simulation.updates.step import register


@register("trimmed_mean", "Trimmed mean")
class TrimmedMean(CountingRule):
    """Every entry is the mean without the f smallest and the f largest entries; weights do not count."""

    needs: ClassVar[tuple[int, int]] = (2, 1)

    def against(self, f: int, vectors: Tensor) -> Tensor:
        kept = slice(f, len(vectors) - f)
        return by_chunk(vectors, lambda part: averaged(part.sort(dim=0).values[kept]))
