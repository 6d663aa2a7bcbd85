"""Pictures of masks: shares pruned by round and layer, and the overlap between clients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from fedflow.metrics.masks import Masks
from fedflow.pictures.drawing import CARD, INK, LINE, SERIES, Drawing, drawing, line_style
from fedflow.pictures.lines import End, count_axis, name_ends, room
from fedflow.pictures.series import SCALE, WIDTH
from fedflow.simulation.extensions.recording import GATE, PRUNED

BIN = 0.05  # of the pruned share, in which accuracies are averaged
BETWEEN = (10, 90)  # percentiles of clients that a bar shows
MANY = 20  # layers, above which rows are lower


@dataclass(frozen=True)
class One:
    """The masks of a run, with its name."""

    label: str
    masks: Masks


def pruned(series: pd.DataFrame, clients: int, rounds: int, name: str) -> Drawing:
    """The pruned share by round, of every client (thin) and on average (thick).

    ``series`` (round, client, name, value) has it after the rounds in which a client took part. It is
    constant between them, and 0 before the first.
    """
    table = series[series["name"] == PRUNED].pivot(index="round", columns="client", values="value")
    shares = 100 * table.reindex(index=range(rounds + 1), columns=range(clients)).ffill().fillna(0)
    with drawing(name, "Pruned share of clients by round", 2.7, (0.5, 0.4, 0.12, 0.08), WIDTH) as work:
        axes = work.axes
        axes.plot(shares, color=SERIES[0], lw=0.7, alpha=_faint(clients), drawstyle="steps-post")
        axes.plot(shares.mean(axis=1), color=INK, lw=2)
        count_axis(axes, "round")
        axes.set_ylabel("% of parameters pruned")
        axes.set_ylim(bottom=0)
    return work


def accuracy_by_share(series: pd.DataFrame, name: str) -> Drawing:
    """Accuracy on the samples of the gate by pruned share, of every client (thin) and on average (thick).

    Both are measured on the network that the client keeps after a round. The average is over clients, in bins
    of 5 % of the parameters.
    """
    table = series[series["name"].isin([PRUNED, GATE])]
    table = 100 * table.pivot(index=["client", "round"], columns="name", values="value").dropna()
    table["bin"] = table[PRUNED] // (100 * BIN)
    clients = table.index.unique("client")
    mean = table.groupby(["bin", "client"]).mean().groupby("bin").mean()
    described = "Accuracy of clients on the samples of the gate, by pruned share"
    with drawing(name, described, 2.7, (0.5, 0.4, 0.12, 0.08), WIDTH) as work:
        axes = work.axes
        for client in clients:
            rows = table.xs(client, level="client")
            axes.plot(rows[PRUNED], rows[GATE], color=SERIES[0], lw=0.7, alpha=_faint(len(clients)))
        axes.plot(mean[PRUNED], mean[GATE], color=INK, lw=2, marker="o", ms=3.5)
        axes.set(xlabel="% of parameters pruned", ylabel="accuracy on the gate's samples, %")
        axes.set_xlim(left=-1)
        axes.locator_params(nbins=6)
    return work


def matrix(masks: Masks, name: str) -> Drawing:
    """IoU of the masks of all pairs of clients, sorted by label, with lines where the first label changes.

    The diagonal is blank.
    """
    n, labels = len(masks.clients), masks.labels
    order = np.arange(n) if labels is None else np.lexsort(~labels.T[::-1])
    values = 100 * masks.iou[np.ix_(order, order)]
    np.fill_diagonal(values, np.nan)
    left, bottom, right, top = (0.5, 0.42, 0.1, 0.42)
    side = WIDTH - left - right
    described = "IoU of the masks of all pairs of clients"
    with drawing(name, described, side + bottom + top, (left, bottom, right, top), WIDTH) as work:
        axes = work.axes
        shown = axes.imshow(values, cmap=SCALE, interpolation="none", extent=(0, n, n, 0))
        axes.grid(False)
        axes.spines[:].set(visible=True, color=LINE)
        if labels is None:
            axes.set(xlabel="client", ylabel="client", xticks=[], yticks=[])
        else:
            present, first, sizes = np.unique(labels[order].argmax(1), return_index=True, return_counts=True)
            for edge in first[1:].tolist():
                axes.axhline(edge, color=CARD, lw=1)
                axes.axvline(edge, color=CARD, lw=1)
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_ticks((first + sizes / 2).tolist(), present.tolist())
            axes.set(xlabel="first label of the client", ylabel="first label of the client")
        work.scale(shown, left, bottom + side + 0.1, side)
    return work


def by_shared_labels(methods: Mapping[str, Sequence[One]], colors: Mapping[str, int], name: str) -> Drawing:
    """Mean IoU of two masks by the number of labels that their clients share, a line per variant.

    Line: mean over seeds. Band: lowest to highest seed. All masks must have labels.
    """
    margin = room(methods) + 0.1
    height, box = max(2.7, 0.7 + 0.18 * len(methods)), (0.5, 0.4, margin, 0.08)
    described = "IoU of two masks by the number of shared labels"
    with drawing(name, described, height, box, max(WIDTH, 2.0 + margin)) as work:
        axes, ends = work.axes, []
        for variant, runs in methods.items():
            seeds = [run.masks.by_shared_labels() for run in runs]
            table = 100 * pd.DataFrame(seeds).sort_index(axis=1)
            style, mean = line_style(colors[variant]), table.mean()
            axes.fill_between(table.columns, table.min(), table.max(), color=style["color"], alpha=0.17, lw=0)
            axes.plot(table.columns, mean, lw=1.6, marker="o", ms=4, **style)
            ends.append(End(mean.index[-1], mean.iloc[-1], runs[0].label, style["color"]))
        axes.set(xlabel="labels that two clients share", ylabel="mask IoU, %")
        axes.locator_params(axis="x", integer=True, nbins=8)
        name_ends(axes, ends)
    return work


def layers(masks: Masks, name: str) -> Drawing:
    """Share of each layer that clients keep: the mean (bar), and the 10th to 90th percentile (line).

    Layers that all clients keep whole are left out.
    """
    words = [f"{layer}  {size:,}" for layer, size in masks.sizes.items()]
    left, rows = 0.16 + 0.066 * max(map(len, words)), np.arange(len(words))
    shares = 100 * np.array(list(masks.layers.values()))  # [layers, n]
    low, high = np.percentile(shares, BETWEEN, axis=1)
    described = "Share that clients keep of each layer"
    height, size = 0.5 + len(words) * (0.26 if len(words) <= MANY else 0.16), 8.5 if len(words) <= MANY else 7
    with drawing(name, described, height, (left, 0.42, 0.12, 0.08), max(WIDTH, left + 2)) as work:
        axes = work.axes
        axes.barh(rows, shares.mean(1), 0.62, color=SERIES[0], alpha=0.5, lw=0)
        axes.hlines(rows, low, high, color=INK, lw=1.2)
        axes.set_yticks(rows, words)
        axes.tick_params(axis="y", labelcolor=INK, labelsize=size)
        axes.grid(False, axis="y")
        axes.set(xlim=(0, 101), ylim=(len(words) - 0.4, -0.6), xlabel="% of its parameters kept")
    return work


def draw_masks(
    folder: Path, label: str, masks: Masks | None, series: pd.DataFrame, clients: int, rounds: int
) -> None:
    """Write ``pruned.png``, ``accuracy.png``, ``overlap.png``, ``shared_labels.png`` and ``layers.png`` of
    one run, where it has the data. ``series`` has at most ``clients``.
    """
    names = set(series["name"])
    if PRUNED in names:
        pruned(series, clients, rounds, "pruned").png(folder / "pruned.png")
    if {PRUNED, GATE} <= names:
        accuracy_by_share(series, "accuracy").png(folder / "accuracy.png")
    if masks is None:
        return
    matrix(masks, "overlap").png(folder / "overlap.png")
    if masks.by_shared_labels():
        run = {"": [One(label, masks)]}
        by_shared_labels(run, {"": 0}, "shared_labels").png(folder / "shared_labels.png")
    if masks.layers:
        layers(masks, "layers").png(folder / "layers.png")


def _faint(lines: int) -> float:
    """Opacity of one of several lines."""
    return max(0.15, min(0.7, 8 / max(1, lines)))
