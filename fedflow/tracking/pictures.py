"""The picture of a clustered run: which cluster every client was in, round by round."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np


def draw_assignment(
    path: Path, assignments: Mapping[int, Sequence[int]], rounds: int, groups: Sequence[int] | None
) -> None:
    """Write a PNG: one row per client, coloured by cluster, from round to round.

    ``assignments`` maps the rounds in which the assignment changed to the cluster of every client [N].
    Rows are ordered by planted group if there are ``groups`` [N], then by last cluster.
    """
    from matplotlib import colormaps
    from matplotlib.colors import BoundaryNorm, ListedColormap
    from matplotlib.figure import Figure

    starts = sorted(assignments)
    table = np.array([assignments[start] for start in starts]).T  # [N, changes]
    clients = len(table)
    known = np.zeros(clients, dtype=int) if groups is None else np.asarray(groups)
    order = np.lexsort((np.arange(clients), table[:, -1], known))
    highest = int(table.max()) + 1
    colours = ListedColormap([colormaps["tab20"](i % 20) for i in range(highest)])
    figure = Figure(figsize=(7, min(10.0, 2 + 0.12 * clients)), layout="constrained")
    axes = figure.subplots()
    edges = [*starts, max(rounds, starts[-1]) + 1]
    mesh = axes.pcolormesh(
        edges,
        np.arange(clients + 1),
        table[order],
        cmap=colours,
        norm=BoundaryNorm(range(highest + 1), highest),
    )
    for border in np.flatnonzero(np.diff(known[order])).tolist():
        axes.axhline(border + 1, color="black", linewidth=1)
    axes.set(xlabel="round", ylabel="client" if groups is None else "client, by planted group")
    axes.invert_yaxis()
    if clients <= 40:
        axes.set_yticks(np.arange(clients) + 0.5, [str(k) for k in order], fontsize=7)
    else:
        axes.set_yticks([])
    ticks = np.arange(highest) if highest <= 20 else np.linspace(0, highest - 1, 10).astype(int)
    bar = figure.colorbar(mesh, label="cluster", ticks=ticks + 0.5, format=lambda value, _: f"{int(value)}")
    bar.minorticks_off()
    figure.savefig(path, dpi=110)
