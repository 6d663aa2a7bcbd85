"""Every pair of methods: the difference, its interval, and whether that is certain to exclude 0."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

import pandas as pd

from fedflow.finished.bootstrap import MEASURES, SEEDS, Difference, difference, too_few
from fedflow.finished.cells import Cell, Methods, Row, Table
from fedflow.finished.run import Run
from fedflow.finished.tables import best, write_csv
from fedflow.metrics.table import METRICS

SHOWN = 12  # methods of a table: the best
COLUMNS = (
    "partition",
    "measure",
    "method",
    "label",
    "other",
    "other_label",
    "difference",
    "low",
    "high",
    "seeds",
    "interval",
)
Differences = dict[tuple[str, str], Difference]  # by variants: the first minus the second


def differences(methods: Methods) -> dict[str, Differences]:
    """Of all pairs of the `SHOWN` best methods, the better one minus the other, by measure that two have."""
    found: dict[str, Differences] = {}
    for measure in MEASURES:
        for one, other in combinations([name for name, _ in best(methods, measure)][:SHOWN], 2):
            if (value := difference(methods[one], methods[other], measure)) is not None:
                found.setdefault(measure, {})[one, other] = value
    return found


def pair_table(methods: Methods, known: Differences) -> Table:
    """The method of the row minus that of the column, in points, the best method first."""
    names = list(dict.fromkeys(name for pair in known for name in pair))
    columns = [(methods[name][0].label, "", "the method of the row minus this one") for name in names]
    rows = [Row(one, methods[one][0].label, [_cell(known, one, other) for other in names]) for one in names]
    return Table(columns, rows)


def title(measure: str) -> str:
    """What a table compares: "Local accuracy, points"."""
    name = METRICS[measure].label.removesuffix(", %")
    return f"{name} accuracy, points" if measure.endswith("_accuracy") else f"{name}, points"


def without_interval(known: Differences) -> str:
    """Why pairs have no interval: "two seeds: no interval"; empty if all of enough seeds."""
    few = {value.seeds for value in known.values() if value.interval is None and value.seeds < SEEDS}
    return too_few(*sorted(few)) if few else ""


def write_pairs(runs: Sequence[Run], known: Mapping[str, Mapping[str, Differences]], path: Path) -> None:
    """Write a row per partition, measure and pair: the difference of shares, and its interval."""
    labels = {run.variant: run.label for run in runs}
    rows = [
        (
            partition,
            measure,
            one,
            labels[one],
            other,
            labels[other],
            value.mean,
            *(value.interval or (None,) * 2),
            value.seeds,
            value.made if value.interval else "",
        )
        for partition, measures in known.items()
        for measure, found in measures.items()
        for (one, other), value in found.items()
    ]
    write_csv(pd.DataFrame(rows, columns=list(COLUMNS)), path)


def _cell(known: Differences, one: str, other: str) -> Cell:
    sign, value = 1, known.get((one, other))
    if value is None:
        sign, value = -1, known.get((other, one))
    if value is None:
        return Cell("")
    mean, ends = 100 * sign * value.mean, sorted(100 * sign * end for end in value.interval or ())
    spread = f"[{', '.join(map(_signed, ends))}]" if ends else ""
    return Cell(_signed(mean), spread, "", mean, value.certain)


def _signed(points: float) -> str:
    """With a sign; 0 has none."""
    text = f"{points:+.1f}".replace("-", "\u2212")
    return "0.0" if text[1:] == "0.0" else text
