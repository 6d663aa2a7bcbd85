"""Random views of training images: drawn on the host as whole numbers, made on the device.

``flip_crop``: with probability 1/2 an image is mirrored left to right; then, with probability 1/2, it is
padded by 4 zeros on every side and cropped at random to its own size. Pixels are normalised before, so zero
is the mean. Source: Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021, authors'
code for CIFAR-10 and CIFAR-100.
"""

import numpy as np
import torch
from torch import Tensor

PAD = 4
SHIFTS = 2 * PAD + 1  # offsets 0..8 of a crop in each direction


def draw_views(rng: np.random.Generator, shape: tuple[int, ...]) -> Tensor:
    """Views of images, uint8 [*shape, 3]: whether it is mirrored (0 or 1), and the crop's offsets dy, dx.

    Offsets 4, 4 leave the image where it is. Every view takes one random number, so the views of fewer
    epochs are the first of those of more.
    """
    choice, crop = np.divmod(rng.integers(4 * SHIFTS**2, size=shape), SHIFTS**2)
    offsets = np.stack(np.divmod(crop, SHIFTS), axis=-1)
    cropped = np.where((choice >= 2)[..., None], offsets, PAD)
    return torch.from_numpy(np.concatenate([(choice % 2)[..., None], cropped], axis=-1).astype(np.uint8))


def flip_crop(x: Tensor, views: Tensor) -> Tensor:
    """The ``views`` [B, 3] of images ``x`` [B, C, H, W]: the same shape and type; zero outside the image."""
    height, width = x.shape[-2:]
    flip, dy, dx = views.long().unbind(-1)
    rows = torch.arange(height, device=x.device) + dy[:, None] - PAD  # [B, H]
    columns = torch.arange(width, device=x.device) + dx[:, None] - PAD  # [B, W]
    inside = _within(rows, height)[:, :, None] & _within(columns, width)[:, None]  # [B, H, W]
    columns = torch.where(flip[:, None] == 1, width - 1 - columns, columns)
    at = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None]
    pixels = x.flatten(2).gather(2, at.flatten(1)[:, None].expand(-1, x.shape[1], -1))
    return pixels.view(x.shape).where(inside[:, None], 0)


def _within(places: Tensor, size: int) -> Tensor:
    return (places >= 0) & (places < size)
