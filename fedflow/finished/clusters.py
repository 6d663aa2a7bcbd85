"""Clusters of a finished run: ``clusters.json`` and ``proximity.parquet``."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedflow.finished.reading import check_columns, check_number, read_json, read_table, reject
from fedflow.finished.run import Run, once
from fedflow.heterogeneity import LINKAGES
from fedflow.methods.protocols import Dissimilarity

LARGEST = 2**53  # cluster number


class Clusters(NamedTuple):
    """The clusters of clients in a finished run."""

    groups: list[int]  # planted, by client; empty if unknown
    history: list[dict[str, Any]]  # round and assignment [N] where the assignment changed; -1: none yet
    dissimilarity: Dissimilarity | None = None  # by which the server compares clients, if it does
    stable_ids: bool = True  # a cluster has the same number in all rounds


@once
def clusters(run: Run) -> Clusters:
    """The clusters of a run, empty without a file. Raises `FedflowError`."""
    file, clients = run.file("clusters.json"), run.metrics.get("clients", 0)
    if file is None:
        return Clusters([], [])
    facts = read_json(file)
    groups, history = facts.get("groups"), facts.get("history")
    if not isinstance(history, list) or not all(_is_step(step, clients) for step in history):
        reject(file, f"each entry of history needs a round and {clients} assignments")
    if groups is not None and not _is_assignment(groups, clients):
        reject(file, f"groups needs {clients} whole numbers, or null")
    stable = facts.get("stable_cluster_ids", facts.get("lasting"))  # its name in earlier results
    if type(stable) is not bool:
        reject(file, "stable_cluster_ids needs true or false")
    return Clusters(groups or [], history, _dissimilarity(run, facts.get("proximity")), stable)


def groups_of(runs: Iterable[Run]) -> list[int]:
    """The planted groups from the first of ``runs`` that has them, or an empty list."""
    return next((groups for run in runs if (groups := clusters(run).groups)), [])


def _dissimilarity(run: Run, facts: Any) -> Dissimilarity | None:
    """``proximity.parquet`` with its ``facts`` in ``clusters.json``, or None without them."""
    if facts is None:
        return None
    path, described = run.folder / "proximity.parquet", run.folder / "clusters.json"
    table = read_table(path, pd.read_parquet)
    check_columns(path, table, {str(name): (-math.inf, math.inf) for name in table})
    named = set(table.index) <= set(range(len(run.clients))) and [str(k) for k in table.index] == list(table)
    if not named or not np.isfinite(table.to_numpy(float)).all():
        reject(path, "not a matrix of finite numbers with a row and a column per client")
    if not isinstance(facts, dict) or not all(isinstance(facts.get(n), str) for n in ("unit", "linkage")):
        reject(described, "proximity needs a unit, a linkage and a height")
    if facts["linkage"] not in LINKAGES:
        reject(described, f"proximity.linkage is {facts['linkage']!r:.40}, not one of {', '.join(LINKAGES)}")
    for name in ("height", "decomposition_error"):
        if facts.get(name) is not None:
            check_number(described, f"proximity.{name}", facts[name], 0)
    try:
        return Dissimilarity(table.to_numpy(float), table.index.tolist(), **facts)
    except TypeError:
        reject(described, "proximity needs a unit, a linkage and a height")


def _is_step(step: Any, clients: int) -> bool:
    numbered = isinstance(step, dict) and type(step.get("round")) is int and step["round"] >= 0
    return numbered and _is_assignment(step.get("assignment"), clients)


def _is_assignment(value: Any, clients: int) -> bool:
    whole = isinstance(value, list) and len(value) == clients and all(type(item) is int for item in value)
    return whole and all(-1 <= item < LARGEST for item in value)
