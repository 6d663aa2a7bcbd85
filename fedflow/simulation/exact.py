"""Sums that do not depend on the order of their terms, so that results do not depend on the workers."""

import functools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

AT_ONCE = {"cpu": 1 << 14, "cuda": 1 << 26}  # numbers that fit into a cache, or keep a GPU busy
EXPONENT = 0x7F800000  # the bits of a float32 that hold its exponent


class ExactSum:
    """A weighted sum of vectors in double-double arithmetic (about 32 digits).

    However the terms are split over workers and merged again, the mean rounds to the same float.
    """

    def __init__(self) -> None:
        self.high: Tensor | None = None
        self.low: Tensor | None = None
        self.weight = 0.0
        self._windows: list[_Window] = []  # of the blocks, while all terms are single rows

    def add(self, vector: Tensor, weight: float) -> None:
        """Add ``weight * vector`` [n]."""
        self.add_rows(vector[None], [weight])

    def add_rows(self, vectors: Tensor, weights: list[float]) -> None:
        """Add ``weights`` [C] times ``vectors`` [C, n], summed pairwise: few operations for any C."""
        scale = torch.tensor(weights, dtype=torch.float64).to(vectors.device, non_blocking=True)[:, None]
        self.weight += sum(weights)
        if kernel := _kernel(vectors.device.type):
            kernel(vectors, scale[:, 0], *self._parts(vectors))
            return
        windows = self._windows_for(vectors)
        for part, high, low, window in zip(*self._chunks(vectors), windows):
            if window and window.holds(part, weights[0]):
                high.add_(part[0], alpha=weights[0])
                continue
            rows = part.double() * scale
            for term in rows if len(rows) == 1 else _halved(rows):
                _add(high, low, term)

    def merge(self, other: "ExactSum") -> None:
        """Add another sum."""
        assert other.high is not None and other.low is not None
        for terms in (other.high, other.low):
            for (term,), high, low in zip(*self._chunks(terms[None])):
                _add(high, low, term)
        self._windows = []
        self.weight += other.weight

    def mean(self, dtype: torch.dtype) -> Tensor:
        """Sum of the terms over sum of the weights, [n]."""
        assert self.high is not None and self.low is not None
        return ((self.high + self.low) / self.weight).to(dtype)

    def __getstate__(self) -> dict[str, Any]:
        """What is sent: of ``low`` the entries that are not 0. With whole weights there are hardly any."""
        state = vars(self) | {"_windows": []}
        if self.low is not None:
            (places,) = self.low.nonzero(as_tuple=True)
            if 2 * len(places) < len(self.low):  # a place takes as many bytes as an entry
                state["low"] = places, self.low[places]
        return state

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
        if self.high is not None and isinstance(self.low, tuple):
            places, entries = self.low
            self.low = torch.zeros_like(self.high).index_copy_(0, places, entries)

    def _windows_for(self, rows: Tensor) -> Iterable["_Window | None"]:
        """The windows of the blocks of a row [1, n] on a CPU, where memory is what a sum costs; else None."""
        if len(rows) > 1 or not rows.is_cpu or rows.dtype != torch.float32:
            self._windows = []
        elif self.high is None:
            self._windows = [_Window() for _ in range(0, rows.shape[1], AT_ONCE["cpu"])]
        return self._windows or repeat(None)

    def _chunks(self, rows: Tensor) -> tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]]:
        """Blocks of columns of ``rows`` [C, n] and of the sums; a block fits into the cache."""
        columns = max(1, AT_ONCE[rows.device.type] // len(rows))
        high, low = self._parts(rows)
        return rows.split(columns, 1), high.split(columns), low.split(columns)

    def _parts(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Both parts of the sum [n] of ``rows`` [C, n], 0 at first."""
        if self.high is None or self.low is None:
            self.high, self.low = (torch.zeros_like(rows[0], dtype=torch.float64) for _ in range(2))
        return self.high, self.low


class _Window:
    """The bits that terms have used: whether float64 holds their sum, which then needs no second part.

    All terms are multiples of 2^``lowest``, and their sum, in any order, is at most ``bound`` 2^-126.
    """

    lowest, bound, whole = 1024, 0, True

    def holds(self, x: Tensor, weight: float) -> bool:
        """Whether sums stay exact with ``weight`` times ``x`` (float32); never again once they do not."""
        self.whole &= 0 < weight < 2**29 and weight == int(weight)  # else products are rounded
        if not self.whole:
            return False
        least, most = (int(e) >> 23 for e in torch.aminmax(x.view(torch.int32) & EXPONENT))
        # A finite number with the exponent e is a multiple of 2^(e - 150), and below 2^(e - 126).
        self.lowest = min(self.lowest, max(least, 1) - 150)
        self.bound += int(weight) << most
        self.whole = most < 255 and self.bound <= 1 << 53 + 126 + self.lowest
        return self.whole


@functools.cache
def _kernel(device: str) -> Callable[[Tensor, Tensor, Tensor, Tensor], None] | None:
    """The kernel that adds rows on a GPU; None where operations do that."""
    if device != "cuda":
        return None
    try:
        from fedflow.simulation.exact_rows import add_rows

        one = torch.ones(1, dtype=torch.float64, device=device)
        add_rows(one[None], one, one.clone(), one.clone())
    except Exception as error:  # no Triton, or no C compiler for it
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        warnings.warn(f"sums on the GPU are several operations, not one kernel ({reason})", stacklevel=3)
        return None
    return add_rows


def _add(high: Tensor, low: Tensor, term: Tensor) -> None:
    """Add ``term`` to a sum in two parts, in place."""
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
