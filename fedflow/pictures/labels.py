"""Pictures of partitions: labels and difficulty of the samples of every client."""

from itertools import pairwise
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedflow.partition import Partition, PartitionParams, make_partition
from fedflow.partition.catalogue import pictures, toy_samples
from fedflow.pictures.drawing import CARD, INK, MUTED, SERIES, SMALLEST, Drawing, drawing, save_png

# Tol's muted palette, safe for color-blind readers, with a darker gray; for more labels, a color scale.
COLORS = "#332288 #ddcc77 #cc6677 #88ccee #117733 #bbbbbb #882255 #44aa99 #999933 #aa4499".split()
BANDS = ((0.05, 0.95, 0.25), (0.25, 0.75, 0.5))  # quantiles, and how opaque the band between them is
SHOWN = 400  # clients
# Largest numbers of clients with counts in cells, with numbers of clients, and with horizontal numbers.
COUNTED, NUMBERED, LEVEL = 5, 24, 12
NAMED = 8  # planted groups up to which they have their numbers
ROW = 0.17  # inches of a label


def draw_schemes(folder: Path) -> None:
    """Write the pictures of the catalogue of schemes, ``<name>.png``: ten classes of 500 samples each."""
    for name, entry in pictures().items():
        made = make_partition(PartitionParams.parse({"dataset": "ten classes"} | entry), toy_samples())
        draw_labels(made, folder / f"{name}.png")


def draw_labels(partition: Partition, path: Path) -> None:
    """Write a PNG with one bar per client, stacked by label if samples have labels; newcomers come last.

    Clients are ordered by planted group, main label and size. With more than 400 clients, 400 evenly spaced
    ones are shown. Deterministic bytes. Raises `FedflowError`.
    """
    labeled = partition.label_counts is not None
    counts = partition.label_counts if partition.label_counts is not None else partition.sizes[:, None]
    draw_counts(counts, title(partition.params), path, labeled, partition.groups, partition.newcomers)


def draw_counts(
    counts: np.ndarray,
    heading: str,
    path: Path,
    labeled: bool = True,
    groups: np.ndarray | None = None,
    newcomers: int = 0,
) -> None:
    """`draw_labels` of ``counts`` [N, K], the samples of each label at each client."""
    clients, classes = counts.shape
    late = np.arange(clients) >= clients - newcomers
    order = ordered(counts, groups, newcomers)
    few = classes <= len(COLORS)
    colors: Any = ListedColormap(COLORS[:classes]) if few else colormaps["viridis"]
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axis = figure.subplots()
    bottom, edges = np.zeros(len(order)), np.arange(len(order) + 1) - 0.5
    for c in range(classes):
        top, color = bottom + counts[order, c], colors(c if few else c / (classes - 1))
        if clients <= 60:
            axis.bar(np.arange(len(order)), top - bottom, 0.9, bottom, color=color, label=str(c))
        else:  # one shape per label: thousands of bars take seconds
            axis.stairs(top, edges, baseline=bottom, fill=True, color=color, lw=0, label=str(c))
        bottom = top
    joined = int((~late[order]).sum()) - 0.5  # where the newcomers begin
    if groups is not None:
        for edge in np.flatnonzero(np.diff(groups[order])) + 0.5:
            if edge != joined:
                axis.axvline(edge, color="black", lw=1, ls="--")
    if newcomers:
        shade_newcomers(axis, joined, len(order), newcomers)
    axis.set_title(heading, loc="left", fontsize=10, pad=16 if newcomers else 6)
    by = [*(["planted group"] if groups is not None else []), *(["main label"] if labeled else []), "size"]
    shown = counted(clients) if clients == 1 else f"{counted(clients)}, ordered by {', '.join(by)}"
    axis.set(xlabel=shown, ylabel="training samples", xlim=(-0.7, len(order) - 0.3), xticks=[])
    axis.spines[["top", "right"]].set_visible(False)
    if labeled and few:
        axis.legend(title="label", loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=8)
    elif labeled:
        scale = ScalarMappable(Normalize(0, classes - 1), colors)
        figure.colorbar(scale, ax=axis, label="label", pad=0.01, fraction=0.03)
    save_png(figure, path, 110)


