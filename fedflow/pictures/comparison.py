"""One picture of several partitions side by side: all measures, and matrices of pairs of clients."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from scipy.cluster.hierarchy import leaves_list

from fedflow.errors import BadInput
from fedflow.heterogeneity.hierarchy import merge
from fedflow.heterogeneity.measures import MEASURES
from fedflow.partition.compare import PartitionComparison
from fedflow.pictures.drawing import check_picture, save_picture

# Tol's bright palette.
COLORS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#888888")
MATRICES = ("feature_emd", "angle_min")  # measures whose matrices are drawn
PANELS = 5  # measures in a row
WIDTH = 11.0  # inches


def draw_comparisons(comparisons: Sequence[PartitionComparison], path: Path) -> None:
    """Draw a panel per measure with a dot per partition and, below, `MATRICES` of all pairs of clients.

    Only measures that all comparisons have are drawn. Clients are ordered by planted group, then by the
    dendrogram of the first matrix; lines separate groups. A row of matrices has one scale. The ending of
    ``path`` makes the file a PNG, an SVG or a PDF. Raises `BadInput`, and `FedflowError` when the file cannot
    be written.
    """
    check_picture(path)
    if not comparisons:
        raise BadInput("comparisons", 0, "at least one")
    shared = [name for name in MEASURES if all(name in c.matrices for c in comparisons)]
    matrices = [name for name in MATRICES if name in shared]
    rows = -(-len(shared) // PANELS)
    side = (WIDTH - 1.2) / max(len(comparisons), 3)
    heights = [rows * (0.75 + 0.24 * len(comparisons)), *[side + 0.5] * len(matrices)]
    figure = Figure(figsize=(WIDTH, sum(heights)), layout="constrained")
    parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    _panels(parts[0], comparisons, shared)
    orders = [_order(c, matrices[0]) for c in comparisons] if matrices else []
    for part, name in zip(parts[1:], matrices):
        _matrices(part, comparisons, orders, name)
    save_picture(figure, path, 120)


def _panels(part: SubFigure, comparisons: Sequence[PartitionComparison], shared: list[str]) -> None:
    panels = part.subplots(-(-len(shared) // PANELS), PANELS, sharey=True, squeeze=False)
    for axes in panels.flat[len(shared) :]:
        axes.set_visible(False)
    for axes, name in zip(panels.flat, shared):
        values = [c.means[name] for c in comparisons]
        for row, value in enumerate(values):
            color = COLORS[row % len(COLORS)]
            axes.plot([0, value], [row, row], color=color, lw=1.5)
            axes.plot(value, row, "o", color=color, ms=6, clip_on=False)
            style: Any = {"textcoords": "offset points", "va": "center", "fontsize": 8}
            axes.annotate(f"{value:#.3g}", (value, row), (7, 0), **style)
        axes.set_title(MEASURES[name].title.replace(", ", "\n", 1), fontsize=8.5, loc="left")
        axes.set_xlim(0, 1.3 * max([*values, 1e-12]))
        axes.set_ylim(len(values) - 0.5, -0.5)
        axes.set_yticks(range(len(values)), [c.name for c in comparisons])
        axes.locator_params(axis="x", nbins=3)
        axes.tick_params(labelsize=8)
        axes.tick_params(axis="y", length=0, labelsize=9)
        axes.spines[["top", "right"]].set_visible(False)


def _matrices(
    part: SubFigure, comparisons: Sequence[PartitionComparison], orders: list[np.ndarray], name: str
) -> None:
    panels: Sequence[Axes] = part.subplots(1, max(len(comparisons), 3), squeeze=False)[0]
    pairs = [c.matrices[name][~np.eye(len(c.clients), dtype=bool)] for c in comparisons]
    low, high = min(map(np.min, pairs)), max(map(np.max, pairs))
    for axes in panels[len(comparisons) :]:
        axes.set_visible(False)
    for axes, comparison, order in zip(panels, comparisons, orders):
        matrix = comparison.matrices[name][np.ix_(order, order)].copy()
        np.fill_diagonal(matrix, np.nan)
        colors = "cividis_r" if MEASURES[name].similarity else "cividis"
        image = axes.imshow(matrix, vmin=low, vmax=high, cmap=colors, interpolation="nearest")
        if comparison.groups is not None:
            for edge in np.flatnonzero(np.diff(comparison.groups[order])) + 0.5:
                axes.axhline(edge, color="white", lw=1)
                axes.axvline(edge, color="white", lw=1)
        axes.set_title(comparison.name, fontsize=10)
        axes.set_xlabel(f"{len(order)} clients", fontsize=8)
        axes.set_xticks([])
        axes.set_yticks([])
    bar = part.colorbar(image, ax=list(panels[: len(comparisons)]), shrink=0.9, pad=0.01)
    bar.ax.tick_params(labelsize=8)
    part.suptitle(MEASURES[name].title, fontsize=10, x=0.01, ha="left")


def _order(comparison: PartitionComparison, name: str) -> np.ndarray:
    """The clients by planted group, then by the dendrogram of one measure."""
    matrix = comparison.matrices[name]
    distance = matrix.max() - matrix if MEASURES[name].similarity else matrix.copy()
    np.fill_diagonal(distance, 0)
    leaves = leaves_list(merge(distance, "upgma"))
    groups = np.zeros(len(leaves)) if comparison.groups is None else comparison.groups[leaves]
    return leaves[np.argsort(groups, kind="stable")]
