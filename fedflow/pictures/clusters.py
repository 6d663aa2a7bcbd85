"""Pictures of a clustered run: clusters by round, dissimilarities of clients, and an embedding.

Colors are found clusters, the final ones except in the picture by round. Planted groups are stripes or
shapes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex, to_rgb, to_rgba_array
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Outline
from matplotlib.ticker import MaxNLocator, PercentFormatter
from scipy.cluster.hierarchy import leaves_list
from scipy.linalg import eigh
from scipy.optimize import linear_sum_assignment

from fedflow.heterogeneity import merge
from fedflow.methods.protocols import Dissimilarity
from fedflow.pictures.drawing import CARD, INK, LINE, MUTED, SMALLEST, Drawing, drawing
from fedflow.pictures.drawing import WIDTH as PANEL

# Tol's light palette, safe for color-blind readers and distinct from the colors of methods.
FILLS = ("#77aadd", "#ee8866", "#44bb99", "#eedd88", "#ffaabb", "#99ddff", "#bbcc33", "#aaaa00")
SHAPES = ("o", "s", "^", "D", "v", "P", "X", "p")
WIDTH = 3.7  # inches: three side by side are legible
SMALL = SMALLEST * WIDTH / PANEL  # points
SCALE = "YlGnBu_r"  # close is dark
ROWS = 2000  # of the picture by round; with more clients, evenly spaced ones are drawn
NAMED = 24  # clients up to which all are named
FEW = 12  # groups and clusters up to which all are named, and clients in the embedding
COLUMNS = 4  # of the legend of groups
MOMENTS = 6  # rounds between which moves are drawn


@dataclass(frozen=True)
class Grouping:
    """The clusters of clients: ``history`` [N] by round in which they changed, -1 = none yet.

    ``groups`` [N] are planted; ``compared`` is the dissimilarity by which the server groups clients, if any.
    If cluster ids are not stable, a cluster gets the id of the cluster with most of its clients in the next
    round.
    """

    history: Mapping[int, Sequence[int]]
    rounds: int
    groups: Sequence[int] | None = None
    compared: Dissimilarity | None = None
    stable_cluster_ids: bool = True

    @cached_property
    def steps(self) -> dict[int, np.ndarray]:
        """`history` in order, with stable ids."""
        steps = {step: np.array(self.history[step]) for step in sorted(self.history)}
        for earlier, later in [] if self.stable_cluster_ids else reversed(list(pairwise(steps))):
            steps[earlier] = renamed(steps[earlier], steps[later])
        return steps

    @cached_property
    def found(self) -> np.ndarray:
        """The cluster of every client at the end [N]."""
        return list(self.steps.values())[-1]

    @property
    def unchanged(self) -> bool:
        """True if clients have the same clusters in all rounds with clusters."""
        return all((step == self.found).all() for step in self.steps.values())

    @cached_property
    def moved(self) -> dict[int, float]:
        """Share of clients that changed cluster, among clients that had one before, by round."""
        shares = {}
        for earlier, later in pairwise(self.steps):
            before, after = self.steps[earlier], self.steps[later]
            had = (before >= 0) & (after >= 0)
            if (had & (before != after)).any():
                shares[later] = float((before != after)[had].mean())
        return shares

    @cached_property
    def planted(self) -> np.ndarray:
        """The planted group of every client [N]; all 0 without groups."""
        return np.zeros(len(self.found), dtype=int) if self.groups is None else np.array(self.groups)

    @cached_property
    def order(self) -> np.ndarray:
        """Clients that have a cluster, by planted group, then by cluster."""
        everyone = np.lexsort((np.arange(len(self.found)), self.found, self.planted))
        return everyone[self.found[everyone] >= 0]

    @cached_property
    def palette(self) -> dict[int, str]:
        """The color of every cluster, assigned in `order`."""
        past = [cluster for step in reversed(self.steps.values()) for cluster in np.unique(step).tolist()]
        return dealt([*self.found[self.order].tolist(), *past])

    @cached_property
    def stripes(self) -> dict[int, str]:
        """The color of every planted group, equal to its cluster's color if clusters are groups."""
        return dealt([*self.planted[self.order].tolist(), *self.planted.tolist()])


Draw = Callable[[Grouping, str], Drawing]