def draw_difficulty(partition: Partition, path: Path) -> None:
    """Write a PNG with mean, median and quantiles of the expert's losses by client, newcomers last.

    With more than 400 clients, 400 evenly spaced ones are shown. Without losses, the picture of an earlier
    partition is removed. Deterministic bytes. Raises `FedflowError`.
    """
    if partition.losses is None:
        path.unlink(missing_ok=True)
        return
    clients, newcomers = len(partition.sizes), partition.newcomers
    shown = evenly(clients)
    losses = [partition.losses[partition.train(k)] for k in shown]
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axis, edges = figure.subplots(), np.arange(len(shown) + 1) - 0.5
    for low, high, opacity in BANDS:
        bottom, top = np.array([np.quantile(x, (low, high)) for x in losses]).T
        words = f"{100 * low:g} to {100 * high:g} % of samples"
        axis.stairs(top, edges, baseline=bottom, fill=True, color=SERIES[0], alpha=opacity, lw=0, label=words)
    for of, style, word in ((np.median, "-", "median"), (np.mean, ":", "mean")):
        values = [of(x) for x in losses]
        axis.stairs(values, edges, baseline=None, color="black", lw=1.2, ls=style, label=word)
    if newcomers:
        start = int((shown < clients - newcomers).sum()) - 0.5
        shade_newcomers(axis, start, len(shown), newcomers)
    dealt = f"{100 * partition.params['difficulty']['order']:g} % dealt by difficulty"
    axis.set_title(f"{title(partition.params)}, {dealt}", loc="left", fontsize=10, pad=16 if newcomers else 6)
    axis.set(xlim=(-0.7, len(shown) - 0.3), xticks=[], ylabel="expert's loss")
    axis.set_xlabel(counted(clients) + (", from the first to the last" if clients > 1 else ""))
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=8)
    save_png(figure, path, 110)


def ordered(counts: np.ndarray, groups: np.ndarray | None = None, newcomers: int = 0) -> np.ndarray:
    """The clients that are shown, by planted group, main label and size; newcomers are last."""
    clients = len(counts)
    late = np.arange(clients) >= clients - newcomers
    group = np.zeros(clients) if groups is None else groups
    return np.lexsort((counts.sum(1), counts.argmax(1), group, late))[evenly(clients)]


