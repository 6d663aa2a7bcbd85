"""Sums that do not depend on the order of their terms, so that results do not depend on the workers."""

import torch
from torch import Tensor

AT_ONCE = {"cpu": 1 << 16, "cuda": 1 << 26}  # numbers: what fits into a cache, or keeps a GPU busy


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
        scale = torch.tensor(weights, dtype=torch.float64).to(vectors.device, non_blocking=True)[:, None]
        columns = max(1, AT_ONCE[vectors.device.type] // len(vectors))
        parts = [_halved(part.double() * scale) for part in vectors.split(columns, 1)]
        for terms in zip(*parts):
            self._add(terms[0] if len(terms) == 1 else torch.cat(terms))
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


def _halved(high: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of the rows of a float64 matrix [C, n] in two parts, each [n], the second far smaller."""
    low = torch.zeros_like(high)
    while len(high) > 1:
        half, odd = len(high) // 2, slice(len(high) // 2 * 2, None)
        total, lost = _two_sum(high[:half], high[half : 2 * half])
        low = torch.cat([low[:half] + low[half : 2 * half] + lost, low[odd]])
        high = torch.cat([total, high[odd]])
    return high[0], low[0]


def _two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of two float64 tensors, and what rounding loses of it (Knuth)."""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)
