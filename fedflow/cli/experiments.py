"""The commands ``run`` and ``tune``, and functions to start flows."""

import shlex
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from datetime import datetime
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from fedflow.cli.options import Again, Executor, Root, Set, Sweep, Workers, load_engine
from fedflow.cli.printing import console, print_line, print_metrics, print_table
from fedflow.cli.startup import importing
from fedflow.cli.unused import entries, warn_of_unused
from fedflow.errors import BadInput, FedflowError, asking_prefect
from fedflow.naming import counted
from fedflow.project.distribution import require

if TYPE_CHECKING:
    from fedflow.config import Params
    from fedflow.stages.grid import Cell
    from fedflow.stages.inputs import Makers

T = TypeVar("T")


def run(
    partition: Annotated[str, typer.Option(help="A name under `partitions` in params.yaml.")],
    method: Annotated[
        str,
        typer.Option(
            help="A name under `methods` in params.yaml, or a registered method (`fedflow methods`)."
        ),
    ],
    seed: Annotated[int, typer.Option(help="Seed of the run.", min=0)] = 0,
    settings: Set = None,
    executor: Executor = None,
    workers: Workers = None,
    out: Annotated[
        str | None, typer.Option(help="Folder of the result files; default: below results or runs.")
    ] = None,
    sweep: Sweep = None,
    again: Again = False,
    root: Root = Path(),
) -> None:
    """Run one experiment: one method on one partition with one seed.

    Example: `fedflow run --partition mnist5k-dir --method ifca --set method.clusters=4`.
    Rerun the command to resume an interrupted run from its last checkpoint. For a finished run, it prints the
    numbers.
    """
    with ExitStack() as imports:
        imports.enter_context(importing())
        from fedflow.config import warn_of_kept
        from fedflow.finished.reading import read_json
        from fedflow.project.arguments import check_arguments
        from fedflow.stages.all_stages import run_experiment
        from fedflow.stages.central_network import prepare_network
        from fedflow.stages.experiment import Experiment
        from fedflow.stages.inputs import MAKERS

        def train(*arguments: Any) -> Path:
            imports.close()
            return prepare_network(*arguments)

        changes = [_full_name(change, method) for change in settings or []]
        check_arguments(root=root, out=out, sweep=sweep)
        params = load_engine(root, changes, executor, workers)
        experiment = Experiment(params, partition, method, seed, root, sweep)
        experiment.check()
        warn_of_kept(params, [experiment.names])
        warn_of_unused(params, experiment.title, entries(params, [experiment]), "grid", "tuning")
        folder = Path(out) if out else None
        home = folder or experiment.results_folder
        makers = MAKERS | {"networks": train}
        if not again and finished_already(experiment, home, makers):
            metrics = read_json(home / "metrics.json")
        else:
            rounds = counted(experiment.run.rounds, "round")
            print_line(f"{experiment.title}: {rounds}, {_resolved(params)}; Ctrl-C stops it; rerun to resume")
            if params.engine.executor != "inline":
                imports.close()
            compute = partial(
                run_experiment, experiment, folder, makers=makers, opened=lambda _: imports.close()
            )
            metrics = start(params, "federate", compute, **experiment.parameters, out=out)
    print_metrics(metrics, home)
    if "fid" in metrics:
        from fedflow.metrics.generation import features_of

        print_line(f"the features of fid are {features_of(experiment.run.as_dict())[1]}")
    where = "" if root == Path() else f" --root {shlex.quote(str(root))}"
    more = (
        f", fedflow report{where}, fedflow ui{where}" if folder is None else ""
    )  # the report omits the folder
    print_line(f"next: fedflow show {shlex.quote(out or experiment.address)}{where}{more}")


