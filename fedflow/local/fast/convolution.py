"""Convolutions in the form that takes least time on one core, as replacements while a step is traced.

The gradient by an input with few channels is one matrix product: the library's kernel computes 16 channels
at a time, and with 6 channels most of this work is wasted, a tenth of a step of LeNet-5. Convolutions of
3 x 3 between many channels use Winograd's algorithm.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedflow.local.fast import winograd

FEW = 8  # input channels up to which the product is the faster form


def _outputs(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    """As ``aten.convolution``."""
    if not (_plain(weight, stride, dilation, transposed, groups) and winograd.pays(x, weight, padding)):
        return NotImplemented
    outputs = winograd.convolve(x, weight, padding)
    return outputs if bias is None else outputs + bias[:, None, None]


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
    if not _plain(weight, stride, dilation, transposed, groups):
        return NotImplemented
    if winograd.pays(x, weight, padding):
        return winograd.gradients(g, x, weight, padding, wanted[0])
    if not (wanted[0] and x.shape[1] <= FEW):
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


def _plain(
    weight: Tensor, stride: Sequence[int], dilation: Sequence[int], transposed: bool, groups: int
) -> bool:
    return {*stride, *dilation} == {1} and groups == 1 and not transposed and weight.dim() == 4


CONVOLUTION: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.convolution.default: _outputs,
    torch.ops.aten.convolution_backward.default: _gradients,
}
