"""Max pooling as comparisons of whole channels, which TorchInductor turns into vector instructions.

Its code for the operator itself branches at every entry: a fifth of a step of LeNet-5.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

WIDE = 32  # channels that fill vectors


def _values_and_indices(x: Tensor, kernel: Sequence[int], *rest: Any) -> Any:
    """As ``aten.max_pool2d_with_indices``, but an index counts within its window."""
    if not _tiles(kernel, *rest):
        return NotImplemented
    (kh, kw), (h, w) = kernel, _whole(x, kernel)
    images = x.permute(0, 2, 3, 1)  # as convolutions want them: channels next to each other
    best, *others = [images[:, i:h:kh, j:w:kw] for i in range(kh) for j in range(kw)]
    at = torch.zeros_like(best, dtype=torch.int32)
    for index, value in enumerate(others, 1):
        better = (value > best) | (value != value)  # NaN wins; ties: the first
        best, at = torch.where(better, value, best), torch.where(better, index, at)
    return best.permute(0, 3, 1, 2), stored(at).permute(0, 3, 1, 2)


def _gradient(g: Tensor, x: Tensor, kernel: Sequence[int], *rest: Any) -> Any:
    """As ``aten.max_pool2d_with_indices_backward``, for such indices."""
    *geometry, at = rest
    if not _tiles(kernel, *geometry):
        return NotImplemented
    (kh, kw), (height, width), (h, w) = kernel, x.shape[-2:], _whole(x, kernel)
    g, at = stored(g.permute(0, 2, 3, 1)), at.permute(0, 2, 3, 1)
    if g.shape[-1] >= WIDE:  # a vector is one entry of the window
        indices = torch.arange(kh * kw, dtype=at.dtype).view(kh, 1, kw, 1)
        spread = torch.where(at[:, :, None, :, None] == indices, g[:, :, None, :, None], 0)
    else:  # it is a part of a row
        spread = torch.stack(
            [
                torch.cat([torch.where(at == i * kw + j, g, 0) for j in range(kw)], -1).flatten(2)
                for i in range(kh)
            ],
            2,
        )
    whole = spread.reshape(len(x), h, w, -1).permute(0, 3, 1, 2)
    return whole if (h, w) == (height, width) else F.pad(whole, (0, width - w, 0, height - h))


def stored(values: Tensor) -> Tensor:
    """``values`` as an array in the order of their axes, computed once, not where they are read."""
    values = values.contiguous()
    return values.as_strided(values.shape, values.stride())


def _tiles(
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    ceil_mode: bool = False,
) -> bool:
    """True if windows are adjacent, disjoint and inside the image."""
    return (
        len(kernel) == 2
        and [*stride] in ([], [*kernel])
        and not any(padding)
        and {*dilation} == {1}
        and not ceil_mode
    )


def _whole(x: Tensor, kernel: Sequence[int]) -> tuple[int, int]:
    """Height and width of the part that complete windows cover."""
    return x.shape[-2] // kernel[0] * kernel[0], x.shape[-1] // kernel[1] * kernel[1]


POOLING: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.max_pool2d_with_indices.default: _values_and_indices,
    torch.ops.aten.max_pool2d_with_indices_backward.default: _gradient,
}
