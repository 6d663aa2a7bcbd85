"""Top-k sparsification: only the largest entries are sent.

Sources: Aji and Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017; Stich et al.,
"Sparsified SGD with Memory", NeurIPS 2018 (the contraction).
"""

from math import ceil

import torch
from torch import Tensor

from fedflow.local.wire import Size
from fedflow.settings import option
from fedflow.simulation.updates._compression import Code, Compression, Draw
from fedflow.simulation.updates.step import register


@register("top_k", "Top-k sparsification")
class TopK(Compression):
    """The k entries of a vector [n] with the largest absolute values are sent, k = ``share`` n, at least 1.

    ||u - C(u)||^2 <= (1 - k / n) ||u||^2. Of equal entries, the first is sent. Of a pruned vector, n counts
    the entries that it keeps. Every entry is sent with its position in ceil(log2 n) bits, or all positions as
    n bits if that is less; n then counts pruned entries too. With share 1, nothing changes.
    """

    share: float = option(doc="share of the entries that cross", symbol="k / n", gt=0, le=1)

    def code(self, u: Tensor, crosses: Tensor, draw: Draw) -> Code:
        k = (self.share * crosses.sum(1).double()).round().clamp(min=1)  # [C]
        order = u.abs().masked_fill(~crosses, -1).sort(dim=1, descending=True, stable=True).indices
        first = torch.arange(u.shape[1], device=u.device) < k[:, None]  # [C, n]
        chosen = crosses & torch.zeros_like(crosses).scatter(1, order, first)
        return Code(u.where(chosen, 0), chosen.sum(1))

    def coded(self, size: Size, n: int, width: int) -> Size:
        if self.share == 1:
            return size
        bits = min(size.entries * (n - 1).bit_length(), n)
        return size._replace(more=size.more + ceil(bits / 8))
