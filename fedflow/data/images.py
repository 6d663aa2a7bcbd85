"""Operations on uint8 images, [n, h, w] (gray) or [n, h, w, 3] (color), before they are stored."""

import numpy as np

Constants = tuple[float, ...] | tuple[tuple[float, ...], ...]  # by channel, or by domain and channel


def resized(x: np.ndarray, side: int, crop: bool = False) -> np.ndarray:
    """Square images of ``side`` pixels, made by `squared`."""
    return x if x.shape[1:3] == (side, side) else np.stack([squared(image, side, crop) for image in x])


def squared(image: np.ndarray, side: int, crop: bool = False) -> np.ndarray:
    """One image [h, w] or [h, w, 3] as ``side`` x ``side`` pixels, rounded to whole levels.

    Bilinear, antialiased if it shrinks. An oblong image is squeezed into the square; with ``crop``, only
    its largest central square is kept.
    """
    from PIL import Image

    height, width = image.shape[:2]
    left, top = (np.array([width, height]) - min(height, width)) / 2 if crop else (0, 0)
    box = (left, top, width - left, height - top)
    return np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.BILINEAR, box))


def padded(x: np.ndarray, pad: int) -> np.ndarray:
    """Images with ``pad`` zeros added on each side."""
    return np.pad(x, [(0, 0), (pad, pad), (pad, pad), *[(0, 0)] * (x.ndim - 3)]) if pad else x


def colored(x: np.ndarray) -> np.ndarray:
    """Images in color; gray ones are repeated, as a read-only view."""
    return x if x.ndim == 4 else np.broadcast_to(x[..., None], (*x.shape, 3))


def rotated(x: np.ndarray, angles: list[int]) -> np.ndarray:
    """All images at the first angle, then all at the next: degrees counter-clockwise, multiples of 90."""
    return np.concatenate([np.rot90(x, angle // 90, axes=(1, 2)) for angle in angles])


def channels_first(x: np.ndarray) -> np.ndarray:
    """[n, 1, h, w] or [n, 3, h, w], contiguous."""
    return np.ascontiguousarray(x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2))


def mean_and_std(x: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std per channel of pixels scaled to [0, 1]; std 1 where a channel is constant."""
    pixels = x.reshape(-1, 3 if x.ndim == 4 else 1)
    # Counts of the 256 levels make the sums exact, hence the same on every machine.
    levels = np.stack([np.bincount(channel, minlength=256) for channel in pixels.T]) / len(pixels)
    values = np.arange(256) / 255
    mean = levels @ values
    std = np.sqrt(np.maximum(levels @ values**2 - mean**2, 0))
    return tuple(round(float(m), 6) for m in mean), tuple(round(float(s), 6) or 1.0 for s in std)


def repeated(constants: Constants) -> Constants:
    """Constants of gray images for three equal channels (of every domain, if there are several)."""
    several = tuple(c * 3 for c in constants if isinstance(c, tuple))
    return several or constants * 3
