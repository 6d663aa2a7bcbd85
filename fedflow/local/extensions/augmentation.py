"""Random views of training images: drawn on the host as whole numbers, made on the device.

``flip_crop``: with probability 1/2 an image is mirrored left to right; then, with probability 1/2, it is
padded by 4 zeros on every side and cropped at random to its own size. ``flip_crop_cutout``: then a square of
16x16 pixels around a random pixel becomes zero, as far as it is inside the image. Pixels are normalized
before, so zero is the mean.
Sources: Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021, authors' code for
CIFAR-10 and CIFAR-100; DeVries, Taylor, "Improved Regularization of Convolutional Neural Networks with
Cutout", arXiv 1708.04552.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedflow.data.examples import Examples
from fedflow.errors import BadInput
from fedflow.local.extensions.extension import Drawing, Extension
from fedflow.local.samples import Batch
from fedflow.local.schedule import SAMPLE, Extra
from fedflow.models.flat import FlatModel
from fedflow.settings import option

VIEWS, OTHER = "views", "other"  # drawn numbers, and the second view of the inputs [B, ...] of a batch
PAD = 4
SHIFTS = 2 * PAD + 1  # offsets 0..8 of a crop in each direction
FLIP_CROP = 3  # numbers of a view without Cutout
CUTOUT = 16  # side of the square
FINE = 1 << 15  # positions of its center in each direction, in parts of a side of the image


class Augmentation(Extension):
    """Random views of the images of all steps on batches, in place of the images."""

    section = "training.augment"
    for_samples: ClassVar[bool] = True
    needs_batches: ClassVar[bool] = True
    tuned: ClassVar[bool] = True

    name: str = option(doc="mirrored and shifted; with holes", choices=("flip_crop", "flip_crop_cutout"))

    @classmethod
    def of(cls, training: Any) -> "Augmentation | None":
        return None if training.augment == "none" else cls(name=training.augment)

    def refused(self, accepted: str) -> BadInput:
        return BadInput(self.section, self.name, f"none {accepted}")

    def check(self, model: FlatModel, examples: Examples, inputs: Mapping[str, Any]) -> None:
        """Only images [C, H, W] can be augmented, and Cutout must not hide a whole one."""
        if examples.x.ndim != 4:
            accepted = f"none, as inputs of shape {list(examples.x.shape[1:])} are not images"
            raise BadInput(self.section, self.name, accepted)
        height, width = examples.x.shape[-2:]
        if self.name == "flip_crop_cutout" and min(height, width) <= CUTOUT:
            accepted = f"none or flip_crop, as Cutout can hide a whole image of {height}x{width}"
            raise BadInput(self.section, self.name, accepted)

    def draw(self, drawing: Drawing) -> Mapping[str, Extra]:
        """V views of each sample [S, B, V, 3 or 5]; the first of two is the one of a run with one."""
        shape, cutout = tuple(drawing.schedule.positions.shape), self.name == "flip_crop_cutout"
        views = max(extension.views for extension in drawing.extensions)
        rngs = [drawing.rng(purpose) for purpose in (VIEWS, f"other {VIEWS}")[:views]]
        return {VIEWS: Extra(torch.stack([draw_views(rng, shape, cutout) for rng in rngs], dim=-2), SAMPLE)}

    def batch(self, batch: Batch) -> Batch:
        if VIEWS not in batch.extra:
            return batch
        x, *others = (augmented(batch.x, view) for view in batch.extra[VIEWS].unbind(-2))
        return replace(batch, x=x, extra=batch.extra | ({OTHER: others[0]} if others else {}))


def draw_views(rng: np.random.Generator, shape: tuple[int, ...], cutout: bool = False) -> Tensor:
    """Views of images, uint8 [*shape, 3]: 1 if mirrored, else 0, and the crop's offsets dy, dx.

    Offsets 4, 4 do not shift the image. With ``cutout``, int16 [*shape, 5]: also the center y, x of the
    square, in 1/`FINE` of the sides. Every view takes one random number, so more epochs begin with the views
    of fewer.
    """
    kinds = 4 * SHIFTS**2
    center, kind = np.divmod(rng.integers(kinds * (FINE**2 if cutout else 1), size=shape), kinds)
    choice, crop = np.divmod(kind, SHIFTS**2)
    offsets = np.stack(np.divmod(crop, SHIFTS), axis=-1)
    view = [(choice % 2)[..., None], np.where((choice >= 2)[..., None], offsets, PAD)]
    if not cutout:
        return torch.from_numpy(np.concatenate(view, axis=-1).astype(np.uint8))
    view.append(np.stack(np.divmod(center, FINE), axis=-1))
    return torch.from_numpy(np.concatenate(view, axis=-1).astype(np.int16))


def augmented(x: Tensor, views: Tensor) -> Tensor:
    """The ``views`` [B, 3 or 5] of images ``x`` [B, C, H, W]: the same shape and type."""
    x = flip_crop(x, views[:, :FLIP_CROP])
    return cutout(x, views[:, FLIP_CROP:]) if views.shape[1] > FLIP_CROP else x


def flip_crop(x: Tensor, views: Tensor) -> Tensor:
    """Images ``x`` [B, C, H, W] mirrored and cropped by ``views`` [B, 3]; zero outside the image."""
    height, width = x.shape[-2:]
    flip, dy, dx = views.long().unbind(-1)
    rows = torch.arange(height, device=x.device) + dy[:, None] - PAD  # [B, H]
    columns = torch.arange(width, device=x.device) + dx[:, None] - PAD  # [B, W]
    inside = _within(rows, height)[:, :, None] & _within(columns, width)[:, None]  # [B, H, W]
    columns = torch.where(flip[:, None] == 1, width - 1 - columns, columns)
    at = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None]
    pixels = x.flatten(2).gather(2, at.flatten(1)[:, None].expand(-1, x.shape[1], -1))
    return pixels.view(x.shape).where(inside[:, None], 0)


def cutout(x: Tensor, centers: Tensor) -> Tensor:
    """Images ``x`` [B, C, H, W] with a square of zeros around ``centers`` [B, 2], in 1/`FINE` of a side."""

    def hidden(center: Tensor, side: int) -> Tensor:  # [B, side]
        distances = torch.arange(side, device=x.device) - (center.long() * side // FINE)[:, None]
        return _within(distances + CUTOUT // 2, CUTOUT)

    rows, columns = (hidden(center, side) for center, side in zip(centers.unbind(-1), x.shape[-2:]))
    return x.where(~(rows[:, :, None] & columns[:, None])[:, None], 0)


def _within(index: Tensor, size: int) -> Tensor:
    return (index >= 0) & (index < size)
