"""Pictures of the loss around models, between two, and on the plane through three."""

from collections.abc import Mapping, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from fedflow.models.landscape import Surface
from fedflow.pictures.drawing import MUTED, SERIES, STYLE

SIDE = 2.9  # inches, of one panel
ROW = 4  # panels side by side
SMALLEST = 1e-6  # loss on the logarithmic scale
LINES, SHADES = 10, 60  # contour lines, and shades of color between them


def planes(surfaces: Mapping[str, Surface], axes: tuple[str, str], names: Sequence[str] = ()) -> Figure:
    """A panel per surface, with its title; losses have one logarithmic scale of colors and contour lines.

    ``axes`` say what x and y are, ``names`` which models the marks are. Losses that are not finite are blank.
    """
    losses = {title: np.ma.masked_invalid(one.loss).clip(SMALLEST) for title, one in surfaces.items()}
    every = np.ma.concatenate([loss.ravel() for loss in losses.values()]).compressed()
    low, high = (every.min(), max(every.max(), 1.01 * every.min())) if len(every) else (1, 2)
    columns, norm = min(ROW, len(surfaces)), LogNorm(low, high)
    rows, first = -(-len(surfaces) // columns), next(iter(surfaces.values()))
    tall = SIDE * float(np.clip(np.ptp(first.y) / np.ptp(first.x), 0.5, 1.5))
    with mpl.rc_context(rc=STYLE):
        figure = Figure(figsize=(columns * SIDE + 0.9, rows * (tall + 0.4)), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False, sharex=not names, sharey=not names)
        for panel in panels.flat[len(surfaces) :]:
            panel.set_visible(False)
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
    for name, place in zip(names, surface.marks):
        panel.annotate(
            name,
            place,
            (0, 6),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color="black",
            bbox={"boxstyle": "round,pad=0.2", "facecolor": "white", "alpha": 0.8, "linewidth": 0},
        )


def segment(surface: Surface, names: Sequence[str]) -> Figure:
    """Loss and accuracy on the line through two models, whose places are dashed and named."""
    with mpl.rc_context(rc=STYLE):
        figure = Figure(figsize=(2 * SIDE + 0.8, SIDE), layout="constrained")
        parts = zip(figure.subplots(1, 2), ("test loss", "test accuracy"), (surface.loss, surface.accuracy))
        for place, (panel, title, values) in enumerate(parts):
            panel.plot(surface.x, values[0], color=SERIES[place], lw=1.6)
            panel.set_title(title, loc="left", fontsize=9.5)
            for x, _ in surface.marks:
                panel.axvline(x, color=MUTED, lw=0.8, ls=(0, (4, 3)))
            panel.set_xticks([x for x, _ in surface.marks], names)
            panel.margins(x=0)
    return figure
