"""Reliability diagrams: accuracy by confidence, over the predictions of all clients."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedflow.metrics.predictions import BINS, ece, mce, reliability
from fedflow.metrics.table import SHARE, UNMEASURED, in_unit
from fedflow.pictures.drawing import MUTED, Drawing, drawing, line_style

WIDTH, HEIGHT = 3.8, 3.5  # inches; as wide as the curves of the page
LEFT, RIGHT, BELOW, SHARES = 0.46, 0.12, 0.4, 0.5  # margins, and the height of the shares of samples


def diagram(seeds: Iterable[pd.DataFrame], color: int, name: str) -> Drawing:
    """Accuracy against confidence in 15 bins, a line per table of predictions.

    On the dashed line, both are equal. The area of a dot and the histogram below show the share of samples in
    each bin. The histogram and the printed ECE and MCE are means over ``seeds``; seeds with NaN confidences
    are left out of ECE and MCE. ``color`` is an index for `line_style`.
    """
    measured = [(reliability(table), ece(table), mce(table)) for table in seeds]
    box = (LEFT, BELOW + SHARES + 0.15, RIGHT, 0.28)
    with drawing(name, "Accuracy by confidence", HEIGHT, box, WIDTH) as work:
        axes, style = work.axes, line_style(color)
        axes.plot([0, 100], [0, 100], color=MUTED, lw=1, linestyle=(0, (4, 2)))
        shares = np.zeros(BINS)
        for bins, *_ in measured:
            share, at = bins["samples"] / bins["samples"].sum(), bins[["confidence", "accuracy"]] * 100
            shares[bins.index] += 100 * share / len(measured)
            axes.plot(at["confidence"], at["accuracy"], lw=1, alpha=0.6, **style)
            dot: Any = {"s": 4 + 60 * share, "color": style["color"], "lw": 0, "zorder": 3}
            axes.scatter(at["confidence"], at["accuracy"], **dot)
        _, *errors = zip(*measured, strict=True)
        words = ", ".join(f"{name} {_percent(values)}" for name, values in zip(("ECE", "MCE"), errors))
        axes.set_title(words, loc="right", fontsize=9)
        below = work.inset(LEFT, BELOW, WIDTH - LEFT - RIGHT, SHARES)
        below.stairs(shares, np.linspace(0, 100, BINS + 1), fill=True, color=style["color"], alpha=0.5, lw=0)
        axes.set(ylabel="accuracy, %", xlim=(0, 102), ylim=(-2, 103))
        axes.tick_params(labelbottom=False)
        below.set(xlabel="confidence, %", ylabel="% of\nsamples", xlim=(0, 102))
        below.locator_params(axis="y", nbins=2)
        work.figure.align_ylabels()
    return work


def _percent(errors: Iterable[float]) -> str:
    """The mean without NaN, or a dash if all are NaN."""
    measured = [error for error in errors if not math.isnan(error)]
    return f"{in_unit(sum(measured) / len(measured), SHARE)} %" if measured else UNMEASURED


def draw_reliability(folder: Path, table: pd.DataFrame) -> None:
    """Write ``reliability.png`` of one run."""
    diagram([table], 0, "reliability").png(folder / "reliability.png")
