"""Group normalization of images with adjacent channels, in a form that TorchInductor makes fast.

Sums over positions, channel by channel, come before those over the channels of a group. What is summed is
stored first: the compiler would compute it again for every sum, which took half of a step.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fedflow.local.fast.pooling import stored


def _outputs(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    n: int,
    c: int,
    positions: int,
    groups: int,
    eps: float,
) -> Any:
    """As ``aten.native_group_norm``: outputs, and mean and 1 / standard deviation [N, G]."""
    if x.dim() != 4:
        return NotImplemented
    rows = _rows(x)
    mean = _by_group(rows.sum(1), groups) / (positions * c // groups)
    variance = _by_group((rows - _by_channel(mean, c)[:, None]).square().sum(1), groups)
    scale = torch.rsqrt(variance / (positions * c // groups) + eps)
    factor = _by_channel(scale, c) if weight is None else _by_channel(scale, c) * weight
    shift = -_by_channel(mean, c) * factor if bias is None else bias - _by_channel(mean, c) * factor
    return _images(rows * factor[:, None] + shift[:, None], x), mean, scale


def _gradients(
    g: Tensor,
    x: Tensor,
    mean: Tensor,
    scale: Tensor,
    weight: Tensor | None,
    n: int,
    c: int,
    positions: int,
    groups: int,
    wanted: Sequence[bool],
) -> Any:
    """As ``aten.native_group_norm_backward``: gradients by input, weight and bias."""
    if x.dim() != 4:
        return NotImplemented
    g_rows, rows = _rows(g), _rows(x)
    scale_c, mean_c = _by_channel(scale, c), _by_channel(mean, c)
    by_bias = g_rows.sum(1)
    by_weight = ((g_rows * rows).sum(1) - by_bias * mean_c) * scale_c
    factor = scale_c if weight is None else scale_c * weight
    per = 1 if weight is None else weight
    size = positions * c // groups
    along = _by_channel(_by_group(by_weight * per, groups), c) * scale_c.square() / size
    level = _by_channel(_by_group(by_bias * per, groups), c) * scale_c / size
    by_input = None
    if wanted[0]:
        by_rows = g_rows * factor[:, None] - rows * along[:, None] + (along * mean_c - level)[:, None]
        by_input = _images(by_rows, x)
    return by_input, by_weight.sum(0) if wanted[1] else None, by_bias.sum(0) if wanted[2] else None


def _rows(images: Tensor) -> Tensor:
    """[N, C, H, W] as [N, H W, C], stored."""
    return stored(images.permute(0, 2, 3, 1)).flatten(1, 2)


def _images(rows: Tensor, like: Tensor) -> Tensor:
    images: Tensor = rows.unflatten(1, like.shape[2:]).permute(0, 3, 1, 2)
    return images


def _by_group(values: Tensor, groups: int) -> Tensor:
    """Sums [N, G] of values [N, C]."""
    sums: Tensor = values.unflatten(1, (groups, -1)).sum(2)
    return sums


def _by_channel(values: Tensor, channels: int) -> Tensor:
    """Values [N, G] for each channel [N, C]."""
    n, groups = values.shape
    return values[:, :, None].expand(n, groups, channels // groups).reshape(n, channels)


NORMS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.native_group_norm.default: _outputs,
    torch.ops.aten.native_group_norm_backward.default: _gradients,
}
