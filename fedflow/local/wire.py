"""The size of messages in bytes: the one counter of traffic, for both directions."""

from collections.abc import Callable, Iterable, Mapping
from math import ceil
from typing import NamedTuple

import torch
from torch import Tensor

SCALAR = 4  # bytes of an uploaded scalar


class Size(NamedTuple):
    """The part of a vector that crosses: ``entries`` of ``bits``, and ``more`` bytes, such as positions."""

    entries: int
    bits: float
    more: int = 0

    @property
    def bytes(self) -> int:
        return ceil(self.entries * self.bits / 8) + self.more


# The size of the vector of this name in a message, from its size so far.
Coding = Callable[[str, Mapping[str, Tensor], Size], Size]


def message_bytes(vectors: Mapping[str, Tensor], scalars: int = 0, codings: Iterable[Coding] = ()) -> int:
    """Bytes of ``vectors`` (name -> any shape) and a number of ``scalars``.

    Vectors count every entry, bool vectors one bit per entry, unless the ``codings`` change that in turn.
    """
    total = SCALAR * scalars
    for name, vector in vectors.items():
        size = Size(vector.numel(), 1 if vector.dtype == torch.bool else 8 * vector.element_size())
        for coding in codings:
            size = coding(name, vectors, size)
        total += size.bytes
    return total


def masked(masks: Mapping[str, str]) -> Coding:
    """The coding of vectors that are sent in part: ``masks`` names another vector for each of them.

    This is a mask (bool, one per entry), or the positions (whole numbers) of the entries of a sparse vector;
    it counts itself.
    """

    def coding(name: str, vectors: Mapping[str, Tensor], size: Size) -> Size:
        mask = vectors.get(masks.get(name, ""))
        if mask is None or vectors[name].dtype == torch.bool:
            return size
        entries = int(mask.count_nonzero()) if mask.dtype == torch.bool else mask.numel()
        return size._replace(entries=entries)

    return coding
