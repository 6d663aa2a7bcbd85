"""The picture of how hard the samples of every client are: quantiles of the expert's losses."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from fedflow.partition import Partition
from fedflow.pictures.drawing import save_png
from fedflow.pictures.labels import counted, evenly, shade_newcomers, title

BANDS = ((0.05, 0.95, 0.25), (0.25, 0.75, 0.5))  # quantiles, and how opaque the band between them is
COLOR = "#0072b2"


def draw_difficulty(partition: Partition, path: Path) -> None:
    """Write a PNG: mean, median and quantiles of the losses of every client's training samples.

    Clients are in the order of their numbers, newcomers last. Of more than 400 clients, 400 evenly spaced
    ones are shown. Without an expert's losses there is no picture: that of an earlier partition is removed.
    Deterministic bytes. Raises `FedflowError`.
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
        axis.stairs(top, edges, baseline=bottom, fill=True, color=COLOR, alpha=opacity, lw=0, label=words)
    for of, style, word in ((np.median, "-", "median"), (np.mean, ":", "mean")):
        values = [of(x) for x in losses]
        axis.stairs(values, edges, baseline=None, color="black", lw=1.2, ls=style, label=word)
    if newcomers:
        start = int((shown < clients - newcomers).sum()) - 0.5
        shade_newcomers(axis, start, len(shown), newcomers)
    about = (
        f"{title(partition.params)}, {100 * partition.params['difficulty']['order']:g} % dealt by difficulty"
    )
    axis.set_title(about, loc="left", fontsize=10, pad=16 if newcomers else 6)
    axis.set(xlim=(-0.7, len(shown) - 0.3), xticks=[], ylabel="expert's loss")
    axis.set_xlabel(counted(clients) + (", from the first to the last" if clients > 1 else ""))
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=8)
    save_png(figure, path, 110)
