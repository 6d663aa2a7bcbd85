"""The samples that a client or a server trains on, and batches of them."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fedflow.data.examples import Examples

EVALUATION_BATCH = 512


@dataclass
class Batch:
    """Inputs [B, ...] and targets [B].

    ``mask`` [B] is true for samples that count (None: all), ``real`` [B] for samples that are not the padding
    of a cohort (None: all). ``positions`` [B] count the client's samples from 0. ``extra`` has the numbers,
    tensors and further batches that extensions made for this step, by name. ``seen`` records the data losses,
    scalar, that an objective computed on this batch, each with the buffers [Q] after it (None if unchanged).
    """

    x: Tensor
    y: Tensor
    mask: Tensor | None = None
    positions: Tensor | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    seen: list[tuple[Tensor, Tensor | None]] | None = None
    real: Tensor | None = None

    @property
    def draws(self) -> Tensor | None:
        """The uniform numbers [q] that `Noisy.draws` asked for, if any."""
        return self.extra.get("draws")

    def mean(self, values: Tensor) -> Tensor:
        """The mean of ``values`` [B] over the samples that count, scalar; 0 without any (a padded step)."""
        if self.mask is None:
            return values.mean()
        return (values * self.mask).sum() / self.mask.sum().clamp(min=1)

    def only(self, chosen: Tensor) -> "Batch":
        """This batch with only the ``chosen`` [B] samples counting."""
        return replace(self, mask=chosen if self.mask is None else self.mask & chosen)


@dataclass(frozen=True)
class Samples:
    """The ``rows`` [n] of ``examples``; only the ``real`` [n] ones count (None: all)."""

    examples: Examples
    rows: Tensor
    real: Tensor | None = None

    @classmethod
    def all_of(cls, examples: Examples) -> "Samples":
        return cls(examples, torch.arange(len(examples), device=examples.device))

    @property
    def count(self) -> Tensor | int:
        """The number of samples, a scalar tensor in a padded cohort."""
        return len(self.rows) if self.real is None else self.real.sum()

    def counted(self, dtype: torch.dtype) -> Tensor:
        """`count` as a scalar tensor, created on the device: a copy from the host would stall a GPU."""
        count, device = self.count, self.rows.device
        if isinstance(count, Tensor):
            return count.to(device, dtype)
        return torch.full((), count, dtype=dtype, device=device)

    @property
    def numel(self) -> int:
        """Numbers in all inputs together."""
        return len(self.rows) * self.examples.x[0].numel()

    def batch(self, positions: Tensor, mask: Tensor | None, dtype: torch.dtype) -> Batch:
        """The samples at ``positions`` [B]."""
        rows = self.rows[positions]
        return Batch(
            self.examples.inputs(rows, dtype), self.examples.targets(rows), mask, positions, real=mask
        )

    def chunks(self, dtype: torch.dtype) -> Iterator[Batch]:
        """All samples in order, `EVALUATION_BATCH` at a time."""
        for start in range(0, len(self.rows), EVALUATION_BATCH):
            chunk = slice(start, start + EVALUATION_BATCH)
            rows = self.rows[chunk]
            mask = None if self.real is None else self.real[chunk]
            yield Batch(self.examples.inputs(rows, dtype), self.examples.targets(rows), mask, real=mask)
