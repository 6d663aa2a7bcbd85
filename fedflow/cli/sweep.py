"""``fedflow sweep``: run the unfinished runs and procedures of the grid in parallel."""

import io
import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from multiprocessing import active_children, get_context
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from pathlib import Path
from queue import Queue
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from fedflow.cli.experiments import load_flow, server_for, start
from fedflow.cli.options import Executor, Root, Set, Workers, load_engine
from fedflow.cli.printing import print_line
from fedflow.cli.startup import importing, interrupted
from fedflow.cli.unused import entries, network_entries, warn_of_unused
from fedflow.errors import BadInput, Unanswered
from fedflow.naming import counted
from fedflow.project.running import AWAY, POLL, runs_elsewhere

if TYPE_CHECKING:
    from fedflow.config import Loaded
    from fedflow.stages.grid import Cell

GRACE = 10  # seconds for a run to end when it is stopped
CONTAINER_MEMORY = Path("/sys/fs/cgroup/memory.max")  # the limit in bytes, or "max"
MEMORY = 2 << 30  # bytes per process: PyTorch, MLflow, Prefect, a small dataset
SHOWN = 3  # reasons printed per run
LATER = "running in another process"

T = TypeVar("T")
Ended = Generator[tuple[str, dict[str, Any], str], None, None]  # title, metrics, error


def sweep(
    settings: Set = None,
    executor: Executor = None,
    workers: Workers = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            "-j",
            min=1,
            help="Parallel runs, each training one client at a time; default: what cores and memory allow, "
            "or 1 with a GPU, --executor processes, dask or ray, or --workers.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would run, and why, and do nothing.")
    ] = False,
    rest: Annotated[
        bool, typer.Option("--rest", help="Skip runs that results.csv has (they ran elsewhere).")
    ] = False,
    name: Annotated[str, typer.Option(help="Name of the MLflow parent run.")] = "sweep",
    root: Root = Path(),
) -> None:
    """Run the grid of params.yaml: all runs and procedures that are not finished, in parallel.

    Example: `fedflow sweep --dry-run`. Runs that finished with the same settings, data, code and libraries
    are kept; rerun the command to resume interrupted ones. Results of runs that the grid no longer has are
    set aside, and restored when it has these runs again.
    """
    with importing():
        from fedflow.config import warn_of_kept
        from fedflow.project.arguments import check_arguments
        from fedflow.stages import grid
        from fedflow.stages.elsewhere import not_elsewhere

    check_arguments(name=name)
    params = load_engine(root, settings, executor, workers)
    if alone := _needs_all_workers(params):
        if (jobs or 1) > 1:
            side_by_side = "runs side by side train one client at a time, in their own processes"
            raise BadInput("--jobs", jobs, f"1 with {alone}: {side_by_side}")
        jobs = 1
    every = grid.cells(params, root, name)
    warn_of_kept(params, grid.pairs(every))
    used = entries(params, every) | network_entries(params, params.grid.central)
    warn_of_unused(params, "the grid", used, "tuning")
    networks = params.grid.central
    if rest:
        left = not_elsewhere(params, root, every)
        print_line(f"{len(every) - len(left)} of {len(every)} runs skipped: results.csv has them")
        every, networks = left, []
        needed = {name for cell in every for name in cell.networks}
        if unread := [name for name in params.grid.central if name not in needed]:
            print_line(f"skipped central networks that no run needs: {', '.join(unread)}")
    if not dry_run:
        todo, failed = grid.to_do(params, root, every, networks=networks)
        _compute(params, root, todo, failed, jobs)
        return
    for cell, why in (expected := grid.expected(params, root, every)):
        more = f" and {len(why) - SHOWN} more" if len(why) > SHOWN else ""
        print_line(f"{cell.title}: {'; '.join(why[:SHOWN])}{more}")
    for folder in grid.left_over(params, root):
        print_line(f"{folder}: to be set aside, not in the grid")
    print_line(grid.counts(expected, every))


def _compute(
    params: "Loaded", root: Path, todo: Sequence["Cell"], lost: Sequence[str], jobs: int | None
) -> None:
    """Run all cells, then raise `FedflowError` if any failed; ``lost`` names those without inputs.

    Procedures come first, because a long one at the end would leave other cores idle. Runs continue
    without an output.
    """
    from fedflow.project.terminal import say, time_left
    from fedflow.stages.grid import raise_failed
    from fedflow.stages.procedure import ProcedureRun

    todo = sorted(todo, key=lambda cell: not isinstance(cell, ProcedureRun))
    failed, began, done = [*lost], time.monotonic(), 0
    cells, later = {cell.title: cell for cell in todo}, list["Cell"]()

    def elsewhere() -> Ended:
        for cell in later:
            say(f"{cell.title}: waiting for another process that runs it")
            while (here := runs_elsewhere(root, cell.address)) or (ended := _run(cell))[2] == LATER:
                time.sleep(POLL if here else AWAY)
            yield ended

    if not todo:
        return raise_failed(lost, len(lost))
    with server_for(params):
        jobs = min(jobs or _jobs(params.engine), len(todo))
        one_by_one = (_run(cell) for cell in todo)
        with closing(_side_by_side(params, root, todo, jobs) if jobs > 1 else one_by_one) as ended:
            for title, metrics, error in chain(ended, elsewhere()):
                if error == LATER:
                    later.append(cells[title])
                    continue
                done += 1
                failed += [title] if error else []
                left = time_left(began, done, len(todo))
                say(f"{done} of {len(todo)}: {title}, {error or _headline(metrics)}{left}")
    raise_failed(failed, len(todo) + len(lost))


