"""Sums that do not depend on the order of their terms, so that results do not depend on the workers."""

import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

AT_ONCE = {"cpu": 1 << 15, "cuda": 1 << 26}  # numbers that fit into a cache, or keep a GPU busy
WHOLE = 2.0**29  # weights below this, if whole, times a float32 are exact in float64


class ExactSum:
    """A weighted sum of vectors [n], or of tensors, in double-double arithmetic (about 32 digits).

    However the terms are split over workers and merged again, the mean rounds to the same float. On a CPU,
    access to memory dominates: rows with whole weights are added up in float64 while that is exact, block by
    block, and only then added to both parts.
    """

    def __init__(self, high: Tensor | None = None, low: Tensor | None = None, weight: float = 0.0) -> None:
        self._high, self._low, self.weight = high, low, weight
        self.shape: tuple[int, ...] = () if high is None else tuple(high.shape)  # of a term
        self._recent: Tensor | None = None  # sums of the last rows, without any rounding
        self._windows: list[_Window] = []  # of the blocks of these sums

    @property
    def high(self) -> Tensor | None:
        """The sum [n], rounded, or None without terms."""
        self._carry()
        return self._high

    @property
    def low(self) -> Tensor | None:
        """The sum minus ``high`` [n], or None without terms."""
        self._carry()
        return self._low

    def add(self, vector: Tensor, weight: float) -> None:
        self.add_rows(vector[None], [weight])

    def add_rows(self, vectors: Tensor, weights: list[float]) -> None:
        """Add ``weights`` [C] times ``vectors`` [C, ...], summed pairwise: few operations for any C."""
        self.weight += sum(weights)
        self.shape, vectors = tuple(vectors.shape[1:]), vectors.reshape(len(weights), -1)
        if len(weights) == 1 and vectors.is_cpu and vectors.dtype == torch.float32 and vectors.numel():
            self._add_row(vectors, weights[0])
            return
        scale = torch.tensor(weights, dtype=torch.float64).to(vectors.device, non_blocking=True)[:, None]
        if kernel := _kernel(vectors.device.type):
            kernel(vectors, scale[:, 0], *self._parts(vectors))
            return
        for part, high, low in zip(*self._chunks(vectors)):
            rows = part.double() * scale
            for term in rows if len(rows) == 1 else _halved(rows):
                _add(high, low, term)

    def merge(self, other: "ExactSum") -> None:
        """Add another sum; the memory is not shared."""
        assert other.high is not None and other.low is not None
        self.weight += other.weight
        if self.high is None:
            self.shape = other.shape
            self._high, self._low = other.high.clone(), other.low.clone()
            return
        for terms in (other.high, other.low):
            for (term,), high, low in zip(*self._chunks(terms[None])):
                _add(high, low, term)

    def mean(self, dtype: torch.dtype) -> Tensor:
        """Sum of the terms over sum of the weights."""
        assert self.high is not None and self.low is not None
        return ((self.high + self.low) / self.weight).to(dtype).view(self.shape)

    def __getstate__(self) -> dict[str, Any]:
        """The sum to send, with ``low`` as its entries other than 0: with whole weights, there are few."""
        facts: dict[str, Any] = {
            "high": self.high,
            "low": self.low,
            "weight": self.weight,
            "shape": self.shape,
        }
        if (low := self.low) is not None:
            (indices,) = low.nonzero(as_tuple=True)
            if 2 * len(indices) < len(low):  # an index takes as many bytes as an entry
                facts["low"] = (indices, low[indices])
        return facts

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        high, low = state["high"], state["low"]
        if isinstance(low, tuple):
            low = torch.zeros_like(high).index_copy_(0, *low)
        self.__init__(high, low, state["weight"])  # type: ignore[misc]
        self.shape = state["shape"]

    def _add_row(self, row: Tensor, weight: float) -> None:
        """Add ``weight`` times ``row`` [1, n] in float32."""
        if self._recent is None:
            self._recent = torch.zeros_like(row[0], dtype=torch.float64)
            self._windows = [_Window() for _ in self._recent.split(AT_ONCE["cpu"])]
        recents = self._recent.split(AT_ONCE["cpu"])
        for (x,), high, low, recent, window in zip(*self._chunks(row), recents, self._windows):
            sizes = _sizes(x) if weight == int(weight) and abs(weight) < WHOLE else None
            fits = sizes and window.takes(*sizes, weight)
            if not fits and window.used:
                _add(high, low, recent)
                recent.zero_()
                window.clear()
                fits = sizes and window.takes(*sizes, weight)
            if fits:
                recent.add_(x, alpha=weight)
            else:
                _add(high, low, x.double() * weight)

    def _carry(self) -> None:
        """Add the sums of the last rows to both parts."""
        if self._recent is not None:
            self._windows, recent, self._recent = [], self._recent[None], None
            for (term,), high, low in zip(*self._chunks(recent)):
                _add(high, low, term)

    def _chunks(self, rows: Tensor) -> tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]]:
        """Blocks of columns of ``rows`` [C, n] and of the sums; a block fits into the cache."""
        columns = max(1, AT_ONCE[rows.device.type] // len(rows))
        high, low = self._parts(rows)
        return rows.split(columns, 1), high.split(columns), low.split(columns)

    def _parts(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Both parts of the sum [n] of ``rows`` [C, n], 0 at first."""
        if self._high is None or self._low is None:
            self._high, self._low = (torch.zeros_like(rows[0], dtype=torch.float64) for _ in range(2))
        return self._high, self._low


class _Window:
    """The bits that terms use, which must fit into float64.

    All terms are multiples of ``unit``, a power of 2, and no sum of some of them exceeds ``bound``.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.unit, self.bound = math.inf, 0.0

    @property
    def used(self) -> bool:
        return self.bound > 0

    def takes(self, unit: float, most: float, weight: float) -> bool:
        """Add ``weight`` times multiples of ``unit`` up to ``most``, and return True, if they still fit."""
        unit, bound = min(self.unit, unit), self.bound + abs(weight) * most
        if not bound < 2.0**52 * unit:  # of 53 bits, as `bound` is rounded
            return False
        self.unit, self.bound = unit, bound
        return True


def _sizes(x: Tensor) -> tuple[float, float] | None:
    """A power of 2 that divides all entries (float32), and the largest entry; None unless they are finite."""
    x = x.abs()
    least, most = map(float, torch.aminmax(x))
    if not math.isfinite(most):
        return None
    if least == 0 < most:
        least = float(x.where(x > 0, most).amin())
    return max(2.0 ** (math.frexp(least)[1] - 24), 2.0**-149), most


@functools.cache
def _kernel(device: str) -> Callable[[Tensor, Tensor, Tensor, Tensor], None] | None:
    """The kernel that adds rows on a GPU, or None if single operations do that."""
    if device != "cuda":
        return None
    try:
        from fedflow.simulation.exact_rows import add_rows

        ones = torch.ones(1, dtype=torch.float64, device=device)
        add_rows(ones[None], ones, ones.clone(), ones.clone())
    except Exception as error:  # no Triton, or no C compiler for it
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        warnings.warn(f"sums on the GPU are several operations, not one kernel ({reason})", stacklevel=3)
        return None
    return add_rows


def _add(high: Tensor, low: Tensor, term: Tensor) -> None:
    total, lost = _two_sum(high, term)
    high.copy_(total)
    low.add_(lost)


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
    """The sum of two float64 tensors, and its rounding error (Knuth)."""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)
