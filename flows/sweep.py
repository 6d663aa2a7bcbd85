"""The grid: every partition x method x seed, then every procedure x seed, each on all workers."""

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from prefect import flow

from fedflow.config import Changes, Loaded, warn_of_kept
from fedflow.project.running import AWAY, POLL, runs_elsewhere
from fedflow.project.terminal import say, time_left
from fedflow.stages.driver import Busy
from fedflow.stages.experiment import Experiment
from fedflow.stages.grid import (
    Cell,
    cells,
    failure,
    finished_metrics,
    is_finished,
    pairs,
    raise_failed,
    to_do,
)
from flows.central import central
from flows.federate import federate
from flows.procedure import procedure
from tasks.inputs import TASKS
from tasks.mistakes import checked, checking
from tasks.progress import comparison


@flow(name="sweep", log_prints=True, validate_parameters=False)
def sweep(
    partitions: list[str] | None = None,
    methods: list[str] | None = None,
    seeds: list[int] | None = None,
    settings: list[str] | None = None,
    root: str = ".",
    name: str = "sweep",
) -> list[dict[str, Any]]:
    """Run all unfinished cells of a grid (default: the grid of params.yaml); returns all metrics.

    Raises `FedflowError` at the end if cells failed.

    The runs of a partition or of a procedure share an MLflow parent run. Procedures are left out of a grid
    with other partitions or methods.
    """
    with checking():
        params = checked(settings, root, name=name, partitions=partitions, methods=methods, seeds=seeds)
        grid = cells(params, Path(root), name, partitions, methods, seeds)
        warn_of_kept(params, pairs(grid))
    todo, failed = to_do(params, Path(root), grid, TASKS | {"networks": _train})
    count = len(todo) + len(failed)
    later = list[Cell]()
    began = time.monotonic()
    for done, cell in enumerate(todo):
        say(f"{done + 1} of {len(todo)}: {cell.title}{time_left(began, done, len(todo))}")
        if is_finished(cell, cell.results_folder):  # by another process, since the sweep began
            continue
        try:
            _run(cell)
        except Busy:
            later.append(cell)
        except Exception as error:  # a bug in a method must not end the other runs
            say(f"{cell.title}, {failure(error)}")
            failed.append(cell.title)
    for cell in later:
        try:
            _wait_for(cell)
        except Exception as error:
            say(f"{cell.title}, {failure(error)}")
            failed.append(cell.title)
    raise_failed(failed, count)
    metrics = [finished_metrics(cell) for cell in grid]
    if runs := [m for m, cell in zip(metrics, grid, strict=True) if isinstance(cell, Experiment)]:
        comparison(name, runs)
    return metrics


def _run(cell: Cell) -> None:
    federate(**cell.parameters) if isinstance(cell, Experiment) else procedure(**cell.parameters)


def _wait_for(cell: Cell) -> None:
    """Wait for the process that runs this cell, and run it if that process fails."""
    say(f"{cell.title}: waiting for another process that runs it")
    while not is_finished(cell, cell.results_folder):
        if not (here := runs_elsewhere(cell.root, cell.address)):
            with suppress(Busy):
                _run(cell)
                return
        time.sleep(POLL if here else AWAY)


def _train(params: Loaded, name: str, root: Path) -> None:
    central(name, Changes(params), str(root))
