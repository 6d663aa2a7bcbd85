"""Runs of a study whose folders are elsewhere: rows of its committed ``results.csv`` that still hold.

A study may be divided over machines and days: ``fedflow report --verdicts`` judges the runs in its folder
together with these rows, and keeps them.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fedflow.claims.results import RUN, read_results
from fedflow.claims.sources import RESULTS
from fedflow.config import Loaded
from fedflow.errors import FedflowError
from fedflow.finished.run import Run
from fedflow.methods import METHODS
from fedflow.project.digest import SHORT, canonical
from fedflow.stages.current import current_code
from fedflow.stages.experiment import Experiment
from fedflow.stages.grid import Cell
from fedflow.stages.procedure import ProcedureRun

Row = dict[str, str]


def runs_elsewhere(params: Loaded, root: Path, here: Iterable[Run] = ()) -> tuple[list[Run], int]:
    """The rows of ``results.csv`` in ``root`` that are not of the runs ``here``, as runs without tables.

    And the number of rows that hold no more: params.yaml or the code gives other digests now.
    """
    known = {(run.partition, run.method, str(run.seed), run.settings[:SHORT]) for run in here}
    names = ("partition", "method", "seed", "settings")
    rows = [row for row in read_results(root) if tuple(row[name] for name in names) not in known]
    runs = [run for row in rows for run in _run(params, root, row)]
    return runs, len(rows) - len(runs)


def not_elsewhere(params: Loaded, root: Path, cells: Iterable[Cell]) -> list[Cell]:
    """The cells of which ``results.csv`` in ``root`` has no row that holds."""
    runs, _ = runs_elsewhere(params, root)
    made = {(run.partition, *([] if run.procedure else [run.method]), run.seed, run.settings) for run in runs}
    return [cell for cell in cells if (*cell.names, cell.seed, cell.digest) not in made]


def _run(params: Loaded, root: Path, row: Row) -> Sequence[Run]:
    """The run of a row, or nothing if the row does not hold."""
    cell: Cell
    try:
        if row["kind"] == RUN:
            cell = Experiment(params, row["partition"], row["method"], int(row["seed"]), root)
        else:
            cell = ProcedureRun(params, row["partition"], int(row["seed"]), root)
        digest = cell.digest
    except FedflowError:  # params.yaml has no such entry
        return ()
    code = current_code(row["kind"], row["registered"], row["networks"])
    if (digest[:SHORT], code) != (row["settings"], row["code"]):
        return ()
    label = params.labels.get(row["method"], getattr(METHODS.get(row["method"]), "label", row["method"]))
    facts: dict[str, Any] = {name: row[name] for name in ("partition", "method")}
    facts |= {"seed": cell.seed, "settings": digest, "method_label": label}
    if isinstance(cell, Experiment):
        facts |= _sizes(cell) | ({"division": row["division"]} if row.get("division") else {})
    empty = pd.DataFrame({"round": []}), pd.DataFrame()
    committed = {name: text for name, text in row.items() if text}
    settings = json.loads(canonical(cell.effective))  # as in its file
    return (Run(root / RESULTS, facts, settings, *empty, row["method"], label, committed=committed),)


def _sizes(cell: Experiment) -> dict[str, Any]:
    """Sizes of a run, as far as its settings tell."""
    effective = cell.effective
    sizes = {"rounds": cell.run.rounds, "clients": effective["partition"]["clients"]}
    return sizes | {"model": effective["model"]["name"], "dataset": cell.dataset}