def pictures_of(grouping: Grouping) -> list[tuple[str, str, Draw]]:
    """Name, heading and function of every picture of a grouping."""
    pictures: list[tuple[str, str, Draw]] = [("assignment", "assignment by round", timeline)]
    if grouping.moved:
        pictures += [("moves", "clients that changed cluster", moves)]
    if grouping.compared is not None and len(grouping.compared.clients) > 2:
        pictures += [("proximity", "dissimilarity", proximity), ("embedding", "embedding", embedding)]
    return pictures


def draw_clusters(folder: Path, grouping: Grouping) -> None:
    """Write ``assignment.png``, ``moves.png`` if clients moved, and ``proximity.png`` and ``embedding.png``
    if the server compares clients.
    """
    for name, _, draw in pictures_of(grouping):
        draw(grouping, name).png(folder / f"{name}.png")


def renamed(clusters: np.ndarray, later: np.ndarray) -> np.ndarray:
    """``clusters`` [N] with the ids of the clusters of ``later`` [N] that share most of their clients.

    Ids remain distinct, clusters without a match get new ids, and -1 is unchanged.
    """
    names, at = np.unique(clusters, return_inverse=True)
    others = np.unique(later)
    shared = ((clusters == names[:, None]) & (names[:, None] >= 0)).astype(int) @ (later[:, None] == others)
    new = later.max() + 1 + np.arange(len(names))
    for mine, theirs in zip(*linear_sum_assignment(shared, maximize=True)):
        if shared[mine, theirs]:
            new[mine] = others[theirs]
    return np.where(clusters < 0, -1, new[at])


def dealt(labels: Sequence[int]) -> dict[int, str]:
    """A color for every label in order of appearance, "none" for -1; from the ninth on, darker ones."""
    colors = {-1: "none"}
    for i, label in enumerate(dict.fromkeys(label for label in labels if label >= 0)):
        shade = 0.72 ** (i // len(FILLS)) * np.array(to_rgb(FILLS[i % len(FILLS)]))
        colors[label] = to_hex((shade[0], shade[1], shade[2]))
    return colors


def painted(labels: np.ndarray, colors: Mapping[int, str]) -> np.ndarray:
    """RGBA [..., 4] of every label [...]."""
    present, at = np.unique(labels, return_inverse=True)
    return to_rgba_array([colors[label] for label in present.tolist()])[at.reshape(labels.shape)]


def timeline(grouping: Grouping, name: str) -> Drawing:
    """Clients by round, colored by cluster; clients are sorted by planted group, then by last cluster."""
    n, order = len(grouping.order), grouping.order
    rows = order[np.arange(min(n, ROWS)) * n // min(n, ROWS)]
    table = np.full((grouping.rounds, len(rows)), -1)  # [T, rows]
    for step, assignment in grouping.steps.items():
        table[max(0, step - 1) :] = assignment[rows]
    side = min(2.6, max(1.6, 0.15 * n))
    left, right = 0.06 if grouping.groups is None else 0.92, 0.25 if n <= NAMED else 0.06
    box, described = (left, 0.44, right, 0.28), "Cluster of every client by round"
    with drawing(name, described, side + 0.72, box, WIDTH) as work:
        axes, planted = work.axes, grouping.planted[order]
        cells = painted(table.T, grouping.palette)
        axes.imshow(cells, aspect="auto", interpolation="none", extent=(0.5, grouping.rounds + 0.5, n, 0))
        _bare(axes)
        if n <= NAMED:
            axes.yaxis.tick_right()
            axes.set_yticks(np.arange(n) + 0.5, order.tolist(), fontsize=SMALL)
        if grouping.groups is not None:
            strip = work.inset(left - 0.17, 0.44, 0.11, side)
            _stripe(strip, planted, grouping.stripes)
            groups, first, sizes = np.unique(planted, return_index=True, return_counts=True)
            if len(groups) <= FEW:
                strip.set_yticks(first + sizes / 2, [f"group {g}" for g in groups])
            for edge in first[1:].tolist():
                axes.axhline(edge, color=CARD, lw=1.6)
        ends = np.unique(grouping.found[order]).tolist()
        squares = [Line2D([], [], marker="s", ls="", color=grouping.palette[z], ms=6) for z in ends]
        names = [f"cluster {z}" if z == ends[0] else str(z) for z in ends]
        start = -0.01 if len(ends) <= FEW / 2 else -left / (WIDTH - left - right)
        where = {"loc": "lower left", "bbox_to_anchor": (start, 0.985), "ncols": FEW}
        _legend(axes, dict(zip(names, squares)), **where)
        axes.set_xlabel("round")
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, steps=(1, 2, 5, 10)))
    return work


