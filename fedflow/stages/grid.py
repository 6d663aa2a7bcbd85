"""The grid of ``params.yaml``: its runs and procedures, which are finished, and what it no longer has."""

import json
import shutil
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from fedflow.config import Loaded
from fedflow.data import is_current
from fedflow.files import prepared_folder
from fedflow.project.identity import Identity
from fedflow.project.terminal import say
from fedflow.stages.central_network import CentralRun, prepare_network
from fedflow.stages.driver import outdated
from fedflow.stages.experiment import Experiment, experiments
from fedflow.stages.inputs import Make, make_inputs
from fedflow.stages.partition import is_divided, prepare_partition
from fedflow.stages.prepare import prepare_dataset
from fedflow.stages.procedure import ProcedureRun, procedure_runs

Cell = Experiment | ProcedureRun
RESULTS, OUTCOMES = "results", "outcomes"


def cells(
    params: Loaded,
    root: Path,
    name: str,
    partitions: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
) -> list[Cell]:
    """The runs, then the procedures of a grid (default: that of ``params``), all checked.

    ``name`` is that of their MLflow parent runs. Naming partitions or methods leaves out the procedures.
    """
    runs = experiments(params, root, name, partitions, methods, seeds)
    part = partitions is not None or methods is not None
    return [*runs, *([] if part else procedure_runs(params, root, name, seeds))]


def to_do(
    params: Loaded,
    root: Path,
    grid: Sequence[Cell],
    prepare: Make = prepare_dataset,
    train: Make = prepare_network,
    divide: Make = prepare_partition,
) -> list[Cell]:
    """Return the cells that are not finished, after all that they read is made, and `left_over` is deleted.

    Also trains the other central networks of the grid. The makers are as for `make_inputs`.
    """
    for name in params.grid.central:
        train(params, name, root)
    make_inputs(grid, prepare, train, divide)
    for home in (RESULTS, OUTCOMES):  # outputs of a stage of dvc.yaml; DVC warns of empty ones
        (root / home).mkdir(exist_ok=True)
        (root / home / ".gitkeep").touch()
    for folder in left_over(params, root):
        _remove(folder)
        say(f"{folder}: deleted, not in the grid")
    found = [cell for cell in grid if outdated(root, folder_of(cell), cell.identity)]
    say(counts(found, grid))
    return found


def counts(todo: Sequence[object], grid: Sequence[Cell]) -> str:
    """The amount of work, in words."""
    return f"{len(todo)} of {len(grid)} runs to do, {len(grid) - len(todo)} up to date"


def folder_of(cell: Cell) -> Path:
    """The folder of its results."""
    return cell.results_folder if isinstance(cell, Experiment) else cell.folder


def expected(params: Loaded, root: Path, grid: Sequence[Cell]) -> list[tuple[Cell, list[str]]]:
    """The cells that may run, with the reasons that can be told before inputs are made; nothing is made.

    A cell whose only reason is an input that is made first does not run if that turns out as it was.
    """
    checks: dict[str, tuple[str, Callable[[Loaded, str, Path], bool]]] = {
        "datasets": ("data of", lambda *of: is_current(prepared_folder(root, of[1]), params.dataset(of[1]))),
        "networks": ("central network", lambda *of: CentralRun(*of).is_current()),
        "partitions": ("partition", is_divided),
    }
    named = {(kind, name) for cell in grid for kind in checks for name in getattr(cell, kind)}
    old = {(kind, name) for kind, name in named if not checks[kind][1](params, name, root)}
    found = []
    for cell in grid:
        read = [(kind, name) for kind in checks for name in getattr(cell, kind) if (kind, name) in old]
        first = [f"{checks[kind][0]} {name}, if it changes" for kind, name in read]
        why = outdated(root, folder_of(cell), cell.identity) or first
        found += [(cell, why)] if why else []
    return found


def left_over(params: Loaded, root: Path) -> list[Path]:
    """The folders of results that fedflow wrote, and that the grid of params.yaml itself no longer has."""
    if params.plain is None:
        return []
    grid = params.plain.grid
    runs = product([RESULTS], grid.partitions, grid.methods, map(str, grid.seeds))
    outcomes = product([OUTCOMES], grid.procedures, map(str, grid.seeds))
    known = {root.joinpath(*names) for names in (*runs, *outcomes)}
    found = [*root.glob(f"{RESULTS}/*/*/*"), *root.glob(f"{OUTCOMES}/*/*")]
    return [one for one in sorted(found) if one.name.isdecimal() and one not in known and Identity.read(one)]


def _remove(folder: Path) -> None:
    """Delete a folder of results, and the folders above it that it leaves empty, up to `RESULTS`."""
    shutil.rmtree(folder)
    for parent in folder.parents:
        if parent.name in (RESULTS, OUTCOMES) or any(parent.iterdir()):
            return
        parent.rmdir()


def finished_metrics(cell: Cell) -> dict[str, Any]:
    """The metrics of a finished cell, as running it returns them."""
    facts: dict[str, Any] = json.loads((folder_of(cell) / "metrics.json").read_text())
    return facts if isinstance(cell, Experiment) else dict(facts["metrics"])
