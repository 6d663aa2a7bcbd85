"""The size of messages in bytes: the one counter of traffic, for both directions."""

from collections.abc import Mapping

import torch
from torch import Tensor

SCALAR = 4  # bytes of an uploaded scalar


def message_bytes(
    vectors: Mapping[str, Tensor], scalars: int = 0, masks: Mapping[str, str] | None = None
) -> int:
    """Bytes of ``vectors`` (name -> any shape) and a number of ``scalars``.

    Dense vectors count every entry, bool vectors one bit per entry. ``masks`` (vector -> another of
    ``vectors``) names vectors of which a part is sent: the entries under a mask (bool, one per entry), or, of
    sparse vectors, the entries at positions (whole numbers). Masks and positions count themselves.
    """
    masks = masks or {}
    return SCALAR * scalars + sum(_size(v, vectors.get(masks.get(name, ""))) for name, v in vectors.items())


def _size(vector: Tensor, mask: Tensor | None) -> int:
    if vector.dtype == torch.bool:
        return -(-vector.numel() // 8)
    if mask is None:
        entries = vector.numel()
    else:
        entries = int(mask.count_nonzero()) if mask.dtype == torch.bool else mask.numel()
    return entries * vector.element_size()