def moves(grouping: Grouping, name: str) -> Drawing:
    """The share of clients that changed cluster by round and, below, the moves between clusters.

    A column is the end of a round. The width of a band is its number of clients, its color the cluster that
    they leave; gray is no cluster yet.
    """
    moved, palette = grouping.moved, grouping.palette | {-1: LINE}
    rounds = [min(grouping.steps), *moved]
    shown = [rounds[i] for i in np.unique(np.linspace(0, len(rounds) - 1, MOMENTS).round().astype(int))]
    columns = np.array([grouping.steps[step] for step in shown])  # [moments, N]
    rank = {z: i for i, z in enumerate(sorted(palette, key=lambda z: z < 0))}  # -1 is last
    gap, thick = 0.03 * columns.shape[1], 0.05  # between clusters, in clients; of a column, in columns
    box = (0.5, 2.72, 0.1, 0.1)
    with drawing(name, "Clients that changed cluster, by round", 3.62, box, WIDTH) as work:
        work.axes.bar(list(moved), list(moved.values()), color=MUTED, width=max(0.6, grouping.rounds / 100))
        work.axes.set(xlim=(0.5, grouping.rounds + 0.5), ylim=(0, None), xlabel="share that moved, by round")
        work.axes.yaxis.set_major_formatter(PercentFormatter(1, 0))
        work.axes.yaxis.set_major_locator(MaxNLocator(2))
        work.axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, steps=(1, 2, 5, 10)))
        axes = work.inset(0.12, 0.44, WIDTH - 0.24, 1.72)
        for at, column in enumerate(columns):
            for cluster, (low, size) in _stacked(column, rank, gap).items():
                axes.bar(at, size, thick * 2, low, color=palette[cluster], edgecolor=MUTED, lw=0.5)
        for at, (before, after) in enumerate(pairwise(columns)):
            out, into = (
                {cluster: low for cluster, (low, _) in _stacked(column, rank, gap).items()}
                for column in (before, after)
            )
            pairs, counts = np.unique(np.stack([before, after]), axis=1, return_counts=True)
            flows = sorted(zip(*pairs.tolist(), counts.tolist()), key=lambda f: (rank[f[0]], rank[f[1]]))
            for source, target, count in flows:
                band = _band(at + thick, out[source], at + 1 - thick, into[target], count)
                axes.add_patch(PathPatch(band, color=palette[source], alpha=0.55, lw=0))
                out[source] += count
                into[target] += count
        _bare(axes)
        axes.invert_yaxis()
        axes.set_xlim(-0.1, len(shown) - 0.9)
        axes.set_xticks(range(len(shown)), shown)
        axes.set_xlabel("after round")
    return work


def _stacked(column: np.ndarray, rank: Mapping[int, int], gap: float) -> dict[int, tuple[float, int]]:
    """Start and size of every cluster of ``column`` [N], stacked with gaps."""
    clusters, sizes = np.unique(column, return_counts=True)
    stacks, start = dict[int, tuple[float, int]](), 0.0
    for cluster, size in sorted(zip(clusters.tolist(), sizes.tolist()), key=lambda item: rank[item[0]]):
        stacks[cluster] = (start, size)
        start += size + gap
    return stacks


def _band(x: float, y: float, to_x: float, to_y: float, width: float) -> Outline:
    """A band from (x, y) to (to_x, to_y), level at both ends."""
    middle = (x + to_x) / 2
    upper = [(x, y), (middle, y), (middle, to_y), (to_x, to_y)]
    lower = [(at, height + width) for at, height in reversed(upper)]
    points = [*upper, *lower, (x, y)]
    curve, line = [Outline.CURVE4] * 3, Outline.LINETO
    return Outline(points, [Outline.MOVETO, *curve, line, *curve, Outline.CLOSEPOLY])


