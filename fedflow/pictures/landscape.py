"""Pictures of the loss around a model, between two models, and on the plane through three."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from fedflow.models.landscape import Surface
from fedflow.pictures.drawing import MUTED, SERIES, STYLE, panel_grid

SIDE = 2.9  # inches, of one panel
ROW = 4  # panels side by side
SMALLEST = 1e-6  # loss on the logarithmic scale
LINES, SHADES = 10, 60  # contour lines, and shades of color between them


def planes(surfaces: Mapping[str, Surface], axes: tuple[str, str], names: Sequence[str] = ()) -> Figure:
    """A panel per surface, by title; all have one logarithmic scale of colors and contour lines.

    ``axes`` label x and y, ``names`` the marked models. Losses that are not finite are blank.
    """
    losses = {title: np.ma.masked_invalid(surface.loss).clip(SMALLEST) for title, surface in surfaces.items()}
    every = np.ma.concatenate([loss.ravel() for loss in losses.values()]).compressed()
    low, high = (every.min(), max(every.max(), 1.01 * every.min())) if len(every) else (1, 2)
    columns, norm, first = min(ROW, len(surfaces)), LogNorm(low, high), next(iter(surfaces.values()))
    tall = SIDE * float(np.clip(np.ptp(first.y) / np.ptp(first.x), 0.5, 1.5))
    shared: Any = {"sharex": not names, "sharey": not names}
    with mpl.rc_context(rc=STYLE):
        size = (SIDE + 0.9 / columns, tall + 0.4)  # with the scale of colors
        figure, panels = panel_grid(len(surfaces), columns, size, **shared)
        for panel, (title, surface) in zip(panels.flat, surfaces.items()):
            grid = surface.x, surface.y, losses[title]
            shades = panel.contourf(*grid, np.geomspace(low, high, SHADES + 1), norm=norm, cmap="viridis")
            panel.contour(*grid, np.geomspace(low, high, LINES + 2)[1:-1], colors="white", linewidths=0.5)
            panel.set_title(title, loc="left", fontsize=9.5)
            panel.set(xlabel=axes[0], aspect="equal")
            panel.grid(False)
            _mark(panel, surface, names)
        for row in panels:
            row[0].set_ylabel(axes[1])
        bar = figure.colorbar(shades, ax=panels, label="test loss", shrink=0.85, pad=0.02)
        ticks = np.geomspace(low, high, 6).tolist()
        bar.ax.yaxis.set(major_locator=FixedLocator(ticks), minor_locator=NullLocator())
        bar.ax.set_yticklabels([f"{tick:.2g}" for tick in ticks])
        bar.outline.set_visible(False)
    return figure


def _mark(panel: Axes, surface: Surface, names: Sequence[str]) -> None:
    """A dot for every model, with its name if there are several."""
    x, y = np.array(surface.marks).T
    panel.plot(x, y, "o", color="white", markeredgecolor="black", ms=5, mew=0.8)
    frame = {"boxstyle": "round,pad=0.2", "facecolor": "white", "alpha": 0.8, "linewidth": 0}
    style: Any = {
        "textcoords": "offset points",
        "ha": "center",
        "fontsize": 8,
        "color": "black",
        "bbox": frame,
    }
    for name, mark in zip(names, surface.marks):
        panel.annotate(name, mark, (0, 6), **style)


def segment(surface: Surface, names: Sequence[str]) -> Figure:
    """Loss and accuracy on the line through two models, which are marked by name."""
    with mpl.rc_context(rc=STYLE):
        figure = Figure(figsize=(2 * SIDE + 0.8, SIDE), layout="constrained")
        parts = zip(figure.subplots(1, 2), ("test loss", "test accuracy"), (surface.loss, surface.accuracy))
        for i, (panel, title, values) in enumerate(parts):
            panel.plot(surface.x, values[0], color=SERIES[i], lw=1.6)
            panel.set_title(title, loc="left", fontsize=9.5)
            for x, _ in surface.marks:
                panel.axvline(x, color=MUTED, lw=0.8, ls=(0, (4, 3)))
            panel.set_xticks([x for x, _ in surface.marks], names)
            panel.margins(x=0)
    return figure
