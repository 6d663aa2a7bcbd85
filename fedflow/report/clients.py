"""Clients × methods: the accuracy of every client under every method, and how the clients differ."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedflow.finished.cells import label
from fedflow.finished.run import Run
from fedflow.heterogeneity.distances import js, total_variation
from fedflow.metrics.table import in_unit, unit_of

SHOWN = 100  # clients in a table: those that all methods serve worst
PAIRED = 400  # clients, evenly spaced, whose pairs are compared
DEEPEST = 62  # percent of the color in a cell with the highest accuracy, so that its number can be read


@dataclass(frozen=True)
class Client:
    """One row: its number, samples and labels in words, and by method its accuracy and depth of color."""

    number: int
    samples: int
    labels: str
    group: str
    cells: list[tuple[str, float, float]]  # text, percent of the color, number to sort by


@dataclass(frozen=True)
class Clients:
    """The table: labels of the methods, rows, and which clients are shown."""

    methods: list[tuple[str, str]]  # variant and label
    rows: list[Client]
    note: str


def client_table(methods: dict[str, list[Run]], counts: np.ndarray | None) -> Clients | None:
    """Local accuracy by client, means over seeds; None without accuracies.

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
    rows = []
    samples = first.clients.set_index("client")["samples"]
    for k in order.tolist():
        cells = [
            ("", 0.0, -1.0)
            if np.isnan(value)
            else (
                in_unit(value, unit_of("local_accuracy")),
                round(DEEPEST * (value - low) / max(high - low, 1e-9), 1),
                float(value),
            )
            for value in table[k].tolist()
        ]
        group = str(first.groups[k]) if first.groups and k < len(first.groups) else ""
        rows.append(Client(k, int(samples.get(k, 0)), _labels(counts, k), group, cells))
    everyone = len(scored)
    note = f"The {SHOWN} worst-served of {everyone:,} clients." if everyone > SHOWN else ""
    return Clients([(name, label(methods[name])) for name in means], rows, note)


def mean_scores(methods: dict[str, list[Run]]) -> dict[str, np.ndarray]:
    """Local accuracy [N], means over seeds, of methods that have some.

    N is the largest number of clients: runs of one name may have fewer, by another setting.
    """
    most = max(run.metrics["clients"] for runs in methods.values() for run in runs)
    means = {name: _mean(runs, most) for name, runs in methods.items()}
    return {name: values for name, values in means.items() if np.isfinite(values).any()}


def differences(counts: np.ndarray | None) -> dict[str, float]:
    """How the labels of clients differ: means over pairs of clients that have samples, and over clients."""
    if counts is None:
        return {}
    counts = counts[counts.sum(1) > 0]
    if len(counts) < 2:
        return {}
    shares = counts / counts.sum(1, keepdims=True)
    some = shares[np.linspace(0, len(shares) - 1, min(len(shares), PAIRED)).round().astype(int)]
    pairs = np.triu_indices(len(some), 1)
    entropy = -(shares * np.log(np.where(shares > 0, shares, 1))).sum(1)
    return {
        "Total variation of labels": float(total_variation(some[:, None], some[None])[pairs].mean()),
        "Jensen-Shannon of labels, nats": float(js(some[:, None], some[None])[pairs].mean()),
        "Labels per client": float((counts > 0).sum(1).mean()),
        "Effective labels": float(np.exp(entropy).mean()),
        "Largest label, %": float(100 * shares.max(1).mean()),
        "Samples, std over mean": float(counts.sum(1).std() / counts.sum(1).mean()),
    }


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
