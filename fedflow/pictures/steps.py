"""Curves of procedures by step, and of central networks by epoch."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from markupsafe import Markup
from matplotlib.ticker import NullFormatter

from fedflow.metrics.table import NUMBER, SHARE
from fedflow.pictures.drawing import INK, MUTED, WIDTH, Drawing, drawing, line_style
from fedflow.pictures.lines import LARGEST, count_axis, margin, name_ends, plot

FEW = 14  # parts up to which each has a color and its name
COLUMNS = {  # of `epochs.csv`: heading and unit
    "test_accuracy": ("Test accuracy by epoch, %", SHARE),
    "train_loss": ("Training loss by epoch", NUMBER),
    "test_loss": ("Test loss by epoch", NUMBER),
}


def by_step(
    parts: Mapping[str, Sequence[pd.Series]], name: str, described: str, step_name: str, log: bool = False
) -> Drawing:
    """The values of every part, a series per seed by step, with a band from the lowest to the highest seed.

    With more than `FEW` parts, thin lines are parts and the thick one is their mean, where all have a value.
    On a ``log`` axis, only positive values are drawn.
    """
    tables = {part: _over_seeds(seeds, log) for part, seeds in parts.items()}
    tables = {part: table for part, table in tables.items() if len(table)}
    many = len(tables) > FEW
    right = 0.1 if many or list(tables) == [""] else margin(tables)
    height, box = max(2.7, 0.7 if many else 0.7 + 0.18 * len(tables)), (0.52, 0.4, right, 0.08)
    with drawing(name, described, height, box, width=max(3.8, 2.3 + right)) as work:
        axes, ends = work.axes, []
        for part, table in tables.items():
            style: dict[str, Any] = (
                {"color": MUTED, "alpha": 0.5} if many else line_style(list(parts).index(part))
            )
            if not many:
                band: dict[str, Any] = {"color": style["color"], "alpha": 0.17, "lw": 0}
                axes.fill_between(table.index, table["low"], table["high"], **band)
            ends.append(plot(axes, table.index, table["mean"], part, style, 0.7 if many else 1.6))
        if many:
            mean = pd.concat([table["mean"] for table in tables.values()], axis=1).mean(axis=1, skipna=False)
            axes.plot(mean.index, mean, color=INK, lw=1.8)
        if log:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.yaxis.set_minor_formatter(NullFormatter())
            axes.tick_params(axis="y", which="minor", length=0)
        count_axis(axes, step_name)
        if right > 0.1:
            name_ends(axes, ends)
    return work


def _over_seeds(seeds: Sequence[pd.Series], log: bool) -> pd.DataFrame:
    """Mean and range by step, for steps with a value of every seed."""
    kept = [s[(s.abs() < LARGEST) & ((s > 0) | (not log))] for s in (s.dropna() for s in seeds)]
    table = pd.concat(kept).groupby(level=0).agg(["mean", "min", "max", "size"])
    return table[table["size"] == len(seeds)].rename(columns={"min": "low", "max": "high"})


def by_epoch(networks: Mapping[str, pd.DataFrame], column: str, name: str) -> Markup:
    """The values of ``column`` of every network that has it, named at the ends of their lines."""
    ends = []
    described, unit = COLUMNS[column]
    right = margin(networks) + 0.1
    with drawing(name, described, 2.7, (0.52, 0.4, right, 0.08), max(WIDTH, 2.3 + right)) as work:
        for i, (network, epochs) in enumerate(networks.items()):
            if column in epochs:
                y = unit.factor * epochs[column]
                ends.append(plot(work.axes, epochs["epoch"], y, network, line_style(i)))
        count_axis(work.axes, "epoch")
        name_ends(work.axes, ends)
    return work.svg
