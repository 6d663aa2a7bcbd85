"""Pictures of tuning: the scores of the tries of every method, by the value of one setting."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.ticker import FixedLocator, NullLocator

from fedflow.metrics.table import SHARE
from fedflow.naming import text
from fedflow.pictures.accuracy import LARGEST, End, margin, name_ends
from fedflow.pictures.drawing import CARD, Drawing, drawing, look

WIDTH = 3.8  # inches, like the curves of the page
TICKS = 7  # values that fit on the axis with their names


@dataclass(frozen=True)
class Tried:
    """The tries of one method: a row each, with ``value``, ``score`` and ``chosen``."""

    label: str
    place: int  # of its color
    tries: pd.DataFrame


def tried(methods: Sequence[Tried], setting: str, loss: bool, name: str) -> Drawing:
    """A dot per try, a line through the best try of each value, and a ring around the chosen one.

    Numbers are on an axis, logarithmic if all are positive; other values are beside each other. Scores are
    shares of right predictions, or a ``loss``.
    """
    values = list(dict.fromkeys(value for one in methods for value in one.tries["value"]))
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    values = sorted(values) if numeric else values
    at = {value: float(value) if numeric else i for i, value in enumerate(values)}
    words, factor = ("loss", 1.0) if loss else ("accuracy, %", SHARE.factor)
    right = margin(one.label for one in methods) + 0.1
    height, box = max(2.7, 0.7 + 0.18 * len(methods)), (0.52, 0.4, right, 0.08)
    with drawing(name, f"Scores by {setting}", height, box, max(WIDTH, 2.2 + right)) as work:
        axes, ends = work.axes, []
        for one in methods:
            table = one.tries.assign(x=one.tries["value"].map(at), y=one.tries["score"] * factor)
            table = table[table["y"].abs() < LARGEST]
            if table.empty:
                continue
            best = table.groupby("x")["y"].agg("min" if loss else "max")
            style = look(one.place)
            axes.plot(best.index, best, lw=1.4, **style)
            axes.plot(table["x"], table["y"], ".", ms=4, alpha=0.7, color=style["color"])
            for _, row in table[table["chosen"]].iterrows():
                axes.plot(row["x"], row["y"], "o", ms=8, mfc=CARD, mec=style["color"], mew=1.6, zorder=3)
            ends.append(End(best.index[-1], best.iloc[-1], one.label, style["color"], one.place))
        scale = math.log if numeric and min(at.values()) > 0 else float
        axes.set_xscale("log" if scale is math.log else "linear")
        named = _apart(values, [scale(at[value]) for value in values])
        axes.xaxis.set_major_locator(FixedLocator([at[value] for value in named]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticklabels([text(value) for value in named])
        axes.set(xlabel=setting, ylabel=words)
        name_ends(axes, ends)
    return work


def _apart(values: Sequence[Any], places: Sequence[float]) -> list[Any]:
    """Those of ``values`` whose names fit beside each other, the first among them."""
    gap, found, last = (max(places) - min(places)) / TICKS, list[Any](), -math.inf
    for value, place in zip(values, places, strict=True):
        if place >= last + gap:
            found.append(value)
            last = place
    return found
