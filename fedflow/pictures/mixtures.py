"""Scores of mixtures of a global and a personal model, by the share of the personal one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from fedflow.pictures.accuracy import End, name_ends, room
from fedflow.pictures.drawing import Drawing, drawing, look

SCORES = {"accuracy": "Local accuracy by λ", "ece": "ECE by λ"}  # column: heading
HOW = "Mean over clients and seeds; band: ± std over clients. λ is the personal model's share in the mixture."


@dataclass(frozen=True)
class Sweep:
    """Scores of a run by client and share of the personal model, and its name."""

    label: str
    scores: pd.DataFrame


def mixtures(
    methods: Mapping[str, Sequence[Sweep]], places: Mapping[str, int], column: str, name: str
) -> Drawing:
    """``column`` of the scores in %, by λ: a line per method that has mixtures."""
    ends, margin = [], room(methods) + 0.1
    described = f"{SCORES[column].removesuffix(' by λ')} by share of the personal model"
    with drawing(name, described, 2.7, (0.4, 0.4, margin, 0.08), width=max(3.8, 2.0 + margin)) as work:
        axes = work.axes
        for method, runs in methods.items():
            seeds = [run.scores.groupby("value")[column] for run in runs]
            mean, std = (
                100 * pd.concat(each).groupby(level=0).mean()
                for each in ([own.mean() for own in seeds], [own.std(ddof=0) for own in seeds])
            )
            style = look(places[method])
            axes.fill_between(mean.index, mean - std, mean + std, color=style["color"], alpha=0.12, lw=0)
            axes.plot(mean.index, mean, lw=1.6, marker=".", ms=4, **style)
            ends.append(End(mean.index[-1], mean.iloc[-1], runs[0].label, style["color"]))
        axes.set_xlabel("λ: share of the personal model")
        axes.set_ylim(max(0, axes.get_ylim()[0]), min(101, axes.get_ylim()[1]))
        axes.margins(x=0.01)
        name_ends(axes, ends)
    return work
