"""The last vectors of the clients that took part: memory grows with these, not with all clients."""

from collections.abc import Sequence

import torch
from torch import Tensor


def replaced(
    clients: Tensor | None, rows: Tensor | None, ids: Sequence[int], new: Tensor
) -> tuple[Tensor, Tensor]:
    """Sorted clients [n] and their last vectors [n, D], after ``ids`` sent ``new`` [m, D].

    ``clients`` and ``rows`` are the clients and vectors before, None at first.
    """
    after = torch.as_tensor(ids, dtype=torch.int64)
    if clients is not None and rows is not None:
        after = torch.cat([clients.cpu(), after])
    after = after.unique()
    last = new.new_empty(len(after), new.shape[1])
    if clients is not None and rows is not None:
        last[torch.searchsorted(after, clients.cpu())] = rows
    last[torch.searchsorted(after, torch.as_tensor(ids, dtype=torch.int64))] = new
    return after, last
