"""Clients × methods: the accuracy of every client under every method."""

from collections.abc import Sequence

import numpy as np

from fedflow.finished.cells import Cell, Methods, Row, Table
from fedflow.finished.clusters import clusters
from fedflow.finished.run import Run
from fedflow.metrics.table import in_unit, unit_of
from fedflow.report.blocks import Fold, Section
from fedflow.report.compared import Compared

SHOWN = 100  # worst-served clients in a table
DEEPEST = 62  # percent of the color in a cell with the highest accuracy, so that its number can be read
LEAD = """Local accuracy in % of every client under every method, mean over seeds; a deeper color is a higher
accuracy on its partition. The clients that all methods serve worst come first; click a heading to sort by a
method. Labels are of a client's training samples, the most frequent first."""
ONE = "Only runs on {}, as every seed draws other clients."


def section(c: Compared) -> Section | None:
    folds: list[Fold] = []
    for p in c.partitions:
        if shown := client_table(p.divided, p.counts):
            table, note = shown
            note = f"{ONE.format(p.division)} {note}".strip() if p.runs[0].redrawn else note
            folds.append(Fold(f"{p.name}: {note}" if note else p.name, [table], open=not folds))
    return Section("clients", "Clients", LEAD, folds) if folds else None


def client_table(methods: Methods, counts: np.ndarray | None) -> tuple[Table, str] | None:
    """Mean local accuracy over seeds by client with a note on the clients shown, or None without accuracies.

    ``counts`` [N, K] are the samples of each label at each client, if known.
    """
    means = mean_scores(methods)
    if not means:
        return None
    first = max((runs[0] for runs in methods.values()), key=lambda run: run.metrics["clients"])
    table = np.stack(list(means.values()), axis=1)  # [N, methods]
    scored = np.flatnonzero(np.isfinite(table).any(1))
    order = scored[np.argsort(np.nanmean(table[scored], axis=1), kind="stable")][:SHOWN]
    low, high = np.nanmin(table), np.nanmax(table)
    samples, groups = first.clients.set_index("client")["samples"], clusters(first).groups
    rows = []
    for k in order.tolist():
        size, labels = int(samples.get(k, 0)), _labels(counts, k)
        group = groups[k] if k < len(groups) else ""
        cells = [Cell(str(group), sort=group)] if groups else []
        cells += [_cell(value, low, high) for value in table[k].tolist()]
        cells += [Cell(f"{size:,}", sort=size), Cell("", note=labels, sort=labels)]
        rows.append(Row("", str(k), cells))
    names = [*(["Group"] if groups else []), *(methods[variant][0].label for variant in means)]
    everyone = len(scored)
    note = f"The {SHOWN} worst-served of {everyone:,} clients." if everyone > SHOWN else ""
    columns = [(name, "", "") for name in (*names, "Samples", "Labels")]
    return Table(columns, rows, "Client", "sortable heat"), note


def _cell(value: float, low: float, high: float) -> Cell:
    if np.isnan(value):
        return Cell("", depth=0.0)
    depth = round(DEEPEST * (value - low) / max(high - low, 1e-9), 1)
    return Cell(in_unit(value, unit_of("local_accuracy")), sort=value, depth=depth)


def mean_scores(methods: Methods) -> dict[str, np.ndarray]:
    """Mean local accuracy over seeds [N] of methods that have it.

    N is the largest number of clients: runs with another setting may have fewer.
    """
    most = max(run.metrics["clients"] for runs in methods.values() for run in runs)
    means = {name: _mean(runs, most) for name, runs in methods.items()}
    return {name: values for name, values in means.items() if np.isfinite(values).any()}


def _mean(runs: Sequence[Run], number: int) -> np.ndarray:
    """Mean local accuracy [``number``] over the seeds that have it."""
    scores = np.full((len(runs), number), np.nan)
    for row, run in zip(scores, runs, strict=True):
        row[run.clients["client"].to_numpy()] = run.clients["local_accuracy"].to_numpy(float)
    measured = np.isfinite(scores)
    sums, seen = np.where(measured, scores, 0).sum(0), measured.sum(0)
    return np.divide(sums, seen, out=np.full(number, np.nan), where=seen > 0)


def _labels(counts: np.ndarray | None, client: int) -> str:
    """The labels of a client, the most frequent first: "7 ×120, 3 ×14"."""
    if counts is None or client >= len(counts):
        return ""
    samples = counts[client]
    order = [c for c in np.argsort(-samples, kind="stable").tolist() if samples[c] > 0]
    text = ", ".join(f"{c} ×{samples[c]:,}" for c in order[:10])
    return text + (f" and {len(order) - 10} more" if len(order) > 10 else "")
