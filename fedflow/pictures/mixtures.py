"""Scores of mixtures of a global and a personal model by share of the personal one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from fedflow.pictures.drawing import Drawing, drawing, line_style
from fedflow.pictures.lines import End, name_ends, room

SCORES = {"accuracy": "Local accuracy by λ", "ece": "ECE by λ"}  # column: heading
HOW = "Mean over clients and seeds; band: ± std over clients. λ is the personal model's share in the mixture."


@dataclass(frozen=True)
class Sweep:
    """Scores of a run by client and share of the personal model, with its name."""

    label: str
    scores: pd.DataFrame


def mixtures(
    methods: Mapping[str, Sequence[Sweep]], colors: Mapping[str, int], column: str, name: str
) -> Drawing:
    """``column`` of the scores in % by λ, a line per method."""
    ends, margin = [], room(methods) + 0.1
    described = f"{SCORES[column].removesuffix(' by λ')} by share of the personal model"
    with drawing(name, described, 2.7, (0.4, 0.4, margin, 0.08), width=max(3.8, 2.0 + margin)) as work:
        axes = work.axes
        for method, runs in methods.items():
            seeds = [run.scores.groupby("value")[column] for run in runs]
            mean = 100 * pd.concat([scores.mean() for scores in seeds]).groupby(level=0).mean()
            std = 100 * pd.concat([scores.std(ddof=0) for scores in seeds]).groupby(level=0).mean()
            number, style = colors[method], line_style(colors[method])
            band: dict[str, Any] = {"color": style["color"], "alpha": 0.12, "lw": 0, "gid": f"band-{number}"}
            axes.fill_between(mean.index, mean - std, mean + std, **band)
            axes.plot(mean.index, mean, lw=1.6, marker=".", ms=4, gid=f"line-{number}", **style)
            ends.append(End(mean.index[-1], mean.iloc[-1], runs[0].label, style["color"], number))
        axes.set_xlabel("λ: share of the personal model")
        axes.set_ylim(max(0, axes.get_ylim()[0]), min(101, axes.get_ylim()[1]))
        axes.margins(x=0.01)
        name_ends(axes, ends)
    return work
