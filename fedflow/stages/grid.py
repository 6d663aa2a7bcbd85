"""The grid of ``params.yaml``: its runs and procedures, and those that are finished or left over."""

import json
import shutil
import traceback
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from fedflow.config import Loaded
from fedflow.errors import FedflowError
from fedflow.files import locked
from fedflow.project.identity import Identity
from fedflow.project.running import LOCKS
from fedflow.project.terminal import say
from fedflow.stages.driver import outdated, unused
from fedflow.stages.experiment import Experiment, experiments
from fedflow.stages.inputs import INPUTS, MAKERS, Makers, inputs_of, outdated_inputs
from fedflow.stages.procedure import ProcedureRun, procedure_runs

Cell = Experiment | ProcedureRun
RESULTS, OUTCOMES = Experiment.home, ProcedureRun.home
ASIDE = Path(".fedflow") / "aside"  # results that the grid no longer has, by folder and key


def cells(
    params: Loaded,
    root: Path,
    name: str,
    partitions: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
) -> list[Cell]:
    """The runs, then the procedures of a grid (default: the grid of ``params``), all checked.

    ``name`` is the name of their MLflow parent runs. Procedures are left out of a grid with other partitions
    or methods.
    """
    runs = experiments(params, root, name, partitions, methods, seeds)
    part = bool(partitions or methods)
    return [*runs, *([] if part else procedure_runs(params, root, name, seeds))]


def pairs(grid: Sequence[Cell]) -> list[tuple[str, ...]]:
    """Partition and method of every run of the grid."""
    return list(dict.fromkeys(cell.names for cell in grid if isinstance(cell, Experiment)))


def to_do(
    params: Loaded,
    root: Path,
    grid: Sequence[Cell],
    makers: Makers = MAKERS,
    networks: Sequence[str] | None = None,
) -> tuple[list[Cell], list[str]]:
    """Make the inputs of the grid and set `left_over` results aside.

    Returns the cells that are not finished, and the titles of those whose inputs cannot be made. Results come
    back when the grid has them again. The central ``networks`` (default: of the grid) are trained even if no
    cell reads them. ``makers`` are as for `make_inputs`.
    """
    networks = params.grid.central if networks is None else networks
    unread, lost = _make_inputs(params, root, grid, networks, makers)
    for home in (RESULTS, OUTCOMES):  # outputs of a stage of dvc.yaml; DVC warns of empty ones
        (root / home).mkdir(exist_ok=True)
        (root / home / ".gitkeep").touch()
    waiting = partial(say, "waiting for another sweep that moves results")
    with locked(root / LOCKS / "grid", waiting):
        todo = _moved(params, root, [cell for cell in grid if cell.title not in lost])
    say(counts([*todo, *lost], grid))
    return todo, [*lost, *unread]


def _moved(params: Loaded, root: Path, grid: Sequence[Cell]) -> list[Cell]:
    """Set results aside and restore others; returns the cells that then have no finished results."""
    for folder, identity in left_over(params, root).items():
        with unused(folder, root) as free:
            if free:
                _move(folder, _aside(root, folder, identity))
                say(f"{folder}: set aside, not in the grid")
    todo = []
    for cell in grid:
        folder = cell.results_folder
        if not outdated(folder, cell.identity):
            continue
        with unused(folder, root) as free:
            if not free or not _is_aside(cell):
                todo.append(cell)
                continue
            if other := Identity.read(folder):
                _move(folder, _aside(root, folder, other))
            _move(_aside(root, folder, cell.identity), folder)
            say(f"{folder}: restored (in the grid again)")
    return todo


def _make_inputs(
    params: Loaded, root: Path, grid: Sequence[Cell], networks: Sequence[str], makers: Makers
) -> tuple[list[str], list[str]]:
    """Make these central networks and the inputs of the grid, once each, unless they are current.

    Returns networks that failed and that no cell reads, in words, and the titles of cells with an input that
    failed, whose further inputs are left out. Raises the first error if no cell is left.
    """
    readers: dict[tuple[str, str], list[str]] = {("networks", name): [] for name in networks}
    for kind, cell in product(makers, grid):
        for name in getattr(cell, kind):
            readers.setdefault((kind, name), []).append(cell.title)
    errors: dict[str, Exception] = {}
    unread, lost = list[str](), dict[str, None]()
    for (kind, name), titles in readers.items():
        if titles and lost.keys() >= {*titles}:
            continue
        try:
            makers[kind](params, name, root)
        except Exception as error:  # a bug in a scheme must not end runs that do not read it
            errors[f"{INPUTS[kind]} {name}"] = error
            unread += [] if titles else [f"{INPUTS[kind]} {name}"]
            lost |= dict.fromkeys(titles)
    if errors and len(lost) == len(grid):
        raise next(iter(errors.values()))
    for words, reason in errors.items():
        say(f"{words}, {failure(reason)}")
    return unread, [*lost]


