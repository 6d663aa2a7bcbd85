"""Pictures of the toy problems of DiSK: final positions of students, and the classes that they predict."""

from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from fedflow.pictures.drawing import INK, MUTED, SERIES, STYLE, Drawing, panel_grid

WIDTH = 2.0  # inches, of one panel
TITLE = 0.3  # inches
ROW = 3  # panels side by side


def _panels(count: int, shape: float, labels: tuple[str, str]) -> tuple[Figure, np.ndarray]:
    """A grid of panels with common axes; ``shape`` is their height over their width."""
    size = (WIDTH, shape * WIDTH + TITLE)
    figure, panels = panel_grid(count, min(ROW, count), size, sharex=True, sharey=True)
    figure.supxlabel(labels[0], fontsize=9, color=MUTED)
    figure.supylabel(labels[1], fontsize=9, color=MUTED)
    return figure, panels.flat[:count]


def ends(students: pd.DataFrame, minima: Mapping[str, tuple[float, float]]) -> Drawing:
    """A panel per part: lower and upper end of every student, and the number of students in each minimum."""
    parts = students.groupby("part", sort=False)
    with mpl.rc_context(rc=STYLE):
        figure, panels = _panels(len(parts), 1, ("lower end", "upper end"))
        for panel, (part, rows) in zip(panels, parts, strict=True):
            panel.set_title(str(part), loc="left", fontsize=9)
            panel.plot(rows["low"], rows["high"], "o", ms=4, alpha=0.35, mew=0, color=SERIES[0])
            for name, (low, high) in minima.items():
                panel.plot(low, high, "s", ms=11, mew=0.8, color=INK, fillstyle="none")
                words = f"{name.upper()} {(rows['minimum'] == name).sum()}"
                panel.annotate(words, (low, high), (7, -4), textcoords="offset points", va="top")
            panel.set(xlim=(0, 9), ylim=(0, 9), xticks=range(0, 10, 3), yticks=range(0, 10, 3))
    return Drawing(figure, panels[0], "toy-ends", "Ends of the intervals that the students have learned")


def regions(
    points: np.ndarray,
    labels: np.ndarray,
    grid: tuple[np.ndarray, np.ndarray],
    classes: Mapping[str, np.ndarray],
) -> Drawing:
    """A panel per title: ``classes`` [h, w] on the ``grid`` (its x [w] and y [h]), and ``points`` [n, 2]."""
    x, y = grid
    count = labels.max() + 1
    style: Any = {"cmap": ListedColormap(SERIES[:count]), "vmin": 0, "vmax": count - 1, "alpha": 0.3}
    style |= {"extent": (x[0], x[-1], y[0], y[-1]), "origin": "lower"}
    style |= {"interpolation": "nearest", "aspect": "equal"}
    with mpl.rc_context(rc=STYLE):
        figure, panels = _panels(len(classes), np.ptp(y) / np.ptp(x), ("", ""))
        for panel, (title, predicted) in zip(panels, classes.items(), strict=True):
            panel.set_title(title, loc="left", fontsize=9)
            panel.grid(False)
            panel.imshow(predicted, **style)
            for label in range(count):
                panel.plot(*points[labels == label].T, ".", ms=2.5, mew=0, color=SERIES[label])
    return Drawing(figure, panels[0], "toy-regions", "Classes that students of each minimum predict")
