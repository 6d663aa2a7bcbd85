"""Curves of a procedure by step: a line per part, mean and band over seeds."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.ticker import NullFormatter

from fedflow.pictures.accuracy import LARGEST, End, margin, name_ends
from fedflow.pictures.drawing import INK, MUTED, Drawing, drawing, look

FEW = 14  # parts up to which each has a color and its name


def by_step(
    parts: Mapping[str, Sequence[pd.Series]], name: str, described: str, step_name: str, log: bool = False
) -> Drawing:
    """The values of every part, a series per seed by step, with a band from the lowest to the highest seed.

    Of more than `FEW` parts, thin lines are parts and the thick one is their mean. ``log``: a logarithmic
    axis, on which values that are not positive are not drawn.
    """
    tables = {part: _over_seeds(seeds, log) for part, seeds in parts.items()}
    tables = {part: table for part, table in tables.items() if len(table)}
    many = len(tables) > FEW
    right = 0.1 if many or list(tables) == [""] else margin(tables)
    height, box = max(2.7, 0.7 if many else 0.7 + 0.18 * len(tables)), (0.52, 0.4, right, 0.08)
    with drawing(name, described, height, box, width=max(3.8, 2.3 + right)) as work:
        axes, ends = work.axes, []
        for part, table in tables.items():
            style: dict[str, Any] = {"color": MUTED, "alpha": 0.5} if many else look(list(parts).index(part))
            if not many:
                band: dict[str, Any] = {"color": style["color"], "alpha": 0.17, "lw": 0}
                axes.fill_between(table.index, table["low"], table["high"], **band)
            dot = "." if len(table) == 1 else ""
            axes.plot(table.index, table["mean"], lw=0.7 if many else 1.6, marker=dot, **style)
            ends.append(End(table.index[-1], table["mean"].iloc[-1], part, style["color"]))
        if many:
            mean = pd.concat([table["mean"] for table in tables.values()], axis=1).mean(axis=1)
            axes.plot(mean.index, mean, color=INK, lw=1.8)
        if log:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.yaxis.set_minor_formatter(NullFormatter())
            axes.tick_params(axis="y", which="minor", length=0)
        axes.set_xlabel(step_name)
        axes.margins(x=0.01)
        axes.locator_params(axis="x", integer=True, nbins=6)
        if right > 0.1:
            name_ends(axes, ends)
    return work


def _over_seeds(seeds: Sequence[pd.Series], log: bool) -> pd.DataFrame:
    """By step that every seed has a value of: mean and range."""
    kept = [s[(s.abs() < LARGEST) & ((s > 0) | (not log))] for s in (s.dropna() for s in seeds)]
    found = pd.concat(kept).groupby(level=0).agg(["mean", "min", "max", "size"])
    found = found[found["size"] == len(seeds)]
    return found.rename(columns={"min": "low", "max": "high"})