def _side_by_side(params: "Loaded", root: Path, todo: Sequence["Cell"], jobs: int) -> Ended:
    """Run the cells in ``jobs`` processes, each of which trains one client at a time."""
    inline = params.engine.executor == "inline"
    if not inline:
        single = replace(params.engine, executor="threads", workers=1)
        params = params.replace("engine.executor=threads", "engine.workers=1", engine=single)
    free: Queue[ProcessPoolExecutor] = Queue()
    for _ in range(jobs):
        free.put(pool := _process())
        pool.submit(_prepare_process, root, not inline)
    with ThreadPoolExecutor(jobs) as threads:
        try:
            futures = [threads.submit(_run_in, free, replace(cell, params=params)) for cell in todo]
            for future in as_completed(futures):
                yield future.result()
            threads.map(ProcessPoolExecutor.shutdown, [*free.queue])
        except BaseException:
            for further in (signal.SIGINT, signal.SIGTERM):  # which would keep the processes alive
                signal.signal(further, signal.SIG_IGN)
            threads.shutdown(wait=False, cancel_futures=True)
            _end(active_children())
            raise


def _process() -> ProcessPoolExecutor:
    """A process that is started when it is used. A pool of several would end with any of them."""
    return ProcessPoolExecutor(1, get_context("spawn"), _start_process)


def _run_in(free: "Queue[ProcessPoolExecutor]", cell: "Cell") -> tuple[str, dict[str, Any], str]:
    """Run one cell in one of the free processes; if the process or its run ends, another one replaces it."""
    pool = free.get()
    try:
        return pool.submit(_stoppable, _run, cell).result()
    except KeyboardInterrupt:  # in the process, of `fedflow stop`
        pool.shutdown(wait=False)
        pool = _process()
        return cell.title, {}, "stopped; rerun the command to resume"
    except BrokenProcessPool:
        pool = _process()
        return cell.title, {}, "failed: its process died, perhaps out of memory; try --jobs 1"
    finally:
        free.put(pool)


def _stoppable(run: Callable[["Cell"], T], cell: "Cell") -> T:
    """Run a cell, which SIGTERM interrupts; it ends a process that waits for a cell."""
    before = signal.signal(signal.SIGTERM, interrupted)
    try:
        return run(cell)
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(cell: "Cell") -> tuple[str, dict[str, Any], str]:
    """Run one cell, whose inputs `grid.to_do` has made, in a flow unless the executor is inline.

    If another process runs it, the error is `LATER`.
    """
    from fedflow.stages.all_stages import run_experiment
    from fedflow.stages.driver import Busy
    from fedflow.stages.experiment import Experiment
    from fedflow.stages.grid import failure, finished_metrics, is_finished
    from fedflow.stages.inputs import need_current
    from fedflow.stages.procedure import run_procedure

    run = isinstance(cell, Experiment)
    compute: Any = run_experiment if run else run_procedure
    try:
        if is_finished(cell, cell.results_folder):  # by another process, since the sweep began
            return cell.title, finished_metrics(cell), ""
        need_current(cell, "the sweep")
        flow = "federate" if run else "procedure"
        return cell.title, start(cell.params, flow, partial(compute, cell, makers={}), **cell.parameters), ""
    except Busy:
        return cell.title, {}, LATER
    except Exception as error:  # a bug in a method or an extension must not end the other runs
        return cell.title, {}, failure(error)


def _end(processes: list[BaseProcess]) -> None:
    """End these processes; their runs can be resumed from checkpoints.

    The first SIGTERM ends the run of a process, one after that the process.
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


def _needs_all_workers(params: "Loaded") -> str:
    """The request of the command that only a run alone can meet, or an executor that is a cluster."""
    engine, asked = params.engine, {change.partition("=")[0] for change in params.changes}
    by_processes = engine.executor == "processes" and {"engine", "engine.executor"} & asked
    if engine.executor in ("dask", "ray") or by_processes:
        return f"executor {engine.executor}"
    several = engine.workers > 1 and {"engine", "engine.workers"} & asked
    return counted(engine.workers, "worker") if several else ""


def _jobs(engine: Any) -> int:
    """Number of parallel runs: one per core as memory allows, or one if a GPU is shared."""
    import joblib
    import psutil

    from fedflow.stages.experiment import pick_device

    if pick_device(engine.device) == "cuda":
        return 1
    memory = psutil.virtual_memory().available
    with suppress(OSError, ValueError):  # "max": no limit
        memory = min(memory, int(CONTAINER_MEMORY.read_text()))
    return max(1, min(joblib.cpu_count(), memory // MEMORY))


def _prepare_process(root: Path, flows: bool) -> None:
    """Import modules for runs, and ``flows``, and make the store while other processes prepare the data."""
    with importing():
        import fedflow.pictures.accuracy
        import fedflow.stages.all_stages  # noqa: F401
        from fedflow.tracking.store import open_store

        open_store(root).client()
        if flows:
            load_flow("federate")


class _Lines(io.TextIOWrapper):
    """Standard output for plain lines, because bars of several runs would overwrite each other."""

    def isatty(self) -> bool:
        return False


def _start_process() -> None:
    from fedflow.simulation.executors import end_with_parent

    sys.stdout = _Lines(os.fdopen(os.dup(1), "wb"), line_buffering=True)
    end_with_parent()
    Finalize(None, _leave, exitpriority=0)


def _leave() -> None:
    """Exit at once if Prefect would try for minutes to send its events."""
    if Unanswered.seen:
        os._exit(0)


def _headline(metrics: dict[str, Any]) -> str:
    """The first of the metrics that are printed."""
    from fedflow.metrics.table import headlines

    name = next((name for name in headlines(metrics) if metrics[name] is not None), "")
    return f"{name} {metrics[name]:.4g}" if name else "done"
