"""The picture of a partition: the samples of each label at every client; also for all schemes."""

from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure

from fedflow.partition import Partition, PartitionParams, make_partition
from fedflow.partition.catalogue import pictures, toy_samples
from fedflow.pictures.drawing import save_png

# Tol's muted palette, safe for colour-blind readers, with a darker grey; for more labels, a colour scale.
COLOURS = (
    "#332288", "#ddcc77", "#cc6677", "#88ccee", "#117733",
    "#bbbbbb", "#882255", "#44aa99", "#999933", "#aa4499",
)  # fmt: skip
SHOWN = 400  # clients


def draw_schemes(folder: Path) -> None:
    """Write the pictures of the catalogue of schemes, ``<name>.png``: ten classes of 500 samples each."""
    for name, entry in pictures().items():
        made = make_partition(PartitionParams.parse({"dataset": "ten classes"} | entry), toy_samples())
        draw_labels(made, folder / f"{name}.png")


def draw_labels(partition: Partition, path: Path) -> None:
    """Write a PNG with one bar per client, stacked by label if samples have labels; newcomers come last.

    Clients are ordered by planted group, main label and size. Of more than 400 clients, 400 evenly spaced
    ones are shown. Deterministic bytes. Raises `FedflowError`.
    """
    labelled = partition.label_counts is not None
    counts = partition.label_counts if partition.label_counts is not None else partition.sizes[:, None]
    draw_counts(counts, title(partition.params), path, labelled, partition.groups, partition.newcomers)


def draw_counts(
    counts: np.ndarray,
    heading: str,
    path: Path,
    labelled: bool = True,
    groups: np.ndarray | None = None,
    newcomers: int = 0,
) -> None:
    """`draw_labels` of the samples ``counts`` [N, K] of each label at each client."""
    sizes = counts.sum(1)
    clients, classes = counts.shape
    late = np.arange(clients) >= clients - newcomers
    keys = (sizes, counts.argmax(1), np.zeros(clients) if groups is None else groups, late)
    order = np.lexsort(keys)
    order = order[evenly(clients)]
    few = classes <= len(COLOURS)
    colours: Any = ListedColormap(COLOURS[:classes]) if few else colormaps["viridis"]
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axis = figure.subplots()
    bottom, edges = np.zeros(len(order)), np.arange(len(order) + 1) - 0.5
    for c in range(classes):
        top, colour = bottom + counts[order, c], colours(c if few else c / (classes - 1))
        if clients <= 60:
            axis.bar(np.arange(len(order)), top - bottom, 0.9, bottom, color=colour, label=str(c))
        else:  # one shape per label: thousands of bars take seconds
            axis.stairs(top, edges, baseline=bottom, fill=True, color=colour, lw=0, label=str(c))
        bottom = top
    joined = int((~late[order]).sum()) - 0.5  # where the newcomers begin
    if groups is not None:
        for edge in np.flatnonzero(np.diff(groups[order])) + 0.5:
            if edge != joined:
                axis.axvline(edge, color="black", lw=1, ls="--")
    if newcomers:
        shade_newcomers(axis, joined, len(order), newcomers)
    axis.set_title(heading, loc="left", fontsize=10, pad=16 if newcomers else 6)
    by = [*(["planted group"] if groups is not None else []), *(["main label"] if labelled else []), "size"]
    shown = counted(clients) if clients == 1 else f"{counted(clients)}, ordered by {', '.join(by)}"
    axis.set(xlabel=shown, ylabel="training samples", xlim=(-0.7, len(order) - 0.3), xticks=[])
    axis.spines[["top", "right"]].set_visible(False)
    if labelled and few:
        axis.legend(title="label", loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=8)
    elif labelled:
        scale = ScalarMappable(Normalize(0, classes - 1), colours)
        figure.colorbar(scale, ax=axis, label="label", pad=0.01, fraction=0.03)
    save_png(figure, path, 110)


def evenly(clients: int) -> np.ndarray:
    """The clients that are shown, in order: all, or `SHOWN` evenly spaced ones."""
    return np.linspace(0, clients - 1, min(clients, SHOWN)).round().astype(int)


def counted(clients: int) -> str:
    """How many clients a picture shows."""
    if clients > SHOWN:
        return f"{SHOWN} of {clients:,} clients"
    return "1 client" if clients == 1 else f"{clients} clients"


def shade_newcomers(axis: Axes, start: float, shown: int, newcomers: int) -> None:
    """Grey behind the newcomers, the last of the ``shown`` clients, from ``start`` on."""
    axis.axvline(start, color="black", lw=1.5)
    axis.axvspan(start, shown - 0.5, color="black", alpha=0.08, lw=0, zorder=0)
    word = "newcomer" if newcomers == 1 else f"{newcomers} newcomers"
    middle = (start + shown - 0.5) / 2
    axis.text(middle, 1.01, word, transform=axis.get_xaxis_transform(), ha="center", fontsize=8)


def title(params: dict[str, Any]) -> str:
    """Data set, scheme and its parameters, long lists cut."""
    given = {k: str(v) for k, v in params.get("parameters", {}).items() if v is not None}
    own = ", ".join(f"{k} = {v if len(v) <= 60 else f'{v[:57]}...'}" for k, v in given.items())
    name = f"{params.get('dataset', '')} · {params.get('scheme', '')}"
    return fill(f"{name} ({own})" if own else name, 100)
