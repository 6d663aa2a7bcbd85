"""``fedflow repro``: `dvc repro`, with the changed runs and outcomes of the grid side by side."""

import io
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from functools import partial
from multiprocessing import active_children, get_context
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedflow.cli.experiments import SWEEP, load_flow, server_for, start
from fedflow.cli.options import Root, load
from fedflow.cli.printing import print_line
from fedflow.cli.startup import importing
from fedflow.errors import FedflowError, Unanswered
from fedflow.project.cells import DVC, OUTCOME, RUN, GridCell, cells, changed_cells, tidy
from fedflow.project.distribution import require
from fedflow.project.templates import check_present

if TYPE_CHECKING:
    from fedflow.config import Loaded

GRACE = 10  # seconds for a run to end when it is stopped
MEMORY = 2 << 30  # bytes per process: PyTorch, MLflow, Prefect, a small data set


def repro(
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", min=1, help="Runs in parallel; default: what cores and memory allow."),
    ] = None,
    root: Root = Path(),
) -> None:
    """Run the whole pipeline: `dvc repro`, but with changed runs and procedures in parallel.

    Example: `fedflow repro`. Stages, hashes and results are those of `dvc repro`. The same
    command resumes an interrupted one.
    """
    require("fedflow repro", "dvc", "mlflow")
    check_present(root, DVC)
    with ExitStack() as stack, ThreadPoolExecutor(1) as background:
        # A server and imports take as long as the data to be prepared.
        early = background.submit(_get_ready, root, jobs, stack) if _expects_runs(root) else None
        _dvc(root, "repro", "partition")
        tidy(root)
        changed = changed_cells(root)
        if missing := [cell for cell in changed if not cell.ready.is_dir()]:
            print_line(f"{len(missing)} of {len(cells(root))} runs to do")
            params, pool = early.result() if early else _get_ready(root, jobs, stack)
            _compute(root, missing, params, pool)
    if done := [cell.stage for cell in changed if cell.take()]:
        # To run their stages would take a second each; this takes a tenth.
        _dvc(root, "commit", "--force", "--quiet", *done)
        tidy(root)
    _dvc(root, "repro")


def _expects_runs(root: Path) -> bool:
    """Whether runs have changed, as far as can be told before the data are prepared."""
    try:
        return any(not cell.ready.is_dir() for cell in changed_cells(root))
    except FedflowError:  # files that they depend on are missing
        return True


def _get_ready(root: Path, jobs: int | None, stack: ExitStack) -> tuple["Loaded", ProcessPoolExecutor | None]:
    """The settings, and the processes that run the cells, if there are to be several, with all imports done.

    Until ``stack`` ends, they run, and so does the Prefect server that runs need.
    """
    params = load(root)
    stack.enter_context(server_for(params))
    jobs = min(jobs or _jobs(params.engine), len(cells(root)))
    if jobs <= 1:
        return params, None
    pool = stack.enter_context(ProcessPoolExecutor(jobs, get_context("spawn"), _start_process))
    for _ in range(jobs):
        pool.submit(_prepare_process, root, params.engine.executor != "inline")
    return params, pool


def _compute(root: Path, changed: list[GridCell], params: "Loaded", pool: ProcessPoolExecutor | None) -> None:
    """Run the cells, side by side if there is a ``pool``; raises `FedflowError` if any fails.

    Procedures come first: a long one at the end would leave other cores idle.
    """
    changed = sorted(changed, key=lambda cell: cell.kind == RUN)
    if pool is None:
        from fedflow.project.terminal import counted

        for cell in counted(changed):
            train(root, cell, [])
        return
    # Processes share the cores: each trains one client at a time.
    inline = params.engine.executor == "inline"
    changes = [] if inline else ["engine.executor=threads", "engine.workers=1"]
    if failed := _side_by_side(root, changed, changes, pool):
        raise FedflowError(f"{len(failed)} of {len(changed)} runs failed: {', '.join(failed)}")