def thumbnail(grouping: Grouping, name: str, order: np.ndarray) -> Drawing:
    """`timeline` without text: a row per round, a column per client in this ``order``."""
    table = np.full((grouping.rounds, len(order)), -1)  # [T, N]
    for step, assignment in grouping.steps.items():
        table[max(0, step - 1) :] = assignment[order]
    with drawing(name, "Cluster of every client by round", 0.5, (0, 0, 0, 0), 2) as work:
        work.axes.imshow(painted(table, grouping.palette), aspect="auto", interpolation="none")
        work.axes.set_axis_off()
    return work


def scaled(dissimilarity: np.ndarray) -> np.ndarray:
    """Points [N, 2] of classical multidimensional scaling, with the same signs on every machine.

    Scikit-learn (1.9) returns NaN if fewer than two eigenvalues are positive.
    """
    squares = dissimilarity**2
    inner = (squares.mean(0) + squares.mean(1)[:, None] - squares.mean() - squares) / 2
    values, vectors = eigh(inner, subset_by_index=(len(inner) - 2, len(inner) - 1))
    vectors *= np.where(vectors[np.abs(vectors).argmax(0), (0, 1)] < 0, -1, 1)
    return (vectors * np.sqrt(values.clip(0)))[:, ::-1]


def proximity(grouping: Grouping, name: str) -> Drawing:
    """The matrix of dissimilarities in the order of its dendrogram, which is on the left.

    Stripes between them are planted groups and found clusters. The dashed line is the cut of the tree.
    """
    compared = _compared(grouping)
    clients, tree = np.array(compared.clients), merge(compared.matrix, compared.linkage)
    leaves, n = leaves_list(tree), len(tree) + 1
    stripes = [("found", grouping.found, grouping.palette)]
    if grouping.groups is not None:
        stripes.insert(0, ("planted", grouping.planted, grouping.stripes))
    left, right, top, bottom = 0.86 + 0.15 * len(stripes), 0.25 if n <= NAMED else 0.05, 0.24, 0.68
    side, described = WIDTH - left - right, "Dissimilarity of all pairs of clients, by dendrogram"
    with drawing(name, described, side + top + bottom, (left, bottom, right, top), WIDTH) as work:
        axes, matrix = work.axes, compared.matrix[np.ix_(leaves, leaves)]
        np.fill_diagonal(matrix, np.nan)  # a client is not compared with itself
        shown = axes.imshow(matrix, cmap=SCALE, interpolation="none", extent=(0, n, n, 0))
        for edge in (np.flatnonzero(np.diff(grouping.found[clients[leaves]])) + 1).tolist():
            axes.axhline(edge, color=CARD, lw=1.2)
            axes.axvline(edge, color=CARD, lw=1.2)
        _bare(axes)
        if n <= NAMED:
            axes.yaxis.tick_right()
            axes.set_yticks(np.arange(n) + 0.5, clients[leaves].tolist(), fontsize=SMALL)
        for i, (word, labels, colors) in enumerate(stripes):
            strip = work.inset(0.83 + 0.15 * i, bottom, 0.11, side)
            _stripe(strip, labels[clients[leaves]], colors)
            strip.set_xlabel(word, rotation=90, fontsize=SMALL, labelpad=3)
        _branches(work.inset(0.03, bottom, 0.78, side), tree, leaves, grouping)
        below = work.inset(left + 0.1, bottom - 0.19, side - 0.1, 0.09)
        bar = work.figure.colorbar(shown, cax=below, orientation="horizontal")
        bar.outline.set_visible(False)
        bar.set_label(compared.unit, fontsize=SMALL, labelpad=1)
        bar.ax.tick_params(labelsize=SMALL, pad=2)
        bar.ax.locator_params(nbins=5)
    return work