def failure(error: Exception) -> str:
    """An error in words. The traceback of a bug in a method, a scheme or an extension is printed."""
    if isinstance(error, FedflowError | OSError):
        return f"failed: {error}"
    traceback.print_exception(error)
    return f"failed: {type(error).__name__}: {error}"


def counts(todo: Sequence[object], grid: Sequence[Cell]) -> str:
    """The amount of work, in words."""
    return f"{len(todo)} of {len(grid)} runs to do, {len(grid) - len(todo)} up to date"


def expected(params: Loaded, root: Path, grid: Sequence[Cell]) -> list[tuple[Cell, list[str]]]:
    """The cells that may run, with the reasons, as far as they are known before inputs are made.

    A cell whose only reason is an outdated input does not run if that input turns out unchanged.
    """
    old, reasons = {*outdated_inputs(params, root, grid)}, []
    for cell in grid:
        unsure = [words for words in inputs_of(cell) if words in old]
        why = outdated(cell.results_folder, cell.identity, unsure)
        why = why or [f"{words}, if it changes" for words in unsure]
        reasons += [(cell, why)] if why and not _is_aside(cell) else []
    return reasons


def is_finished(cell: Cell, folder: Path) -> bool:
    """True if ``folder`` has the results of this cell, and of its inputs as they are now."""
    made = (folder / "metrics.json").exists() and not outdated(folder, cell.identity)
    return made and not outdated_inputs(cell.params, cell.root, [cell])


def raise_failed(titles: Sequence[str], count: int) -> None:
    """Raise `FedflowError` if any of ``count`` runs failed; ``titles`` names those."""
    if titles:
        raise FedflowError(f"{len(titles)} of {count} runs failed: {', '.join(titles)}")


def current(params: Loaded, root: Path) -> dict[str, tuple[str, str]]:
    """Digests of settings and code of the runs of the grid, by PARTITION/METHOD: seeds share them."""
    runs = experiments(params, root, "current", seeds=params.grid.seeds[:1])
    return {"/".join(run.names): (run.digest, run.identity.code) for run in runs}


def left_over(params: Loaded, root: Path) -> dict[Path, Identity]:
    """The folders of results that fedflow wrote for cells that the grid of params.yaml no longer has."""
    if params.plain is None:
        return {}
    grid = params.plain.grid
    runs = product([RESULTS], grid.partitions, grid.methods, map(str, grid.seeds))
    outcomes = product([OUTCOMES], grid.procedures, map(str, grid.seeds))
    wanted = {root.joinpath(*names) for names in (*runs, *outcomes)}
    others = {*root.glob(f"{RESULTS}/*/*/*"), *root.glob(f"{OUTCOMES}/*/*")} - wanted
    read = {folder: Identity.read(folder) for folder in sorted(others) if folder.name.isdecimal()}
    return {folder: identity for folder, identity in read.items() if identity}


def _is_aside(cell: Cell) -> bool:
    """True if the results of this cell were set aside."""
    folder = _aside(cell.root, cell.results_folder, cell.identity)
    return folder.is_dir() and not outdated(folder, cell.identity)


def _aside(root: Path, folder: Path, identity: Identity) -> Path:
    """The folder for results that are set aside. Entries with equal settings share an identity."""
    return root / ASIDE / folder.relative_to(root).with_name(f"{folder.name}-{identity.key}")


def _move(folder: Path, to: Path) -> None:
    """Move a folder of results, and delete the folders above it that it leaves empty, up to `RESULTS`."""
    shutil.rmtree(to, ignore_errors=True)
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(folder, to)
    for parent in folder.parents:
        if parent.name in (RESULTS, OUTCOMES, ASIDE.name) or any(parent.iterdir()):
            return
        parent.rmdir()


def finished_metrics(cell: Cell, folder: Path | None = None) -> dict[str, Any]:
    """The metrics of a finished cell, as a run returns them, from ``folder`` (default: `results_folder`)."""
    folder = folder or cell.results_folder
    facts: dict[str, Any] = json.loads((folder / "metrics.json").read_text())
    return facts if isinstance(cell, Experiment) else dict(facts["metrics"])
