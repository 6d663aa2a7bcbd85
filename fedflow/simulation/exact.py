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
        # Knuth's two-sum: what rounding loses from the high part is kept in the low part.
        total = self.high + term
        back = total - self.high
        self.low += (self.high - (total - back)) + (term - back)
        self.high = total
