"""The picture of a partition: how many samples of each label every client holds."""

from pathlib import Path
from typing import Any

import numpy as np

# Tol's muted palette, safe for colour-blind readers, with a darker grey; more labels get a scale.
COLOURS = (
    "#332288", "#ddcc77", "#cc6677", "#88ccee", "#117733",
    "#bbbbbb", "#882255", "#44aa99", "#999933", "#aa4499",
)  # fmt: skip


def draw_labels(counts: np.ndarray, groups: np.ndarray | None, params: dict[str, Any], path: Path) -> None:
    """Draw ``counts`` [N, K] as one stacked bar per client, clients ordered by planted group and main label.

    Above 400 clients an evenly spaced choice of 400 is shown. Deterministic bytes.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.colors import ListedColormap

    clients, classes = counts.shape
    keys = (counts.sum(1), counts.argmax(1), np.zeros(clients) if groups is None else groups)
    order = np.lexsort(keys)
    if clients > 400:
        order = order[np.linspace(0, clients - 1, 400).astype(int)]
    few = classes <= len(COLOURS)
    colours = ListedColormap(COLOURS[:classes]) if few else plt.get_cmap("viridis")
    figure, axis = plt.subplots(figsize=(9, 3.6), layout="constrained")
    bottom, edges = np.zeros(len(order)), np.arange(len(order) + 1) - 0.5
    for c in range(classes):
        top, colour = bottom + counts[order, c], colours(c if few else c / (classes - 1))
        if clients <= 60:
            axis.bar(np.arange(len(order)), top - bottom, 0.9, bottom, color=colour, label=str(c))
        else:  # one shape per label: thousands of bars take seconds
            axis.stairs(top, edges, baseline=bottom, fill=True, color=colour, lw=0, label=str(c))
        bottom = top
    if groups is not None:
        for edge in np.flatnonzero(np.diff(groups[order])):
            axis.axvline(edge + 0.5, color="black", lw=1, ls="--")
    own = ", ".join(f"{k} = {v}" for k, v in params.get("parameters", {}).items())
    axis.set_title(
        f"{params.get('dataset', '')} · {params.get('scheme', '')}" + (f" ({own})" if own else ""), loc="left"
    )
    shown = f"{len(order)} of {clients} clients" if clients > len(order) else f"{clients} clients"
    shown = "1 client" if clients == 1 else shown
    ordered = "planted group, then main label" if groups is not None else "main label"
    axis.set(
        xlabel=f"{shown}, ordered by {ordered}", ylabel="training samples", xlim=(-0.7, len(order) - 0.3)
    )
    axis.set_xticks([])
    axis.spines[["top", "right"]].set_visible(False)
    if few:
        axis.legend(
            title="label",
            loc="center left",
            bbox_to_anchor=(1.01, 0.5),
            frameon=False,
            fontsize=8,
        )
    else:
        scale = plt.cm.ScalarMappable(plt.Normalize(0, classes - 1), colours)
        figure.colorbar(scale, ax=axis, label="label", pad=0.01, fraction=0.03)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)