def label_shares(
    counts: np.ndarray, name: str, groups: np.ndarray | None = None, newcomers: int = 0
) -> Drawing:
    """A column per client in the order of `ordered` and a row per label, below the samples of each client.

    The deeper the color, the larger the label's share of the client's samples ``counts`` [N, K].
    """
    order = ordered(counts, groups, newcomers)
    n, classes = len(order), counts.shape[1]
    rows = float(np.clip(ROW * classes, 0.7, 2.4))
    above = 0.24 if groups is not None or newcomers else 0.08
    box = (0.46, 0.62 if n <= NUMBERED else 0.42, 0.06, above + 0.62)
    with drawing(name, "Labels of every client", rows + box[1] + box[3], box) as work:
        axes, width = work.axes, 4.1 - box[0] - box[2]
        axes.imshow(shaded(counts[order]), aspect="auto", interpolation="none", extent=(0, n, classes, 0))
        bars = work.inset(box[0], box[1] + rows + 0.06, width, 0.54)
        edges = np.arange(n + 1)
        bars.stairs(counts[order].sum(1), edges, fill=True, color=MUTED, alpha=0.55, lw=0)
        bars.set(xlim=(0, n), xticks=[], ylim=(0, None))
        bars.set_yticks([int(counts.sum(1).max())])
        bars.spines["bottom"].set_visible(False)
        for part in (axes, bars):
            part.grid(False)
            part.tick_params(labelsize=SMALLEST, pad=2)
        axes.spines[:].set_visible(False)
        if classes * SMALLEST < 72 * rows:
            axes.set_yticks(np.arange(classes) + 0.5, [str(c) for c in range(classes)])
        else:
            axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.set_ylabel("label")
        joined = int((order < len(counts) - newcomers).sum())
        sections = np.full(n, -1) if groups is None else groups[order]
        starts = np.flatnonzero(np.diff(sections[:joined], prepend=-2)).tolist()
        starts += [joined] if joined < n else []
        for start, end in pairwise([*starts, n]):
            if start:
                axes.axvline(start, color=CARD, lw=2.5)
            late = start >= joined
            word = "new" if late else f"group {sections[start]}" if len(starts) <= 4 else str(sections[start])
            if late or (groups is not None and len(starts) <= NAMED):
                style: Any = {"transform": bars.get_xaxis_transform(), "color": MUTED, "fontsize": SMALLEST}
                bars.text((start + end) / 2, 1.06, word, ha="center", **style)
        if n <= NUMBERED:
            axes.set_xticks(np.arange(n) + 0.5, [str(k) for k in order], rotation=90 * (n > LEVEL))
        else:
            axes.set_xticks([])
        axes.set_xlabel("client" if n <= NUMBERED else counted(len(counts)))
        if n <= COUNTED and classes * SMALLEST < 72 * rows:
            style = {"ha": "center", "va": "center", "fontsize": SMALLEST, "color": INK}
            for i, client in enumerate(order.tolist()):
                for label in np.flatnonzero(counts[client]).tolist():
                    axes.text(i + 0.5, label + 0.52, f"{counts[client, label]:,}", **style)
    return work


def thumbnail(counts: np.ndarray, name: str, groups: np.ndarray | None = None, newcomers: int = 0) -> Drawing:
    """`label_shares` without text."""
    with drawing(name, "Labels of every client", 0.5, (0, 0, 0, 0), 2) as work:
        shown = shaded(counts[ordered(counts, groups, newcomers)])
        work.axes.imshow(shown, aspect="auto", interpolation="none")
        work.axes.set_axis_off()
    return work


def shaded(counts: np.ndarray) -> np.ndarray:
    """RGBA [K, N] of every label's share of the samples of each client, deepest for the largest share."""
    shares = (counts / counts.sum(1, keepdims=True).clip(1)).T
    cells = np.empty((*shares.shape, 4))
    cells[..., :3], cells[..., 3] = to_rgb(SERIES[0]), 0.75 * shares / max(shares.max(), 1e-9)
    return cells


def evenly(clients: int) -> np.ndarray:
    """The clients that are shown, in order: all, or `SHOWN` evenly spaced ones."""
    return np.linspace(0, clients - 1, min(clients, SHOWN)).round().astype(int)


def counted(clients: int) -> str:
    """The number of clients in a picture, in words."""
    if clients > SHOWN:
        return f"{SHOWN} of {clients:,} clients"
    return "1 client" if clients == 1 else f"{clients} clients"


def shade_newcomers(axis: Axes, start: float, shown: int, newcomers: int) -> None:
    """Gray behind the newcomers, the last of the ``shown`` clients, from ``start`` on."""
    axis.axvline(start, color="black", lw=1.5)
    axis.axvspan(start, shown - 0.5, color="black", alpha=0.08, lw=0, zorder=0)
    word = "newcomer" if newcomers == 1 else f"{newcomers} newcomers"
    middle = (start + shown - 0.5) / 2
    axis.text(middle, 1.01, word, transform=axis.get_xaxis_transform(), ha="center", fontsize=8)


def title(params: dict[str, Any]) -> str:
    """Dataset, scheme and its parameters, long lists cut."""
    given = {k: str(v) for k, v in params.get("parameters", {}).items() if v is not None}
    words = ", ".join(f"{k} = {v if len(v) <= 60 else f'{v[:57]}...'}" for k, v in given.items())
    name = f"{params.get('dataset', '')} · {params.get('scheme', '')}"
    return fill(f"{name} ({words})" if words else name, 100)
