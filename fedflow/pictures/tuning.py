"""Pictures of tuning: scores of the tries of every method by the value of one setting."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.ticker import FixedLocator, NullLocator

from fedflow.metrics.table import SHARE
from fedflow.naming import text
from fedflow.pictures.drawing import CARD, Drawing, drawing, line_style
from fedflow.pictures.lines import LARGEST, End, margin, name_ends

WIDTH = 3.8  # inches, as the curves
TICKS = 7  # values that fit on the axis with their names


@dataclass(frozen=True)
class Tried:
    """The tries of one method: a row each, with ``value``, ``score`` and ``chosen``."""

    label: str
    color: int  # index for `line_style`
    tries: pd.DataFrame


def tried(methods: Sequence[Tried], setting: str, loss: bool, name: str) -> Drawing:
    """A dot per try, a line through the best try of each value, and a ring around the chosen one.

    Numbers are on an axis, logarithmic if all are positive; other values are evenly spaced. Scores are
    accuracies, or losses.
    """
    values = list(dict.fromkeys(value for method in methods for value in method.tries["value"]))
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    values = sorted(values) if numeric else values
    at = {value: float(value) if numeric else i for i, value in enumerate(values)}
    words, factor = ("loss", 1.0) if loss else ("accuracy, %", SHARE.factor)
    right = margin(method.label for method in methods) + 0.1
    height, box = max(2.7, 0.7 + 0.18 * len(methods)), (0.52, 0.4, right, 0.08)
    with drawing(name, f"Scores by {setting}", height, box, max(WIDTH, 2.2 + right)) as work:
        axes, ends = work.axes, []
        for method in methods:
            tries = method.tries
            table = tries.assign(x=[at[value] for value in tries["value"]], y=tries["score"] * factor)
            table = table[table["y"].abs() < LARGEST]
            if table.empty:
                continue
            best = table.groupby("x")["y"].agg("min" if loss else "max")
            style = line_style(method.color)
            axes.plot(best.index, best, lw=1.4, **style)
            axes.plot(table["x"], table["y"], ".", ms=4, alpha=0.7, color=style["color"])
            for _, row in table[table["chosen"]].iterrows():
                axes.plot(row["x"], row["y"], "o", ms=8, mfc=CARD, mec=style["color"], mew=1.6, zorder=3)
            ends.append(End(best.index[-1], best.iloc[-1], method.label, style["color"], method.color))
        scale = math.log if numeric and min(at.values()) > 0 else float
        axes.set_xscale("log" if scale is math.log else "linear")
        named = _apart(values, [scale(at[value]) for value in values])
        axes.xaxis.set_major_locator(FixedLocator([at[value] for value in named]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticklabels([text(value) for value in named])
        axes.set(xlabel=setting, ylabel=words)
        name_ends(axes, ends)
    return work


def _apart(values: Sequence[Any], positions: Sequence[float]) -> list[Any]:
    """The first of ``values`` and those far enough from the previous one for their names to fit."""
    gap, named, last = (max(positions) - min(positions)) / TICKS, list[Any](), -math.inf
    for value, position in zip(values, positions, strict=True):
        if position >= last + gap:
            named.append(value)
            last = position
    return named