def _side_by_side(
    root: Path, changed: list[GridCell], changes: list[str], pool: ProcessPoolExecutor
) -> list[str]:
    """Run the cells in the ``pool``, with ``changes`` of the settings; returns titles of failures."""
    from fedflow.project.terminal import time_left

    failed, began = [], time.monotonic()
    try:
        futures = {pool.submit(_train, root, cell, changes): cell.title for cell in changed}
        for done, future in enumerate(as_completed(futures), 1):
            title, (metrics, error) = futures[future], future.result()
            failed += [title] if error else []
            left = time_left(began, done, len(changed))
            print_line(f"{done} of {len(changed)}: {title}, {error or _headline(metrics)}{left}")
    except BrokenProcessPool as error:
        raise FedflowError("a process died; is memory short? Try `fedflow repro --jobs 1`") from error
    except BaseException:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not keep the processes alive
        pool.shutdown(wait=False, cancel_futures=True)
        _end(active_children())
        raise
    return failed


def _end(processes: list[BaseProcess]) -> None:
    """End these processes; their runs resume from their checkpoints.

    The first SIGTERM ends the flow of a process, the next one the process.
    """
    for _ in range(GRACE):
        for process in processes:
            process.terminate()
        for process in processes:
            process.join(1 / len(processes))
        if not any(process.is_alive() for process in processes):
            return
    for process in processes:
        process.kill()


def _train(root: Path, cell: GridCell, changes: list[str]) -> tuple[dict[str, Any], str]:
    """The metrics of one cell, or the error that ends it."""
    try:
        return train(root, cell, changes), ""
    except FedflowError as error:
        return {}, f"failed: {error}"


def train(root: Path, cell: GridCell, changes: list[str]) -> dict[str, Any]:
    """Run one cell into the folder where its stage looks for it; returns its metrics."""
    ready, params = cell.ready, load(root, changes)
    making = ready.with_suffix(".partial")
    metrics = (_outcome if cell.kind == OUTCOME else _run)(params, root, dict(cell.item), making)
    making.replace(ready)
    return metrics


def _run(params: "Loaded", root: Path, item: dict[str, str], folder: Path) -> dict[str, Any]:
    from fedflow.stages.all_stages import run_experiment
    from fedflow.stages.experiment import Experiment

    experiment = Experiment(params, item["partition"], item["method"], int(item["seed"]), root, SWEEP)
    experiment.check()
    compute = partial(run_experiment, experiment, folder)
    return start(params, RUN, compute, **experiment.parameters, out=str(folder))


def _outcome(params: "Loaded", root: Path, item: dict[str, str], folder: Path) -> dict[str, Any]:
    from fedflow.stages.procedure import ProcedureRun, run_procedure

    run = ProcedureRun(params, item["procedure"], int(item["seed"]), root, SWEEP, str(folder))
    return start(params, OUTCOME, partial(run_procedure, run), **run.parameters)


def _jobs(engine: Any) -> int:
    """Runs at once: one per core, if the memory suffices; one where a GPU or a cluster is shared."""
    import psutil

    from fedflow.stages.experiment import pick_device

    if pick_device(engine.device) == "cuda" or engine.executor in ("dask", "ray"):
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, psutil.virtual_memory().available // MEMORY))


def _prepare_process(root: Path, flows: bool) -> None:
    """Import what runs need, ``flows`` too, and make the store, while others prepare the data."""
    with importing():
        import fedflow.pictures.accuracy
        import fedflow.stages.all_stages  # noqa: F401
        from fedflow.tracking.store import open_store

        open_store(root).client()
        if flows:
            load_flow(RUN)


class _Lines(io.TextIOWrapper):
    """Standard output for plain lines, as bars of several runs would overwrite each other."""

    def isatty(self) -> bool:
        return False


def _start_process() -> None:
    from fedflow.simulation.executors import end_with_parent

    sys.stdout = _Lines(os.fdopen(os.dup(1), "wb"), line_buffering=True)
    end_with_parent()
    Finalize(None, _leave, exitpriority=0)


def _leave() -> None:
    """End this process at once if Prefect would try for minutes to send its events."""
    if Unanswered.seen:
        os._exit(0)


def _headline(metrics: dict[str, Any]) -> str:
    """The first of the metrics that are printed."""
    from fedflow.metrics.table import headlines

    name = next(iter(headlines(metrics)), "")
    return f"{name} {metrics[name]:.4g}" if name else "done"


def _dvc(root: Path, *arguments: str) -> None:
    """Run DVC with the Python of this command, also where its programs are not in the path."""
    path = os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.executable).parent)])
    command = [sys.executable, "-m", "dvc", *arguments]
    code = subprocess.run(command, cwd=root, env=os.environ | {"PATH": path}, check=False).returncode
    if code:
        raise FedflowError(f"`dvc {' '.join(arguments)}` failed")
