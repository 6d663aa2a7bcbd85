"""Convolution as a matrix product, for cohorts in which clients have different filters.

Under `torch.func.vmap` PyTorch computes one grouped convolution with a group per client, for which GPUs have
few fast kernels; batched matrix products of unfolded images are fast.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# A product per image needs no transposed copies, but has a gradient of the filters per image. Wide layers,
# with more filters than a quarter of their positions, have one product of all images: fewer bytes.
WIDE = 4

Pairs = tuple[tuple[int, int], ...]  # kernel, padding, stride, dilation


class Columns(torch.autograd.Function):
    """`F.unfold`: [B, C, H, W] to [B, C k k, H' W'], in one copy for any number of images.

    `F.unfold` itself launches a kernel per image, and the gradient of a strided view has no rule for cohorts.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, pairs: Pairs) -> Tensor:
        kernel, padding, stride, dilation = pairs
        windows = F.pad(x, (padding[1],) * 2 + (padding[0],) * 2) if any(padding) else x
        for dim, size, step, apart in zip((2, 3), kernel, stride, dilation):
            # A window spans all rows (columns) from its first to its last; every ``apart``-th is used.
            windows = windows.unfold(dim, apart * (size - 1) + 1, step)[..., ::apart]
        return windows.permute(0, 1, 4, 5, 2, 3).reshape(len(x), x.shape[1] * kernel[0] * kernel[1], -1)

    @staticmethod
    def setup_context(context: Any, inputs: tuple[Tensor, Pairs], output: Tensor) -> None:
        x, context.pairs = inputs
        context.size = x.shape[-2:]

    @staticmethod
    def backward(context: Any, g: Tensor) -> tuple[Tensor, None]:
        kernel, padding, stride, dilation = context.pairs
        if g.is_cpu:
            return F.fold(g, context.size, kernel, dilation, padding, stride), None
        return folded(g, context.size, context.pairs), None


def folded(g: Tensor, size: Sequence[int], pairs: Pairs) -> Tensor:
    """`F.fold` of ``g`` [B, C k k, H' W'] as one sum per position of the kernel: half the time on a GPU."""
    kernel, padding, stride, dilation = pairs
    wide = [length + 2 * pad for length, pad in zip(size, padding)]
    spans = [apart * (k - 1) + 1 for k, apart in zip(kernel, dilation)]
    steps = [(length - span) // step + 1 for length, span, step in zip(wide, spans, stride)]
    out = g.new_zeros(len(g), g.shape[1] // (kernel[0] * kernel[1]), *wide)
    parts = g.unflatten(2, steps).unflatten(1, (-1, *kernel))
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            rows, columns = (
                slice(at * apart, at * apart + step * (count - 1) + 1, step)
                for at, apart, step, count in zip((i, j), dilation, stride, steps)
            )
            out[:, :, rows, columns].add_(parts[:, :, i, j])
    return out[:, :, padding[0] : padding[0] + size[0], padding[1] : padding[1] + size[1]]


class MatmulConv2d(nn.Conv2d):
    """`nn.Conv2d` (one group, zero padding) by unfolding: the same outputs up to rounding."""

    def forward(self, x: Tensor) -> Tensor:
        assert not isinstance(self.padding, str)
        pairs = self.kernel_size, self.padding, self.stride, self.dilation
        height, width = (
            (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
            for size, kernel, pad, stride, dilation in zip(x.shape[-2:], *pairs)
        )
        columns, kernel = Columns.apply(x, pairs), self.weight.flatten(1)  # [B, C k k, H' W'], [O, C k k]
        if WIDE * self.out_channels > height * width:
            out = kernel @ columns if self.bias is None else kernel @ columns + self.bias[:, None]
        else:
            kernels = kernel.expand(len(x), -1, -1)
            out = (
                torch.bmm(kernels, columns)
                if self.bias is None
                else torch.baddbmm(self.bias[:, None], kernels, columns)
            )
        return out.unflatten(-1, (height, width))


def use_matmul(module: nn.Module) -> nn.Module:
    """Replace every convolution of ``module`` that can be a matrix product; return ``module``."""
    for layer in module.modules():
        plain = type(layer) is nn.Conv2d and layer.groups == 1 and layer.padding_mode == "zeros"
        if plain and not isinstance(layer.padding, str):
            layer.__class__ = MatmulConv2d
    return module
