"""Convolutions of 3 x 3 by Winograd's algorithm F(4 x 4, 3 x 3), with a quarter of the multiplications.

Every tile of 4 x 4 outputs depends on 6 x 6 inputs. Between transforms by small constant matrices, the
convolution is one product over channels for each of the 36 entries: outputs = A'[(G k G')(B' x B)]A.
Gradients are the transposed steps, with the same transformed inputs and kernels. Rounding errors are 1e-6
to 4e-6 of the results, about ten times the errors of the direct sum.

Source: Lavin and Gray, "Fast algorithms for convolutional neural networks", CVPR 2016, section 4.3.
"""

import functools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

TILE, KERNEL = 4, 3
REACH = TILE + KERNEL - 1  # inputs of a tile, along each axis
CHANNELS = 20  # half the harmonic mean of both numbers of channels, from here up
TILES = 36  # in a batch, which share a transformed kernel, from here up
WASTE = 1.2  # computed outputs by wanted outputs, up to here
MATRICES = {
    "inputs": np.array(  # B'
        [
            [4, 0, -5, 0, 1, 0],
            [0, -4, -4, 1, 1, 0],
            [0, 4, -4, -1, 1, 0],
            [0, -2, -1, 2, 1, 0],
            [0, 2, -1, -2, 1, 0],
            [0, 4, 0, -5, 0, 1],
        ]
    ),
    "kernels": np.array(  # G
        [[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]]
    )
    / 24,
    "outputs": np.array(
        [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]]
    ),  # A'
}


def pays(x: Tensor, kernel: Tensor, padding: Sequence[int]) -> bool:
    """True if the saved products cost more than the transforms, as measured on one core."""
    out, channels, *size = kernel.shape
    (th, tw), (height, width) = _tiles(x, padding), _output_size(x, padding)
    return (
        size == [KERNEL, KERNEL]
        and out * channels >= CHANNELS * (out + channels)
        and len(x) * th * tw >= TILES
        and TILE**2 * th * tw <= WASTE * height * width
    )


def convolve(x: Tensor, kernel: Tensor, padding: Sequence[int]) -> Tensor:
    """As ``F.conv2d(x [B, C, H, W], kernel [K, C, 3, 3], padding=padding)``; the result is channels-last."""
    products = torch.bmm(_inputs(x, padding), _kernel(kernel))
    whole = (matrix("outputs", False, x.dtype) @ products.flatten(1)).view(
        TILE, TILE, len(x), *_tiles(x, padding), -1
    )
    height, width = _output_size(x, padding)
    whole = whole.permute(2, 3, 0, 4, 1, 5).flatten(3, 4).flatten(1, 2)
    return whole[:, :height, :width].permute(0, 3, 1, 2)


def gradients(
    g: Tensor, x: Tensor, kernel: Tensor, padding: Sequence[int], by_input: bool
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Gradients by ``x`` (if ``by_input``), ``kernel`` and bias, from the gradient ``g`` [B, K, H', W']."""
    (th, tw), (out, channels) = _tiles(x, padding), kernel.shape[:2]
    g = F.pad(g.permute(0, 2, 3, 1), (0, 0, 0, tw * TILE - g.shape[3], 0, th * TILE - g.shape[2]))
    blocks = g.unflatten(2, (tw, TILE)).unflatten(1, (th, TILE)).permute(2, 4, 0, 1, 3, 5)
    blocks = blocks.reshape(TILE**2, -1)
    products = (matrix("outputs", True, x.dtype) @ blocks).view(REACH**2, -1, out)
    entries = torch.bmm(_inputs(x, padding).transpose(1, 2), products)
    by_kernel = matrix("kernels", True, x.dtype) @ entries.flatten(1)
    by_kernel = by_kernel.view(KERNEL, KERNEL, channels, out).permute(3, 2, 0, 1)
    by_bias = blocks.reshape(-1, out).sum(0)
    if not by_input:
        return None, by_kernel, by_bias
    back = torch.bmm(products, _kernel(kernel).transpose(1, 2))
    parts = (matrix("inputs", True, x.dtype) @ back.flatten(1)).view(REACH, REACH, len(x), th, tw, channels)
    rows = _overlapping(parts.transpose(0, 1), 3)  # [6, B, th, W, C]
    whole = _overlapping(rows, 1).permute(0, 3, 1, 2)
    (top, left), (height, width) = padding, x.shape[2:]
    return whole[:, :, top : top + height, left : left + width], by_kernel, by_bias


def _inputs(x: Tensor, padding: Sequence[int]) -> Tensor:
    """The transformed inputs of all tiles [36, B tiles, C]."""
    th, tw = _tiles(x, padding)
    height, width = th * TILE + KERNEL - 1, tw * TILE + KERNEL - 1
    top, left = padding
    bottom, right = height - top - x.shape[2], width - left - x.shape[3]
    images = x.permute(0, 2, 3, 1)
    if any((top, left, bottom, right)):
        images = F.pad(images, (0, 0, left, right, top, bottom))
    patches = images.unfold(1, REACH, TILE).unfold(2, REACH, TILE).permute(4, 5, 0, 1, 2, 3)
    return (matrix("inputs", False, x.dtype) @ patches.reshape(REACH**2, -1)).view(REACH**2, -1, x.shape[1])


def _kernel(kernel: Tensor) -> Tensor:
    out, channels = kernel.shape[:2]
    entries = kernel.permute(2, 3, 1, 0).reshape(KERNEL**2, -1)
    return (matrix("kernels", False, kernel.dtype) @ entries).view(REACH**2, channels, out)


def _overlapping(parts: Tensor, axis: int) -> Tensor:
    """Tiles of 6 entries (first axis), 4 apart along ``axis`` after it, added where they overlap: 4 n + 2."""
    head = torch.movedim(parts[:TILE], 0, axis + 1).flatten(axis, axis + 1)
    tail = F.pad(
        torch.movedim(parts[TILE:], 0, axis + 1), [0, 0] * (parts.dim() - 2 - axis) + [0, 2 * TILE - REACH]
    )
    tail = tail.flatten(axis, axis + 1)
    more, others = REACH - TILE, [0, 0] * (head.dim() - 1 - axis)
    tail = F.pad(tail, [*others, TILE, 0]).narrow(axis, 0, head.shape[axis] + more)
    return F.pad(head, [*others, 0, more]) + tail


@functools.cache  # one tensor of each kind in a graph, so that its equal parts are found
def matrix(step: str, transposed: bool, dtype: torch.dtype) -> Tensor:
    """The matrix of a step for both axes of flattened tiles."""
    both = np.kron(MATRICES[step], MATRICES[step])
    return torch.tensor((both.T if transposed else both).tolist(), dtype=dtype)


def _output_size(x: Tensor, padding: Sequence[int]) -> tuple[int, int]:
    return x.shape[2] + 2 * padding[0] - KERNEL + 1, x.shape[3] + 2 * padding[1] - KERNEL + 1


def _tiles(x: Tensor, padding: Sequence[int]) -> tuple[int, int]:
    """The number of tiles that cover the outputs, along each axis."""
    height, width = _output_size(x, padding)
    return -(-height // TILE), -(-width // TILE)
