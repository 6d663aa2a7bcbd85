"""Accuracy of clients by method, for a paper: a row per method, a column per client."""

from collections.abc import Sequence

import numpy as np

from fedflow.pictures.drawing import Drawing, drawing
from fedflow.pictures.lines import fitting, margin

WIDTH, ROW = 6.4, 0.24  # inches, of the picture and of a method
SCALE = "viridis"  # also told apart in gray


def heat(values: np.ndarray, labels: Sequence[str], name: str) -> Drawing:
    """``values`` [N, methods] in %, NaN where unknown, with the worst-served client on the left."""
    finite = np.isfinite(values)
    means = np.where(finite, values, 0).sum(1) / finite.sum(1).clip(1)
    order = np.lexsort((np.arange(len(values)), means))
    order = order[finite[order].any(1)]
    left, rows = margin(labels), ROW * len(labels)
    box = (left, 0.3, 0.1, 0.5)
    with drawing(name, "Local accuracy of every client by method", rows + 0.8, box, WIDTH) as work:
        axes = work.axes
        axes.grid(False)
        axes.spines[:].set_visible(False)
        shown = axes.imshow(values[order].T, aspect="auto", interpolation="none", cmap=SCALE)
        axes.set_yticks(range(len(labels)), fitting(labels))
        axes.set_xticks([])
        axes.set_xlabel(f"{len(order):,} clients, by mean accuracy")
        work.scale(shown, left, rows + 0.4, 1.8)
        words, tall = "accuracy on own test samples, %", work.figure.get_figheight()
        work.figure.text((left + 1.92) / WIDTH, (rows + 0.44) / tall, words, va="center")
    return work
