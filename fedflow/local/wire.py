"""The size of messages in bytes: the one counter of traffic, for both directions."""

from collections.abc import Mapping

import torch
from torch import Tensor

SCALAR = 4  # bytes of an uploaded scalar
POSITION = 4  # bytes of an entry's place in a sparse vector


def message_bytes(
    vectors: Mapping[str, Tensor], scalars: int = 0, masks: Mapping[str, str] | None = None
) -> int:
    """Bytes of ``vectors`` (name -> any shape) and a number of ``scalars``.

    Dense vectors count every entry, bool vectors one bit per entry, sparse ones (COO) every stored entry and
    its position. ``masks`` (vector -> the mask among ``vectors``) names vectors that are sent only where the
    mask is true.
    """
    masks = masks or {}
    return SCALAR * scalars + sum(_size(v, vectors.get(masks.get(name, ""))) for name, v in vectors.items())


def _size(vector: Tensor, mask: Tensor | None) -> int:
    if vector.dtype == torch.bool:
        return -(-vector.numel() // 8)
    if vector.is_sparse:
        values = vector.coalesce().values()
        return values.numel() * (values.element_size() + POSITION)
    entries = vector.numel() if mask is None else int(mask.count_nonzero())
    return entries * vector.element_size()
