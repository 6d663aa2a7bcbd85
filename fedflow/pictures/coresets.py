"""Pictures of coresets: the nodes that methods choose."""

from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
from scipy import sparse
from scipy.sparse.linalg import eigsh

from fedflow.pictures.drawing import INK, MUTED, SERIES, STYLE, Drawing, panel_grid

SIDE = 2.4  # inches, of one panel
ROW = 3  # panels side by side
SHOWN = 800  # points of the background, in all panels together
AREA = 70  # of the largest pick, in points squared


def plane(points: np.ndarray | None, adjacency: sparse.csr_array) -> tuple[np.ndarray, tuple[str, str]]:
    """Positions of the nodes in a picture [n, 2], and the names of its axes.

    Points of more than two dimensions are projected on their first two principal components. Without points,
    the second and third eigenvectors of D^-1/2 A D^-1/2 place neighbors together.
    """
    if points is None:
        scale = sparse.diags_array(1 / np.sqrt(np.maximum(adjacency.sum(1), 1e-12)))
        start = np.ones(adjacency.shape[0])
        _, vectors = eigsh(scale @ adjacency @ scale, k=3, which="LA", v0=start)
        return vectors[:, [1, 0]], ("eigenvector 2", "eigenvector 3")
    if points.shape[1] <= 2:
        return np.pad(points, ((0, 0), (0, 2 - points.shape[1]))), ("", "")
    centered = points - points.mean(0)
    return centered @ np.linalg.svd(centered, full_matrices=False)[2][:2].T, ("component 1", "component 2")


def placed(
    points: np.ndarray | None,
    adjacency: sparse.csr_array,
    groups: np.ndarray | None,
    chosen: Mapping[str, tuple[np.ndarray, np.ndarray]],
    name: str = "placed",
) -> Drawing:
    """A panel per method: the nodes on the `plane`, in colors by ``groups`` [n], and the chosen ones.

    ``chosen`` has indices and weights by method; the area of a pick grows with its weight. Of many nodes,
    some are drawn, the same in all panels.
    """
    points, axes = plane(points, adjacency)
    kinds = np.zeros(len(points), int) if groups is None else groups
    behind = np.linspace(0, len(points) - 1, min(len(points), SHOWN * 2 // (1 + len(chosen)))).astype(int)
    shared: Any = {"sharex": True, "sharey": True}
    with mpl.rc_context(rc=STYLE):
        figure, panels = panel_grid(len(chosen), min(ROW, len(chosen)), (SIDE, SIDE + 0.2), **shared)
        for panel, (title, (nodes, weights)) in zip(panels.flat, chosen.items()):
            panel.set_title(f"{title}: {len(nodes)} of {len(points):,}", loc="left", fontsize=9)
            panel.grid(False)
            panel.spines["bottom"].set_visible(False)
            panel.set(xticks=[], yticks=[], xlabel=axes[0])
            for kind in np.unique(kinds):
                color = SERIES[kind % len(SERIES)]
                some, picked = behind[kinds[behind] == kind], kinds[nodes] == kind
                faint = MUTED if groups is None else color
                panel.plot(*points[some].T, ".", ms=3, alpha=0.35, mew=0, color=faint)
                area = 8 + AREA * weights[picked] / weights.max()
                panel.scatter(*points[nodes[picked]].T, area, color=color, edgecolors=INK, linewidths=0.9)
        for row in panels:
            row[0].set_ylabel(axes[1])
    described = f"Where {', '.join(chosen)} place their points"
    return Drawing(figure, panels[0, 0], name, described)
