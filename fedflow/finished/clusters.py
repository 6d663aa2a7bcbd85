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

LARGEST = 2**53  # of the number of a cluster


class Clusters(NamedTuple):
    """The planted group of every client, if known; round and assignment [N] where the assignment changed (-1:
    none yet); how the server compares clients, if it does; whether a cluster keeps its number in all rounds.
    """

    groups: list[int]
    history: list[dict[str, Any]]
    dissimilarity: Dissimilarity | None = None
    stable_ids: bool = True


@once
def clusters(run: Run) -> Clusters:
    """The clusters of a run, without groups and history if it has no file. Raises `FedflowError`."""
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
    """The planted groups, from the first of ``runs`` that knows them, or an empty list."""
    return next((groups for run in runs if (groups := clusters(run).groups)), [])


def _dissimilarity(run: Run, about: Any) -> Dissimilarity | None:
    """``proximity.parquet``, with its description ``about`` in ``clusters.json``; None without one."""
    if about is None:
        return None
    path, described = run.folder / "proximity.parquet", run.folder / "clusters.json"
    table = read_table(path, pd.read_parquet)
    check_columns(path, table, {str(name): (-math.inf, math.inf) for name in table})
    named = set(table.index) <= set(range(len(run.clients))) and [str(k) for k in table.index] == list(table)
    if not named or not np.isfinite(table.to_numpy(float)).all():
        reject(path, "not a matrix of finite numbers with a row and a column per client")
    if not isinstance(about, dict) or not all(isinstance(about.get(n), str) for n in ("unit", "linkage")):
        reject(described, "proximity needs a unit, a linkage and a height")
    if about["linkage"] not in LINKAGES:
        reject(described, f"proximity.linkage is {about['linkage']!r:.40}, not one of {', '.join(LINKAGES)}")
    for name in ("height", "decomposition_error"):
        if about.get(name) is not None:
            check_number(described, f"proximity.{name}", about[name], 0)
    try:
        return Dissimilarity(table.to_numpy(float), table.index.tolist(), **about)
    except TypeError:
        reject(described, "proximity needs a unit, a linkage and a height")


def _is_step(step: Any, clients: int) -> bool:
    known = isinstance(step, dict) and type(step.get("round")) is int and step["round"] >= 0
    return known and _is_assignment(step.get("assignment"), clients)


def _is_assignment(value: Any, clients: int) -> bool:
    whole = isinstance(value, list) and len(value) == clients and all(type(item) is int for item in value)
    return whole and all(-1 <= item < LARGEST for item in value)
