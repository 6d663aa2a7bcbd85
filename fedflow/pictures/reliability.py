"""Reliability diagrams: how often predictions of a confidence are right, of all clients together."""

import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from fedflow.metrics.predictions import BINS, ece, mce, reliability
from fedflow.metrics.table import SHARE, UNMEASURED, in_unit
from fedflow.pictures.drawing import MUTED, Drawing, drawing, look

WIDTH, HEIGHT = 3.8, 3.5  # inches; as wide as the curves of the page
LEFT, RIGHT, BELOW, SHARES = 0.46, 0.12, 0.4, 0.5  # margins, and the height of the shares of samples


def diagram(seeds: Iterable[pd.DataFrame], place: int, name: str) -> Drawing:
    """Accuracy against confidence in 15 bins, a line per table of predictions; dashed: both are equal.

    The area of a dot, and the histogram below, show the share of samples in each bin. The histogram and the
    printed ECE and MCE are means over ``seeds``, without those that have NaN among their confidences.
    ``place`` is that of the method's color.
    """
    found = [(reliability(table), ece(table), mce(table)) for table in seeds]
    box = (LEFT, BELOW + SHARES + 0.15, RIGHT, 0.28)
    with drawing(name, "Accuracy by confidence", HEIGHT, box, WIDTH) as work:
        axes, style = work.axes, look(place)
        axes.plot([0, 100], [0, 100], color=MUTED, lw=1, linestyle=(0, (4, 2)))
        shares = np.zeros(BINS)
        for bins, *_ in found:
            share, at = bins["samples"] / bins["samples"].sum(), bins[["confidence", "accuracy"]] * 100
            shares[bins.index] += 100 * share / len(found)
            axes.plot(at["confidence"], at["accuracy"], lw=1, alpha=0.6, **style)
            axes.scatter(
                at["confidence"], at["accuracy"], 4 + 60 * share, color=style["color"], lw=0, zorder=3
            )
        named = zip(("ECE", "MCE"), zip(*(errors for _, *errors in found), strict=True), strict=True)
        shown = [f"{measure} {_percent(values)}" for measure, values in named]
        axes.set_title(", ".join(shown), loc="right", fontsize=9)
        below = work.beside(LEFT, BELOW, WIDTH - LEFT - RIGHT, SHARES)
        below.stairs(shares, np.linspace(0, 100, BINS + 1), fill=True, color=style["color"], alpha=0.5, lw=0)
        axes.set(ylabel="accuracy, %", xlim=(0, 102), ylim=(-2, 103))
        axes.tick_params(labelbottom=False)
        below.set(xlabel="confidence, %", ylabel="% of\nsamples", xlim=(0, 102))
        below.locator_params(axis="y", nbins=2)
        work.figure.align_ylabels()
    return work


def _percent(errors: Iterable[float]) -> str:
    """The mean of those that are not NaN; a dash if none is."""
    measured = [error for error in errors if not math.isnan(error)]
    return f"{in_unit(sum(measured) / len(measured), SHARE)} %" if measured else UNMEASURED


def draw_reliability(folder: Path, table: pd.DataFrame) -> None:
    """Write ``reliability.png`` of one run."""
    diagram([table], 0, "reliability").png(folder / "reliability.png")
