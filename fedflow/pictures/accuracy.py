"""Pictures of accuracy: an overview, curves by round, traffic or time, and the spread over clients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Protocol

import matplotlib as mpl
import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.axes import Axes

from fedflow.metrics.table import Metric, metric_of, unit_of
from fedflow.pictures.drawing import CARD, INK, MUTED, SMALLEST, STYLE, Drawing, drawing, line_style
from fedflow.pictures.lines import LARGEST, End, Labeled, fitting, name_ends, room


class Curve(Labeled, Protocol):
    """A run with the numbers of its rounds."""

    @property
    def rounds(self) -> pd.DataFrame: ...


@dataclass(frozen=True)
class Line:
    """The rounds of one run under a label: the least `Curve`."""

    label: str
    rounds: pd.DataFrame


class DrawnRun(Curve, Protocol):
    """A finished run."""

    @property
    def metrics(self) -> Mapping[str, Any]: ...
    @property
    def clients(self) -> pd.DataFrame: ...


DRAWN = ("local_accuracy", "global_accuracy", "local_worst10", "local_best10")  # of runs with pictures
Curves = Mapping[str, Sequence[Curve]]
Methods = Mapping[str, Sequence[DrawnRun]]
TICK = 0.4  # inches of a number on the horizontal axis
STRETCHES = 200  # of the horizontal axis of a curve: about one per pixel
AXES = {"round": "round", "traffic": "MB moved, down + up, all clients", "time": "simulated time"}


def glance(methods: Methods, colors: dict[str, int], name: str) -> Markup:
    """A row per method: a ring for global and a dot for local accuracy, with bars over seeds."""
    height = 0.62 + 0.26 * len(methods)
    described = "Global and local accuracy of every method"
    with drawing(name, described, height, (room(methods), 0.42, 0.4, 0.24)) as work:
        axes = work.axes
        for row, (method, runs) in enumerate(methods.items()):
            seeds = [_percent(runs, metric) for metric in ("local_accuracy", "global_accuracy")]
            ours, whole = map(fmean, seeds)
            color = line_style(colors[method])["color"]
            axes.plot([ours, whole], [row, row], color=color, lw=1, alpha=0.45)
            for values in seeds:
                axes.plot([min(values), max(values)], [row, row], color=color, lw=4, alpha=0.35)
            axes.plot(whole, row, "o", ms=7, mfc=CARD, mec=color, mew=1.3)
            axes.plot(ours, row, "o", ms=4.2, color=color)
            if row == 0:  # name the dot and the ring once
                left, right = sorted(((whole, "global"), (ours, "local")))
                for (at, word), side in ((left, "right"), (right, "left")):
                    style: dict[str, Any] = {"color": MUTED, "fontsize": SMALLEST, "ha": side}
                    axes.annotate(word, (at, 0), (0, 7), textcoords="offset points", **style)
        _rows(axes, methods)
        axes.set_xlabel("accuracy, %")
    return work.svg


def heading(metric: Metric, x: str) -> str:
    """The heading of a curve, such as "Local accuracy by round"."""
    name = metric.label.removesuffix(", %")
    of = f"{name} accuracy" if metric.name.endswith("_accuracy") else name
    return f"{of} by {'simulated time' if x == 'time' else x}"


def curve(
    methods: Curves,
    colors: Mapping[str, int],
    column: str,
    x: str,
    name: str,
    top: float | None = None,
    title: str = "",
) -> Drawing:
    """Mean of ``column`` over seeds by ``x`` (one of `AXES`), with a band over all seeds, in its unit.

    With ``top``, the axis runs from 0 to it; ``title`` is printed above. By traffic, a method without traffic
    is a dotted horizontal line.
    """
    return _curve(methods, colors, column, x, name, top, title)[0]


def zoomed_and_full(
    methods: Curves, colors: Mapping[str, int], column: str, x: str, name: str
) -> tuple[Markup, Markup | None]:
    """`curve`, and the same on an axis from 0 to 100 % if its own axis is shorter."""
    work, ends = _curve(methods, colors, column, x, name)
    zoomed, (low, high) = work.svg, work.axes.get_ylim()
    if unit_of(column).sign != "%" or high - low > 95:
        return zoomed, None
    for text in [*work.axes.texts]:
        text.remove()
    work.axes.set_ylim(-2, 102)
    with mpl.rc_context(rc=STYLE):
        name_ends(work.axes, ends)
    return zoomed, Drawing(work.figure, work.axes, f"{name}-full", f"{work.described}, 0 to 100 %").svg


def _curve(
    methods: Curves,
    colors: Mapping[str, int],
    column: str,
    x: str,
    name: str,
    top: float | None = None,
    title: str = "",
) -> tuple[Drawing, list["End"]]:
    words, margin, metric = column.replace("_", " "), room(methods) + 0.1, metric_of(column)
    rises = metric is not None and metric.better == "higher"
    above = 0.32 if title else 0.08
    height = max(2.7, 0.7 + 0.18 * len(methods)) + (above - 0.08)
    box = (0.36 if rises else 0.52, 0.4, margin, above)
    with drawing(name, f"{words} by {x}", height, box, width=max(3.8, 2.0 + margin)) as work:
        axes, floors, ends = work.axes, list[float](), list[End]()
        for method, runs in methods.items():
            table, style = _over_seeds(runs, column), line_style(colors[method])
            if table.empty:
                continue
            index, color, last = colors[method], style["color"], table.iloc[-1]
            floors.append(table["low"].iloc[len(table) // 4 :].min())
            if x == "traffic" and last["traffic"] == 0:
                axes.axhline(last["mean"], lw=1.2, color=color, linestyle=(0, (1, 2)), gid=f"line-{index}")
                ends.append(End(np.nan, last["mean"], runs[0].label, color, index))
                continue
            table = _thinned(table)
            band: dict[str, Any] = {"color": color, "alpha": 0.17, "lw": 0, "gid": f"band-{index}"}
            axes.fill_between(table[x], table["low"], table["high"], **band)
            dot = {"marker": "o", "ms": 4} if len(table) == 1 else {}
            axes.plot(table[x], table["mean"], lw=1.6, gid=f"line-{index}", **style | dot)
            ends.append(End(last[x], last["mean"], runs[0].label, color, index))
        if top is not None:
            axes.set_ylim(min([0.0, *floors]) - 0.03 * top, 1.03 * top)
        elif floors and rises:  # the steep start would compress the rest
            axes.set_ylim(bottom=min(floors) - 0.04 * (axes.get_ylim()[1] - min(floors)))
        axes.set_xlabel(AXES[x])
        axes.set_title(title, loc="left", fontsize=SMALLEST)
        axes.margins(x=0.01)
        first, final = axes.dataLim.intervalx
        if x == "round" and first == final:  # else ticks are fractions of a round
            axes.set_xlim(first - 1, final + 1)
        inches = axes.get_position().width * work.figure.get_figwidth()
        axes.locator_params(axis="x", integer=x == "round", nbins=max(3, min(6, int(inches / TICK))))
        name_ends(axes, ends)
    return work, ends


def measured(runs: Sequence[Curve], column: str) -> bool:
    """True if some round of ``runs`` has a value in ``column``."""
    return any(not np.isnan(_numbers(run, column)).all() for run in runs)


def _over_seeds(runs: Sequence[Curve], column: str) -> pd.DataFrame:
    """Traffic in MB, time, mean and range of ``column`` in its unit, by round that all seeds evaluated."""
    names, factor = ("round", "bytes_down", "bytes_up", "clock", column), unit_of(column).factor
    rounds, down, up, time, values = (np.concatenate([_numbers(run, n) for run in runs]) for n in names)
    columns = {"round": rounds, "traffic": (down + up) / 1e6, "time": time, "value": factor * values}
    table = pd.DataFrame(columns)[np.abs(values) < LARGEST]
    by_round = table.astype({"round": int}).groupby("round")
    value, means = by_round["value"], by_round.mean().rename(columns={"value": "mean"})
    means = means.assign(low=value.min(), high=value.max())
    return means[value.count() == len(runs)].reset_index()


def _thinned(table: pd.DataFrame) -> pd.DataFrame:
    """The rows that show in a picture: of many rounds, the lowest and highest values of every stretch."""
    if len(table) <= 4 * STRETCHES:
        return table
    stretches = table.groupby(np.arange(len(table)) * STRETCHES // len(table))
    lowest, highest = (stretches[name] for name in ("low", "high"))
    shown = [lowest.idxmin(), highest.idxmax(), stretches["mean"].idxmin(), stretches["mean"].idxmax()]
    return table.loc[np.unique([0, len(table) - 1, *np.concatenate(shown)])]


def _numbers(run: Curve, name: str) -> np.ndarray:
    """A column of the rounds [T], NaN if there is none."""
    rounds = run.rounds
    return rounds[name].to_numpy(float) if name in rounds else np.full(len(rounds), np.nan)


def spread(methods: Methods, colors: dict[str, int], name: str) -> Markup:
    """A row per method: histogram of client accuracies (all seeds), mean, worst and best tenth."""
    height, box = 0.62 + 0.36 * len(methods), (room(methods), 0.42, 0.12, 0.2)
    with drawing(name, "Distribution of client accuracies by method", height, box) as work:
        axes = work.axes
        clients = {
            m: 100 * np.concatenate([run.clients["local_accuracy"].dropna() for run in runs])
            for m, runs in methods.items()
        }
        lowest = min((values.min() for values in clients.values() if len(values)), default=0)
        bins = np.linspace(10 * np.floor(min(lowest, 90) / 10), 100, 26)
        for row, (method, runs) in enumerate(methods.items()):
            counts = np.histogram(clients[method], bins)[0]
            heights = 0.82 * counts / max(1, counts.max())
            color, foot = line_style(colors[method])["color"], row + 0.45
            axes.stairs(foot - heights, bins, baseline=foot, fill=True, color=color, alpha=0.5, lw=0)
            ends = ("local_worst10", "local_accuracy", "local_best10")
            low, mean, high = (fmean(_percent(runs, metric)) for metric in ends)
            axes.plot([low, high], [foot] * 2, color=INK, lw=0.9)
            axes.vlines([low, high], row + 0.33, foot, color=INK, lw=1.1)
            axes.plot(mean, foot, "o", ms=4.2, color=INK)
        _rows(axes, methods)
        axes.set_ylim(len(methods) - 0.4, -0.6)
        axes.set_xlim(bins[0], 101)
        axes.set_xlabel("accuracy of a client on its own test set, %")
    return work.svg


def _percent(runs: Sequence[DrawnRun], metric: str) -> list[float]:
    """The metric of every seed, in percent."""
    return [100 * run.metrics[metric] for run in runs]


def _rows(axes: Axes, methods: Methods) -> None:
    axes.set_yticks(range(len(methods)), fitting(runs[0].label for runs in methods.values()))
    axes.tick_params(axis="y", labelcolor=INK)
    axes.set_ylim(len(methods) - 0.5, -0.6)
    axes.grid(False, axis="y")
