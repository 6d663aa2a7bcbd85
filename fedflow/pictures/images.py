"""Pictures of generated images: one round, a class by round, and the closest to training images."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedflow.data.generated import GeneratedImages, LastImages, Pair
from fedflow.pictures.drawing import Drawing, drawing
from fedflow.pictures.series import WIDTH

NARROW, BROAD = 0.35, 0.8  # inches for the words on the left
COLUMNS, ROUNDS, CLASSES = 20, 10, 50  # shown: the first ones; rounds that are evenly spaced
MOST = 0.45  # inches, of the side of an image


def grid(pair: Pair, accuracy: Tensor | None, name: str) -> Drawing:
    """The images of one round, a row per class, labeled with its ``accuracy`` [K] if given."""
    x, y = pair
    labels = _labels(y)
    rows, words, left = [x[y == label][:COLUMNS] for label in labels], list(map(str, labels)), NARROW
    if accuracy is not None:
        words = [f"{label}   {100 * share:.0f} %" for label, share in zip(labels, accuracy[labels].tolist())]
        left = BROAD
    return _drawn(rows, words, left, name, "Generated images, a row per class")


def by_round(rounds: Mapping[int, Pair], name: str) -> Drawing:
    """The first image of every class, a row per class and a column per evaluated round."""
    evaluated = sorted(rounds)
    picks = np.unique(np.linspace(0, len(evaluated) - 1, ROUNDS).round().astype(int))
    shown, labels = [evaluated[i] for i in picks], _labels(rounds[evaluated[-1]][1])
    rows = [torch.cat([rounds[t][0][rounds[t][1] == label][:1] for t in shown]) for label in labels]
    described = "An image of every class by round"
    return _drawn(rows, list(map(str, labels)), NARROW, name, described, list(map(str, shown)), "round")


def closest(pair: Pair, last: LastImages, name: str) -> Drawing:
    """The generated images that are nearest to training images, above them, with the distances."""
    distances = [f"{distance:.2f}" for distance in last.distance.tolist()]
    described = "Generated images and the training images nearest to them"
    rows = [pair[0][last.image], last.x]
    return _drawn(rows, ["generated", "training"], BROAD, name, described, distances, "distance")


def draw_images(folder: Path, images: GeneratedImages) -> None:
    """Write PNGs: the images of every round, one per class by round, and the closest to training images."""
    for t, pair in images.rounds.items():
        last = images.last if t == max(images.rounds) else None
        grid(pair, last.accuracy if last else None, "grid").png(folder / f"round-{t:04d}.png")
    by_round(images.rounds, "rounds").png(folder / "rounds.png")
    if images.last:
        closest(images.rounds[max(images.rounds)], images.last, "closest").png(folder / "closest.png")


def mosaic(rows: Sequence[Tensor]) -> np.ndarray:
    """Rows of images uint8 [c, C, H, W] as one, RGBA; gaps and missing images are transparent."""
    height, width = rows[0].shape[2:]
    gap, columns = max(1, height // 12), max(map(len, rows))
    whole = np.zeros((len(rows) * (height + gap) - gap, columns * (width + gap) - gap, 4), np.uint8)
    for i, row in enumerate(rows):
        for j, image in enumerate(row.permute(0, 2, 3, 1).numpy()):
            cell = whole[i * (height + gap) :, j * (width + gap) :][:height, :width]
            cell[..., :3], cell[..., 3] = image, 255  # gray is repeated
    return whole


def _labels(y: Tensor) -> list[int]:
    return y.unique().tolist()[:CLASSES]


def _drawn(
    rows: Sequence[Tensor],
    words: Sequence[str],
    left: float,
    name: str,
    described: str,
    above: Sequence[str] = (),
    title: str = "",
) -> Drawing:
    """The ``rows`` of images with ``words`` on their left, and words and a title ``above`` the columns."""
    whole = mosaic(rows)
    right, top = 0.06, 0.4 if above else 0.06
    columns = max(map(len, rows))
    across = min(WIDTH - left - right, MOST * columns)
    down = across * whole.shape[0] / whole.shape[1]
    box = (left, 0.06, WIDTH - left - across, top)
    with drawing(name, described, down + 0.06 + top, box, WIDTH) as work:
        axes, wide, high = work.axes, whole.shape[1] / columns, whole.shape[0] / len(rows)
        axes.imshow(whole, interpolation="none", aspect="auto")
        axes.grid(False)
        axes.spines[:].set(visible=False)
        axes.set_yticks(((np.arange(len(rows)) + 0.5) * high - 0.5).tolist(), words)
        axes.set_xticks(((np.arange(len(above)) + 0.5) * wide - 0.5).tolist(), above)
        axes.xaxis.tick_top()
        axes.xaxis.set_label_position("top")
        axes.set_xlabel(title)
    return work
