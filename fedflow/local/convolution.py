"""The gradient of a convolution by its input as one matrix product, for inputs with few channels.

The library's kernel computes 16 channels at a time; with 6 channels most of this work is wasted, a tenth of a
step of LeNet-5.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

FEW = 8  # input channels up to which the product is the faster form


def _gradients(
    g: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    wanted: Sequence[bool],
) -> Any:
    """As ``aten.convolution_backward``: gradients by input, weight and bias, as ``wanted`` says."""
    plain = {*stride, *dilation} == {1} and groups == 1 and not transposed and weight.dim() == 4
    if not (plain and wanted[0] and x.shape[1] <= FEW):
        return NotImplemented
    _, by_weight, by_bias = torch.ops.aten.convolution_backward(
        g, x, weight, bias_sizes, stride, padding, dilation, False, output_padding, 1, [False, *wanted[1:]]
    )
    return _by_input(g, x, weight, padding), by_weight, by_bias


def _by_input(g: Tensor, x: Tensor, weight: Tensor, padding: Sequence[int]) -> Tensor:
    """Every output's gradient times the kernel, shifted to the kernel's position, and summed."""
    n, out, h, w = g.shape
    channels, kh, kw = weight.shape[1:]
    kernel = weight.permute(1, 2, 3, 0).reshape(-1, out)
    parts = (kernel @ g.permute(1, 0, 2, 3).reshape(out, -1)).view(channels, kh, kw, n, h, w)
    padded = sum(F.pad(parts[:, i, j], (j, kw - 1 - j, i, kh - 1 - i)) for i in range(kh) for j in range(kw))
    assert isinstance(padded, Tensor)
    top, left = padding
    return padded[:, :, top : top + x.shape[2], left : left + x.shape[3]].permute(1, 0, 2, 3)


CONVOLUTION: dict[Any, Callable] = {torch.ops.aten.convolution_backward.default: _gradients}