def tune(
    partition: Annotated[str, typer.Option(help="A name under `partitions` in params.yaml.")],
    method: Annotated[
        list[str] | None, typer.Option(help="A method, as for `run`. Repeatable; default: all of the grid.")
    ] = None,
    settings: Set = None,
    executor: Executor = None,
    workers: Workers = None,
    write: Annotated[bool, typer.Option(help="Write the choice to `tuned` in params.yaml.")] = True,
    root: Root = Path(),
) -> None:
    """Choose each method's learning rate (or what `tuning` lists) on held-out training data.

    Example: `fedflow tune --partition mnist5k-dir --method fedavg --method ditto`. Every method gets the
    same small grid and the same rule; test data are not used. `fedflow run` then uses the chosen values.
    """
    from fedflow.config import Changes
    from fedflow.config.tuning import combinations
    from fedflow.stages import tune as stage

    params = load_engine(root, settings, executor, workers)
    searches = stage.searches(params, partition, method, root)  # checked before a server starts
    tries = [search.experiment(next(combinations(search.grid))) for search in searches]
    used = entries(params, tries) | {f"partitions.{partition}"}
    bases = ((search.method, params.registered(search.method)) for search in searches)
    used |= {f"tuned.{partition}.{base}" for name, base in bases if base != name}
    warn_of_unused(params, "fedflow tune", used | ({"grid.methods"} if method is None else set()), "grid")
    chosen = start(
        params,
        "tune",
        lambda: stage.tune(params, partition, methods=method, root=root, write=write),
        partition=partition,
        methods=method,
        settings=Changes(params),
        root=str(root),
        write=write,
    )
    rows = [
        (name, ", ".join(f"{key} {tried[key]}" for key in values), *_score(tried), "*" * tried["chosen"])
        for name, values in chosen.items()
        for tried in stage.scores(root, partition, name).to_dict("records")
    ]
    measure = params.tuning.measure
    console.print(f"{measure} accuracy on held-out training samples of {partition}, %:")
    print_table("", ("method", "settings", "mean", "std over clients", "chosen"), rows)
    print_line(f"all candidates: {root / 'tuning' / partition}")
    if write:
        print_line(f"the chosen settings are under tuned.{partition} in {root / 'params.yaml'}")


def finished_already(cell: "Cell", folder: Path, makers: "Makers | None" = None) -> bool:
    """Print when this run or procedure ended, if ``folder`` has its results and nothing has changed.

    Its inputs are made first if they are missing: a clone may have results without them.
    """
    from fedflow.stages.grid import is_finished
    from fedflow.stages.inputs import MAKERS, make_inputs, outdated_inputs

    if (folder / "metrics.json").exists() and outdated_inputs(cell.params, cell.root, [cell]):
        make_inputs([cell], makers or MAKERS)
    finished = is_finished(cell, folder)
    if finished:
        print_line(f"{cell.title}: already finished{_ended(cell.root, folder)}; --again repeats it")
    return finished


def _ended(root: Path, folder: Path) -> str:
    """The recorded end of a run, if there is one: " (2026-01-31 12:00)"."""
    from fedflow.finished.reading import read_json
    from fedflow.tracking.lineage import ends, run_key

    with suppress(FedflowError):
        key = run_key(read_json(folder / "metrics.json"))
        if key and (moment := ends(root).get(key)):
            return f" ({datetime.fromtimestamp(moment):%Y-%m-%d %H:%M})"
    return ""


def start(params: "Params", flow: str, inline: Callable[[], T], /, **parameters: Any) -> T:
    """Call ``inline`` if ``engine.executor`` is inline, else this flow on the shared Prefect server."""
    if params.engine.executor == "inline":
        return inline()
    with server_for(params), asking_prefect():
        return load_flow(flow)(**parameters)


def server_for(params: "Params") -> AbstractContextManager[Any]:
    """A context in which the Prefect server is running, if runs with these settings need it."""
    return nullcontext() if params.engine.executor == "inline" else load_flow("server")()


def load_flow(name: str) -> Callable[..., Any]:
    """A flow of this project, run against the shared Prefect server."""
    require("an engine.executor other than inline", "prefect")
    flows = entry_points(group="fedflow.flows", name=name)
    if not flows:
        raise BadInput(
            "engine.executor", "a Prefect executor", "inline, because the flows are not installed here"
        )
    return next(iter(flows)).load()


def _resolved(params: "Params") -> str:
    """Executor, workers and device in words."""
    from fedflow.stages.experiment import pick_device

    engine, device = params.engine, pick_device(params.engine.device)
    if engine.executor == "inline" or (device == "cuda" and engine.executor in ("auto", "threads")):
        return f"this process, {device}"
    executor, workers = "threads" if engine.executor == "auto" else engine.executor, engine.workers
    if device == "cuda" and executor == "dask" and not engine.address:
        import torch

        gpus = torch.cuda.device_count()
        workers = gpus if gpus > 1 else workers  # one each
    return f"{executor}, {counted(workers, 'worker')}, {device}"


def _full_name(change: str, method: str) -> str:
    """The full name of ``method.mu=1``, a setting of this run's method."""
    return f"methods.{method}.{change.removeprefix('method.')}" if change.startswith("method.") else change


def _score(tried: dict[Any, Any]) -> tuple[str, str]:
    """Mean and spread of a candidate in percent, or its loss if there is no accuracy."""
    measured = {name: value for name, value in tried.items() if value == value}
    if "accuracy" in measured:
        return f"{100 * measured['accuracy']:.2f}", f"{100 * measured['spread']:.2f}"
    return (f"loss {measured['loss']:.4g}" if "loss" in measured else "diverged"), ""