def _branches(axes: Axes, tree: np.ndarray, leaves: np.ndarray, grouping: Grouping) -> None:
    """The dendrogram, root on the left; branches within one cluster have its color, others are gray."""
    compared, n = _compared(grouping), len(leaves)
    clusters = [{int(z)} for z in grouping.found[np.array(compared.clients)]]  # below each node
    position, height = np.empty(2 * n - 1), np.append(np.zeros(n), tree[:, 2])
    position[leaves] = np.arange(n) + 0.5
    lines, colors, palette = [], [], grouping.palette | {-1: MUTED}
    for node, (first, second) in enumerate(tree[:, :2].astype(int), n):
        ends = [first, first, second, second]
        lines.append(np.column_stack([height[[first, node, node, second]], position[ends]]))
        position[node] = position[[first, second]].mean()
        clusters.append(clusters[first] | clusters[second])
        colors.append(palette[min(clusters[-1])] if len(clusters[-1]) == 1 else MUTED)
    top = 1.04 * max(tree[-1, 2], compared.height or 0, 1e-12)
    axes.add_collection(LineCollection(lines, colors=colors, linewidths=1.4 if n <= NAMED else 1.0))
    axes.set(xlim=(top, 0), ylim=(n, 0))
    _bare(axes)
    if compared.height is not None:
        axes.axvline(compared.height, color=INK, lw=0.9, linestyle=(0, (3.5, 2)))
        side = "left" if compared.height > 0.6 * top else "right" if compared.height < 0.3 * top else "center"
        style: dict[str, Any] = {"textcoords": "offset points", "fontsize": SMALL, "ha": side}
        at, words = (compared.height, 1), f"cut at {compared.height:.3g}"
        axes.annotate(words, at, (0, 4), ("data", "axes fraction"), **style)


def embedding(grouping: Grouping, name: str) -> Drawing:
    """Clients as points of the plane by classical scaling of their dissimilarities.

    Colors are clusters (gray: never had one), shapes are planted groups.
    """
    compared = _compared(grouping)
    clients, n = np.array(compared.clients), len(compared.clients)
    at = scaled(compared.matrix)
    shapes = dict(zip(np.unique(grouping.planted).tolist(), cycle(SHAPES)))
    below = 0.06 if grouping.groups is None else 0.12 + 0.19 * -(-min(len(shapes), FEW) // COLUMNS)
    box = (0.04, below, 0.04, 0.04)
    with drawing(name, "Embedding of clients by dissimilarity", 2.9 + below, box, WIDTH) as work:
        axes = work.axes
        dot: dict[str, Any] = {"s": 54 if n <= NAMED else 26, "alpha": 0.9, "lw": 0.5, "edgecolors": INK}
        for group, shape in shapes.items():
            members = grouping.planted[clients] == group
            colors = painted(grouping.found[clients[members]], grouping.palette | {-1: MUTED})
            axes.scatter(*at[members].T, marker=shape, color=colors, **dot)
        for client, point in zip(clients if n <= FEW else (), at):
            axes.annotate(client, point, (5, 4), textcoords="offset points", fontsize=SMALL, color=MUTED)
        axes.set_aspect("equal", adjustable="datalim")
        axes.margins(0.1)
        _bare(axes)
        axes.spines[:].set(visible=True, color=LINE)
        if grouping.groups is not None:
            style: dict[str, Any] = {"ls": "", "color": "none", "mec": MUTED, "ms": 5.5}
            marks = {f"group {g}": Line2D([], [], marker=shape, **style) for g, shape in shapes.items()}
            _legend(axes, marks, loc="upper left", bbox_to_anchor=(-0.01, -0.005), ncols=COLUMNS)
    return work


def _legend(axes: Axes, marks: Mapping[str, Line2D], **where: Any) -> None:
    """A small legend of colors or shapes, if there are few."""
    style: dict[str, Any] = {"frameon": False, "fontsize": SMALL, "labelcolor": MUTED, "borderpad": 0.1}
    style |= {"borderaxespad": 0.2, "handletextpad": 0.3, "handlelength": 1.1}
    style |= {"columnspacing": 1.1, "labelspacing": 0.35}
    if len(marks) <= FEW:
        axes.legend(list(marks.values()), list(marks), **where, **style)


def _compared(grouping: Grouping) -> Dissimilarity:
    assert grouping.compared is not None
    return grouping.compared


def _stripe(axes: Axes, labels: np.ndarray, colors: Mapping[int, str]) -> None:
    """A column of cells, one per client."""
    cells = painted(labels[:, None], colors)
    axes.imshow(cells, aspect="auto", interpolation="none", extent=(0, 1, len(labels), 0))
    _bare(axes)


def _bare(axes: Axes) -> None:
    """Remove grid, ticks and frame."""
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.set(xticks=[], yticks=[])
