"""Differences of all pairs of methods, with their intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pandas as pd

from fedflow.finished.bootstrap import MEASURES, SEEDS, Difference, apart, difference, few_seeds
from fedflow.finished.cells import Cell, Methods, Row, Table
from fedflow.finished.run import Run
from fedflow.finished.tables import best, write_csv
from fedflow.metrics.table import METRICS

SHOWN = 12  # methods of a table: the best
COLUMNS = "partition measure method label other other_label difference low high seeds interval".split()
Differences = dict[tuple[str, str], Difference]  # first variant minus second


def differences(methods: Methods) -> dict[str, Differences]:
    """By measure, the better minus the worse method of all pairs of the `SHOWN` best methods."""
    by_measure: dict[str, Differences] = {}
    for measure in MEASURES:
        for first, second in combinations([name for name, _ in best(methods, measure)][:SHOWN], 2):
            if (value := difference(methods[first], methods[second], measure)) is not None:
                by_measure.setdefault(measure, {})[first, second] = value
    return {measure: _among(pairs) for measure, pairs in by_measure.items()}


def _among(pairs: Differences) -> Differences:
    """The pairs of a measure, of which some are significantly different from 0 given the number of all."""
    significant = iter(apart([value.gains for value in pairs.values()]))
    return {
        pair: replace(value, apart=certain)
        for (pair, value), certain in zip(pairs.items(), significant, strict=True)
    }


def pair_table(methods: Methods, pairs: Differences) -> Table:
    """The row's method minus the column's method in points, best methods first."""
    labels = {name: methods[name][0].label for pair in pairs for name in pair}
    columns = [(label, "", "the method of the row minus this one") for label in labels.values()]
    rows = [Row(name, labels[name], [_cell(pairs, name, other) for other in labels]) for name in labels]
    return Table(columns, rows)


def title(measure: str) -> str:
    """The title of a table: "Local accuracy, points"."""
    name = METRICS[measure].label.removesuffix(", %")
    return f"{name} accuracy, points" if measure.endswith("_accuracy") else f"{name}, points"


def limits(methods: Methods, measure: str, pairs: Differences) -> str:
    """Methods and intervals that a table lacks: "the 12 best of 15 methods; two seeds: no interval"."""
    count = len(best(methods, measure))
    shown = f"the {SHOWN} best of {count} methods" if count > SHOWN else ""
    few = {value.seeds for value in pairs.values() if value.interval is None and value.seeds < SEEDS}
    return "; ".join(filter(None, [shown, f"{few_seeds(*sorted(few))}: no interval" if few else ""]))


def write_pairs(
    runs: Sequence[Run], by_partition: Mapping[str, Mapping[str, Differences]], path: Path
) -> None:
    """Write a row per partition, measure and pair: the difference of shares, and its interval."""
    rows = []
    for partition, measures in by_partition.items():
        labels = {run.variant: run.label for run in runs if run.partition == partition}
        for measure, pairs in measures.items():
            for (first, second), value in pairs.items():
                names = (partition, measure, first, labels[first], second, labels[second])
                ends, origin = value.interval or (None, None), value.origin if value.interval else ""
                rows.append((*names, value.mean, *ends, value.seeds, origin))
    write_csv(pd.DataFrame(rows, columns=COLUMNS), path)


def _cell(pairs: Differences, first: str, second: str) -> Cell:
    sign = 1 if (first, second) in pairs else -1
    value = pairs.get((first, second)) or pairs.get((second, first))
    if value is None:
        return Cell("")
    mean, ends = 100 * sign * value.mean, sorted(100 * sign * end for end in value.interval or ())
    spread = f"[{', '.join(map(_signed, ends))}]" if ends else ""
    return Cell(_signed(mean), spread, "", mean, value.significant)


def _signed(points: float) -> str:
    """Points with a sign, 0 without."""
    text = f"{points:+.1f}".replace("-", "\u2212")
    return "0.0" if text[1:] == "0.0" else text
