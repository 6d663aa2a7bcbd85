"""Means and stds over seeds, and the CSV tables."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

import numpy as np
import pandas as pd

from fedflow.files import replace_text
from fedflow.finished.collect import ENTRIES, OPTIONAL
from fedflow.finished.run import Run
from fedflow.metrics.table import METRICS, YARDSTICKS, Metric, diagnostics, metric_of, yardstick_first

TABLES = ("accuracy", "fairness", "traffic", "clusters")
SOME = ("generation", "privacy")  # tables of runs with images
PLOTTED = ("local_accuracy", "global_accuracy")  # by DVC
MOMENTS = ("seeds", "mean", "std", "min", "max")  # columns


@dataclass(frozen=True)
class Stat:
    """A metric of one variant on one partition, by seed that has it."""

    values: dict[int, float]

    @property
    def mean(self) -> float:
        if self.low == self.high:  # exactly, so that the std is 0
            return self.low
        return sum(self.values.values()) / len(self.values)

    @property
    def std(self) -> float:
        """Sample std over seeds (ddof 1), 0 with one seed."""
        squares = sum((v - self.mean) ** 2 for v in self.values.values())
        return (squares / max(1, len(self.values) - 1)) ** 0.5

    @property
    def low(self) -> float:
        return min(self.values.values())

    @property
    def high(self) -> float:
        return max(self.values.values())


def stat(runs: Iterable[Run], metric: str) -> Stat | None:
    """The metric over the seeds of ``runs`` (one partition, one variant), or None if no seed has it."""
    values = {run.seed: float(run.metrics[metric]) for run in runs if run.metrics.get(metric) is not None}
    return Stat(values) if values else None


def measured(runs: Iterable[Run], metric: str) -> bool:
    """True if some run has the metric."""
    return any(run.metrics.get(metric) is not None for run in runs)


def by_method(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """``runs`` grouped by method and settings, in their order: the rows of the page."""
    return _grouped(runs, attrgetter("variant"))


def by_partition(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """``runs`` grouped by partition, in their order."""
    return _grouped(runs, attrgetter("partition"))


def _grouped(runs: Iterable[Run], key: Callable[[Run], str]) -> dict[str, list[Run]]:
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return groups


def most_used(groups: dict[str, list[Run]]) -> list[str]:
    """Variants by number of partitions, then by name; the first get distinct colors."""
    used = Counter(method for runs in groups.values() for method in by_method(runs))
    return sorted(used, key=lambda method: (-used[method], method))


def best(methods: dict[str, list[Run]], metric: str, better: str | None = None) -> list[tuple[str, Stat]]:
    """Methods that have the metric, best mean first, equal means by name; ``better`` replaces its own."""
    if better is None:
        better = getattr(metric_of(metric), "better", "")
    sign = 1 if better == "lower" else -1
    stats = [(name, value) for name, runs in methods.items() if (value := stat(runs, metric)) is not None]
    return sorted(stats, key=lambda item: (sign * item[1].mean, item[0]))


def yardstick(methods: dict[str, list[Run]]) -> str:
    """The metric that orders the methods: the first of `YARDSTICKS` that was measured."""
    every = [run for runs in methods.values() for run in runs]
    return next((name for name in YARDSTICKS if measured(every, name)), YARDSTICKS[-1])


def columns(table: str) -> list[Metric]:
    """The metrics of one of `TABLES` or `SOME`, in their order."""
    return sorted((m for m in METRICS.values() if m.table == table), key=lambda metric: metric.rank)


def long_table(runs: Sequence[Run], metrics: Sequence[str]) -> pd.DataFrame:
    """A row per partition, variant and metric: number of seeds, mean, sample std, min, max."""
    rows = []
    for partition, group in by_partition(runs).items():
        for repeats in by_method(group).values():
            for metric in metrics:
                names = (partition, repeats[0].method, repeats[0].label, repeats[0].settings, metric)
                rows.append(names + moments(stat(repeats, metric)))
    return pd.DataFrame(rows, columns=["partition", "method", "label", "settings", "metric", *MOMENTS])


def moments(value: Stat | None) -> tuple[float | None, ...]:
    """The columns `MOMENTS` of a metric over seeds."""
    if value is None:
        return 0, *[None] * 4
    return len(value.values), value.mean, value.std if len(value.values) > 1 else None, value.low, value.high


def run_table(runs: Sequence[Run]) -> pd.DataFrame:
    """A row per run with all entries of its ``metrics.json``, diagnostics last."""
    present = {name for run in runs for name in run.metrics}
    listed = [name for name in METRICS if name in present and name not in ENTRIES]
    names = [*ENTRIES, *(name for name in OPTIONAL if name in present), *listed, *diagnostics(present)]
    rows = [{name: run.metrics.get(name) for name in names} for run in runs]
    return pd.DataFrame(rows, columns=names, dtype=object)


def curve_table(runs: Sequence[Run]) -> pd.DataFrame:
    """A row per run and evaluated round: partition, variant as method, seed, round, metrics with curves.

    Columns that no run has are left out unless DVC plots them.
    """
    curved = [m.name for m in yardstick_first(METRICS.values()) if m.curves]
    drawn = [name for name in curved if name in PLOTTED or any(run.has_rounds(name) for run in runs)]
    columns = ["partition", "method", "seed", "round", *drawn]
    if not runs:
        return pd.DataFrame(columns=columns)
    table = pd.DataFrame(
        {name: np.concatenate([run.numbers(name) for run in runs]) for name in ("round", *drawn)}
    )
    of_row = np.repeat(np.arange(len(runs)), [len(run.rounds) for run in runs])
    names = [(run.partition, run.variant, run.seed) for run in runs]
    named = pd.DataFrame(names, columns=columns[:3]).iloc[of_row].reset_index(drop=True)
    return named.join(table)[columns].dropna(subset=drawn, how="all")


def headline(runs: Sequence[Run]) -> dict[str, dict[str, dict[str, float]]]:
    """Mean accuracy over seeds, by metric (local, global), partition and method."""
    values: dict[str, dict[str, dict[str, float]]] = {}
    for metric in PLOTTED:
        for partition, group in by_partition(runs).items():
            stats = {name: stat(repeats, metric) for name, repeats in by_method(group).items()}
            means = {name: round(value.mean, 4) for name, value in stats.items() if value is not None}
            values.setdefault(metric.removesuffix("_accuracy"), {})[partition] = means
    return values


def one_number(runs: Sequence[Run]) -> dict[str, float]:
    """Local accuracy (without any, the loss) by method for ``dvc exp show``: mean over seeds and partitions.

    A method that did not run on all partitions has no number.
    """
    metric = yardstick(by_method(runs))
    groups = [by_method(group) for group in by_partition(runs).values()]
    numbers: dict[str, float] = {}
    for name in by_method(runs):
        stats = [stat(group.get(name, ()), metric) for group in groups]
        means = [value.mean for value in stats if value is not None]
        if len(means) == len(groups):
            numbers[name] = round(sum(means) / len(means), 4)
    return numbers


def write_tables(runs: Sequence[Run], out_dir: Path) -> None:
    """Write a table for each of `TABLES`, ``runs.csv``, ``accuracy_curves.csv``, and two JSON files for DVC.

    A table of `SOME` is removed unless a run has one of its metrics.
    """
    for table in (*TABLES, *SOME):
        names, path = [metric.name for metric in columns(table)], out_dir / f"{table}.csv"
        having = [run for run in runs if table in TABLES or any(name in run.metrics for name in names)]
        if having or table in TABLES:
            write_csv(long_table(having, names), path)
        else:
            path.unlink(missing_ok=True)
    write_csv(run_table(runs), out_dir / "runs.csv")
    write_csv(curve_table(runs), out_dir / "accuracy_curves.csv")
    for name, numbers in (("metrics", headline(runs)), ("summary", one_number(runs))):
        replace_text(out_dir / f"{name}.json", json.dumps(numbers, indent=1) + "\n")


def write_csv(table: pd.DataFrame, path: Path) -> None:
    """Write a table with the same bytes on every machine."""
    replace_text(path, table.to_csv(index=False, float_format="%.9g", lineterminator="\n"))
