"""Sums that do not depend on the order of their terms, so that results do not depend on the workers."""

import torch
from torch import Tensor


class ExactSum:
    """A weighted sum of vectors in double-double arithmetic (about 32 digits).

    However the terms are split over workers and merged again, the mean rounds to the same float.
    """

    def __init__(self) -> None:
        self.high: Tensor | None = None
        self.low: Tensor | None = None
        self.weight = 0.0

    def add(self, vector: Tensor, weight: float) -> None:
        """Add ``weight * vector`` [n]."""
        self._add(vector.double() * weight)
        self.weight += weight

    def add_rows(self, vectors: Tensor, weights: list[float]) -> None:
        """Add ``weights`` [C] times ``vectors`` [C, n], by halves: few operations, whatever C is."""
        scale = torch.tensor(weights, dtype=torch.float64).to(vectors.device, non_blocking=True)
        high = vectors.double() * scale[:, None]
        low = torch.zeros_like(high)
        while len(high) > 1:
            half, odd = len(high) // 2, slice(len(high) // 2 * 2, None)
            total, lost = _two_sum(high[:half], high[half : 2 * half])
            low = torch.cat([low[:half] + low[half : 2 * half] + lost, low[odd]])
            high = torch.cat([total, high[odd]])
        self._add(high[0])
        self._add(low[0])
        self.weight += sum(weights)

    def merge(self, other: "ExactSum") -> None:
        """Add another sum."""
        assert other.high is not None and other.low is not None
        self._add(other.high)
        self._add(other.low)
        self.weight += other.weight

    def mean(self, dtype: torch.dtype) -> Tensor:
        """Sum of the terms over sum of the weights, [n]."""
        assert self.high is not None and self.low is not None
        return ((self.high + self.low) / self.weight).to(dtype)

    def _add(self, term: Tensor) -> None:
        if self.high is None or self.low is None:
            self.high, self.low = term.clone(), torch.zeros_like(term)
            return
        self.high, lost = _two_sum(self.high, term)
        self.low += lost


def _two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of two float64 tensors, and what rounding loses of it (Knuth)."""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)
