"""Runs of a study that were made elsewhere: rows of its committed ``results.csv`` that hold.

A study may be run in parts, on several machines or days: the runs in its folder are judged together with
these rows. A row holds if params.yaml and the code still give its digests of settings and code, or if later
code gave the same numbers in a sample (`fedflow.stages.current.holds`).
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from fedflow.claims.results import CHANGES, EQUAL, RUN, code_of, read_results
from fedflow.claims.sources import RESULTS
from fedflow.config import Loaded
from fedflow.errors import FedflowError
from fedflow.files import CHANGED
from fedflow.finished.contents import HASHES, hashes
from fedflow.finished.run import Run
from fedflow.finished.variants import PLACES, named
from fedflow.project.digest import SETTINGS, SHORT, canonical, digest
from fedflow.stages.current import holds
from fedflow.stages.experiment import Experiment
from fedflow.stages.grid import Cell
from fedflow.stages.procedure import ProcedureRun

Row = Mapping[str, str]


def joined(params: Loaded, root: Path, here: Sequence[Run] = ()) -> tuple[list[Run], list[Row]]:
    """The runs ``here`` and the rows of ``results.csv`` in ``root``, as runs without tables.

    Also the rows that do not hold. A run here hides its row. Raises `FedflowError` for a damaged file, and if
    a row holds, but a run of its method here has other settings or code.
    """
    known = {_key(run): run for run in here}
    effective, made, outdated = _by_entry(params, root), list[Run](), list[Row]()
    for row in read_results(root):
        same = known.get((row["partition"], row["method"], row["seed"], row["settings"]))
        if same and code_of(same) in (row["code"], row.get(EQUAL)):
            continue
        if holds(row) and (run := _run(params, root, row, here, effective)):
            made.append(run)
        elif not same:
            outdated.append(row)
    _check(made, here)
    every = sorted((*here, *made), key=lambda run: (run.partition, run.method, run.seed))
    rows = [run for run in every if run.procedure]
    return [*named([run for run in every if not run.procedure]), *rows], outdated


def not_elsewhere(params: Loaded, root: Path, cells: Iterable[Cell]) -> list[Cell]:
    """The cells of which ``results.csv`` in ``root`` has no row that holds."""
    runs, _ = joined(params, root)
    made = {(run.partition, *([] if run.procedure else [run.method]), run.seed, run.settings) for run in runs}
    return [cell for cell in cells if (*cell.names, cell.seed, cell.digest) not in made]


def changed_sections(params: Loaded, root: Path) -> Callable[[Run], dict[str, Any]]:
    """A function of runs: the sections of their settings that differ from params.yaml (``params``).

    Each with the run's value. "all" stands for sections that params.yaml does not have.
    """
    effective = _by_entry(params, root)

    def changed(run: Run) -> dict[str, Any]:
        try:
            plain = effective(run.partition, run.method, bool(run.procedure))
        except FedflowError:  # params.yaml has no such entry
            plain = {}
        if run.settings == digest(plain, SETTINGS):
            return {}
        sections = {name: run.params.get(name) for name in plain if run.params.get(name) != plain[name]}
        return sections or {"all": None}

    return changed


def as_text(run: Run, changed: Callable[[Run], Mapping[str, Any]]) -> str:
    """The column `CHANGES` of a run: the sections that `changed_sections` gives, as JSON; empty if none."""
    if run.committed:
        return run.committed.get(CHANGES, "")
    sections = changed(run)
    return canonical(sections) if sections and "all" not in sections else ""


def _key(run: Run) -> tuple[str, ...]:
    return run.partition, run.method, str(run.seed), run.settings[:SHORT]


def _cell(params: Loaded, root: Path, partition: str, method: str, seed: int, procedure: bool) -> Cell:
    """The cell of a run or of a procedure's row; `FedflowError` if params.yaml lacks one of its names."""
    return (
        ProcedureRun(params, partition, seed, root)
        if procedure
        else Experiment(params, partition, method, seed, root)
    )


def _by_entry(params: Loaded, root: Path) -> Callable[[str, str, bool], dict[str, Any]]:
    """A function that returns the settings of the cells of all seeds, as in their files; see `_cell`."""

    @cache
    def effective(partition: str, method: str, procedure: bool) -> dict[str, Any]:
        cell = _cell(params, root, partition, method, 0, procedure)
        settings: dict[str, Any] = json.loads(canonical(cell.effective))
        return settings

    return effective


def _run(
    params: Loaded,
    root: Path,
    row: Row,
    here: Iterable[Run],
    effective: Callable[[str, str, bool], dict[str, Any]],
) -> Run | None:
    """A row as a run, or None if params.yaml with its changes gives other settings."""
    try:
        cell = _cell(params, root, row["partition"], row["method"], int(row["seed"]), row["kind"] != RUN)
        settings = effective(row["partition"], row["method"], row["kind"] != RUN)
        settings = settings | json.loads(row.get(CHANGES) or "{}")
    except (FedflowError, ValueError):
        return None
    given = digest(settings, SETTINGS)
    if given[:SHORT] != row["settings"]:
        return None
    home, last = cell.home, str(cell.seed)
    if row.get(CHANGES):
        home, last = CHANGED, f"{last}-{given[:SHORT]}"
    folder = root.joinpath(home, *cell.names, last)
    label = " · ".join(filter(None, (row["method"], row.get("variant"))))  # of a row of a procedure
    facts: dict[str, Any] = {name: row[name] for name in ("partition", "method")}
    facts |= {"seed": cell.seed, "settings": given, "method_label": row["method"]}
    if isinstance(cell, Experiment):
        sizes = {"clients": settings["partition"]["clients"], "rounds": settings["run"]["rounds"]}
        facts |= {name: int(row.get(name) or size) for name, size in sizes.items() if row.get(name) or size}
        facts |= {"method_label": params.label(cell.method), "model": row["networks"]}
        facts |= {"division": row["division"]} if row.get("division") else {}
        # The file has no hashes of data: a run here on the same data has them.
        like = next((r for r in here if all(r.params.get(n) == settings[n] for n in PLACES)), None)
        facts |= dict.fromkeys(HASHES, "") | (hashes(like.metrics) if like else {})
    tables = pd.DataFrame({"round": []}), pd.DataFrame()
    filled = {name: text for name, text in row.items() if text}
    return Run(folder, facts, settings, *tables, label, label, committed=filled)


def _check(made: Sequence[Run], here: Iterable[Run]) -> None:
    """Raise `FedflowError` if a run of params.yaml here differs in settings or code from rows that hold."""
    held = {(run.partition, run.method): run for run in made if not run.committed.get(CHANGES)}
    for run in here:
        row = held.get((run.partition, run.method))
        if row is None or run.folder.name != str(run.seed):
            continue
        codes = row.committed["code"], row.committed.get(EQUAL)
        if run.settings != row.settings or code_of(run) not in codes:
            raise FedflowError(
                f"{run.folder}: its settings or code differ from the rows of its method in {RESULTS}; "
                "run `fedflow sweep`, or delete this folder"
            )
