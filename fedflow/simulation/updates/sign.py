"""Scaled signs: one bit for every entry.

Source: Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019.
"""

import torch
from torch import Tensor

from fedflow.local.wire import Size
from fedflow.simulation.updates._compression import Code, Compression, Draw
from fedflow.simulation.updates.step import register


@register("sign", "Scaled signs")
class Sign(Compression):
    """A vector u [n] becomes ||u||_1 / n sign(u), where 0 counts as positive.

    ||u - C(u)||^2 = ||u||^2 - ||u||_1^2 / n. One bit per entry and the factor are sent. Of a pruned vector,
    n counts the entries that it keeps.
    """

    def code(self, u: Tensor, crosses: Tensor, draw: Draw) -> Code:
        entries = crosses.sum(1)
        scale = (u.double().abs().sum(1) / entries.clamp(min=1)).to(u.dtype)[:, None]  # [C, 1]
        return Code(torch.where(u < 0, -scale, scale).where(crosses, 0), entries)

    def coded(self, size: Size, n: int, width: int) -> Size:
        return size._replace(bits=1, more=size.more + width)
