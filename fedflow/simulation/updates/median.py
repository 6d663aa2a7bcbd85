"""The coordinate-wise median in place of the mean.

Source: Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018.
"""

from torch import Tensor

from fedflow.simulation.updates.rules import Rule, by_chunk, middle
from fedflow.simulation.updates.step import Incoming, register


@register("median", "Median")
class Median(Rule):
    """Every entry is the median of the clients' entries; weights do not count."""

    def robust(self, got: Incoming, vectors: Tensor) -> Tensor:
        return by_chunk(vectors, middle)
