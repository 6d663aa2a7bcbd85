"""Tables of the page: text and sort key of each cell, with the best ones marked."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedflow.finished.run import Run
from fedflow.finished.tables import Stat, best, measured, stat
from fedflow.metrics.table import SHARE, UNMEASURED, Metric, Unit, in_unit
from fedflow.simulation.outcome import SERIES_CLIENTS

Methods = dict[str, list[Run]]  # by variant
SPREAD = "± sample std"  # over seeds


@dataclass(frozen=True)
class Cell:
    """Text, the spread after it, a small note below it, its sort key, and the depth of its color in %."""

    text: str
    spread: str = ""
    note: str = ""
    sort: float | str | None = None
    best: bool = False
    depth: float | None = None


@dataclass(frozen=True)
class Row:
    """A row of a variant, or of something else if ``variant`` is empty; the small note is below the label."""

    variant: str
    label: str
    cells: list[Cell]
    note: str = ""
    key: str = ""  # its id on the page


@dataclass(frozen=True)
class Table:
    columns: list[tuple[str, str, str]]  # heading, meaning of the spread in its cells, explanation
    rows: list[Row]
    head: str = "Method"
    kind: str = "sortable"  # classes in the style sheet of the page
    colors: Mapping[str, int] | None = None  # indices of the colors of variants; default: of the page


def metric_table(methods: Methods, metrics: Sequence[Metric]) -> Table:
    """Mean ± sample std over seeds of every metric that some run has, a row per variant."""
    every = [run for runs in methods.values() for run in runs]
    targets = measured(every, "target_accuracy")
    stops = any(run.params.get("run", {}).get("stop_at") for run in every)
    asked = {m.name: stops if m.name == "stopped_in" else targets for m in metrics if m.missing != UNMEASURED}
    metrics = [m for m in metrics if measured(every, m.name) or asked.get(m.name)]
    winners = {m.name: _winners(methods, m) for m in metrics}
    rows = [
        Row(name, runs[0].label, [_cell(runs, metric, name in winners[metric.name]) for metric in metrics])
        for name, runs in methods.items()
    ]
    spreads = [SPREAD if any(row.cells[i].spread for row in rows) else "" for i in range(len(metrics))]
    return Table([(m.label, spread, m.hint) for m, spread in zip(metrics, spreads, strict=True)], rows)


def finer(unit: Unit, value: float) -> Unit:
    """The unit with enough decimals for two significant digits of a ``value`` in millions."""
    if unit.factor >= 1 or value <= 0:
        return unit
    return replace(unit, digits=max(unit.digits, 1 - math.floor(math.log10(value * unit.factor))))


def write(value: Stat, unit: Unit = SHARE) -> tuple[str, str]:
    """Mean and spread as text, ('97.1', '± 0.2'); one seed has no spread."""
    spread = f"±\u2009{in_unit(value.std, unit)}" if len(value.values) > 1 else ""
    return in_unit(value.mean, unit), spread


def _cell(runs: Sequence[Run], metric: Metric, is_best: bool) -> Cell:
    value, unit = stat(runs, metric.name), metric.unit
    if value is None:
        return Cell(metric.missing)
    exact = not metric.better and value.std == 0  # counted, not measured: every seed has the same value
    whole = exact and unit.whole and unit.factor == 1
    text, spread = write(value, replace(unit, digits=0) if whole else finer(unit, value.mean))
    some = f"{len(value.values)} of {len(runs)} seeds" if len(value.values) < len(runs) else ""
    return Cell(text, "" if exact else spread, some, value.mean * unit.factor, is_best)


def _winners(methods: Methods, metric: Metric) -> set[str]:
    """The methods with the best printed mean; for a target, of those that reached it with every seed."""
    unit, ranked = metric.unit, best(methods, metric.name, metric.better)
    if metric.missing != UNMEASURED:
        ranked = [(name, value) for name, value in ranked if len(value.values) == len(methods[name])]
    if not metric.better or len(ranked) < 2:
        return set()
    unit = finer(unit, ranked[0][1].mean)
    shown = {name: f"{value.mean * unit.factor:.{unit.digits}f}" for name, value in ranked}
    first = {name for name, text in shown.items() if text == shown[ranked[0][0]]}
    return first if len(first) < len(ranked) else set()  # if all are equal, none is best


def of_clients(run: Run) -> str:
    """Note on a picture with a line or row per client."""
    shown, clients = SERIES_CLIENTS, run.metrics["clients"]
    return f"Seed {run.seed}{f', the first {shown} of {clients:,} clients' if shown < clients else ''}."
