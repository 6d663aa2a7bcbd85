"""Clients × methods: the accuracy of every client under every method."""

from collections.abc import Sequence

import numpy as np

from fedflow.finished.cells import Cell, Methods, Row, Table
from fedflow.finished.clusters import clusters
from fedflow.finished.run import Run
from fedflow.metrics.table import in_unit, unit_of
from fedflow.report.blocks import Fold, Section
from fedflow.report.compared import Compared

SHOWN = 100  # clients in a table: those that all methods serve worst
DEEPEST = 62  # percent of the color in a cell with the highest accuracy, so that its number can be read
LEAD = """Local accuracy in % of every client under every method, mean over seeds; a deeper color is a higher
accuracy on its partition. The clients that all methods serve worst come first; click a heading to sort by a
method. The labels of a client are those of its training samples, the most frequent first."""


def section(c: Compared) -> Section | None:
    folds: list[Fold] = []
    for p in c.partitions:
        if found := client_table(p.methods, p.counts):
            table, note = found
            folds.append(Fold(f"{p.name}: {note}" if note else p.name, [table], open=not folds))
    return Section("clients", "Clients", LEAD, folds) if folds else None


def client_table(methods: Methods, counts: np.ndarray | None) -> tuple[Table, str] | None:
    """Local accuracy by client, means over seeds, and which clients are shown; None without accuracies.

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
        group = [Cell(str(groups[k]) if k < len(groups) else "", sort=groups[k] if k < len(groups) else "")]
        cells = [_cell(value, low, high) for value in table[k].tolist()]
        cells += [Cell(f"{size:,}", sort=size), Cell("", note=labels, sort=labels)]
        rows.append(Row("", str(k), [*(group if groups else []), *cells]))
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
    """Local accuracy [N], means over seeds, of methods that have some.

    N is the largest number of clients: runs of one name may have fewer, by another setting.
    """
    most = max(run.metrics["clients"] for runs in methods.values() for run in runs)
    means = {name: _mean(runs, most) for name, runs in methods.items()}
    return {name: values for name, values in means.items() if np.isfinite(values).any()}


def _mean(runs: Sequence[Run], number: int) -> np.ndarray:
    """Local accuracy [``number``], mean over the seeds that have one."""
    found = np.full((len(runs), number), np.nan)
    for row, run in zip(found, runs, strict=True):
        row[run.clients["client"].to_numpy()] = run.clients["local_accuracy"].to_numpy(float)
    known = np.isfinite(found)
    sums, seen = np.where(known, found, 0).sum(0), known.sum(0)
    return np.divide(sums, seen, out=np.full(number, np.nan), where=seen > 0)


def _labels(counts: np.ndarray | None, client: int) -> str:
    """The labels of a client, the most frequent first: "7 ×120, 3 ×14"."""
    if counts is None or client >= len(counts):
        return ""
    own = counts[client]
    order = [c for c in np.argsort(-own, kind="stable").tolist() if own[c] > 0]
    text = ", ".join(f"{c} ×{own[c]:,}" for c in order[:10])
    return text + (f" and {len(order) - 10} more" if len(order) > 10 else "")
