"""The ``fedflow`` command."""

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from fedflow.errors import BadInput, FedflowError

app = typer.Typer(
    help="Federated learning under data heterogeneity: run, compare and explain experiments.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
console = Console()

Root = Annotated[
    Path, typer.Option(help="The project's folder: params.yaml, data, results and mlruns lie there.")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        help="Change one field: `method.mu=0.1`, `training.lr=0.01`, `run.rounds=5`. Repeatable.",
    ),
]


# Nothing is sent to anybody, and the terminal shows progress instead of a line per task.
QUIET = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "WARNING",
}


def main() -> None:
    """Run the command line; what a user can mend is one line on stderr and exit code 2."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        app()
    except FedflowError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        _fail("stopped; the same command goes on from the last checkpoint", code=130)


def _fail(message: str, code: int = 2) -> NoReturn:
    Console(stderr=True, soft_wrap=True, highlight=False).print(
        f"fedflow: {' '.join(message.split())}", markup=False
    )
    sys.exit(code)


@app.command()
def run(
    partition: Annotated[str, typer.Option(help="A name under `partitions` in params.yaml.")],
    method: Annotated[str, typer.Option(help="A registered method; see `fedflow methods`.")],
    seed: Annotated[int, typer.Option(help="Experiment seed.", min=0)] = 0,
    settings: Set = None,
    executor: Annotated[
        str | None,
        typer.Option(help="inline (no server), threads, processes, dask or ray; default from params.yaml."),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Shards per round; default from params.yaml.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the result files.")] = None,
    sweep: Annotated[str | None, typer.Option(help="MLflow parent run to list this run under.")] = None,
    root: Root = Path(),
) -> None:
    """Run one experiment: `fedflow run --partition mnist5k-dir --method ifca --set method.clusters=4`.

    A run that was cut off goes on from its last checkpoint when the same command is given again.
    """
    from fedflow.config import load_params
    from fedflow.experiment import Experiment, perform, prepare_dataset, prepare_partition
    from fedflow.simulation.executors import Inline
    from fedflow.terminal import RoundBar

    changes = [_full_name(change, method) for change in settings or []]
    changes += [f"engine.executor={executor}"] if executor else []
    changes += [f"engine.workers={workers}"] if workers is not None else []
    params = load_params(root / "params.yaml", changes)
    experiment = Experiment(params, partition, method, seed, root, sweep)
    experiment.check()
    if params.engine.executor == "inline":
        prepare_dataset(params, experiment.dataset, root)
        prepare_partition(params, partition, root)
        with RoundBar(experiment.title) as bar:
            metrics = perform(experiment, Inline(), [bar.round], out)
    else:
        with _flow("server")():
            metrics = _flow("federate")(
                partition, method, seed, settings=changes, root=str(root), out=str(out) if out else None, sweep=sweep
            )  # fmt: skip
    _print_metrics(metrics, out or experiment.results_folder)


@app.command()
def sweep(
    settings: Set = None,
    name: Annotated[str, typer.Option(help="Name of the MLflow parent run.")] = "sweep",
    root: Root = Path(),
) -> None:
    """Run the whole grid of params.yaml with one Prefect flow (what `dvc repro` does cell by cell)."""
    with _flow("server")():
        results = _flow("sweep")(settings=settings, root=str(root), name=name)
    console.print(f"{len(results)} runs; `fedflow report` sets them side by side")


@app.command()
def prepare(dataset: str, settings: Set = None, root: Root = Path()) -> None:
    """Turn a named source into prepared images: data/prepared/DATASET."""
    from fedflow.config import load_params
    from fedflow.experiment import prepare_dataset

    console.print(
        prepare_dataset(load_params(root / "params.yaml", settings or []), dataset, root), highlight=False
    )


@app.command()
def partition(name: str, settings: Set = None, root: Root = Path()) -> None:
    """Divide a prepared dataset over clients: data/partitions/NAME, with a picture of labels by client."""
    from fedflow.config import load_params
    from fedflow.experiment import prepare_partition

    console.print(
        prepare_partition(load_params(root / "params.yaml", settings or []), name, root), highlight=False
    )


@app.command()
def methods(name: Annotated[str | None, typer.Argument(help="Explain this method.")] = None) -> None:
    """List the methods, or explain one: idea, source, equations, hyper-parameters, traffic."""
    from fedflow.errors import unknown_name
    from fedflow.methods import METHODS
    from fedflow.methods.catalogue import describe

    if name is None:
        _print_table(
            "methods", ("name", "method", "serves", "idea"), [describe(m).row() for m in METHODS.values()]
        )
        return
    if name not in METHODS:
        raise unknown_name("method.name", name, METHODS)
    page = describe(METHODS[name])
    console.print(f"[bold]{page.label}[/bold]  ({name})\n")
    console.print(page.text, markup=False, highlight=False)
    console.print()
    _print_options(page.options)
    console.print(
        f"Traffic per participant and round on LeNet-5 for CIFAR-10 (P = 62,006): "
        f"{page.down:,} bytes down, {page.up:,} bytes up",
        highlight=False,
    )


@app.command()
def partitions(name: Annotated[str | None, typer.Argument(help="Explain this scheme.")] = None) -> None:
    """List the partition schemes, or explain one."""
    from fedflow.errors import unknown_name
    from fedflow.partition import SCHEMES
    from fedflow.settings import explain

    if name is None:
        rows = [(n, _first_line(s)) for n, s in sorted(SCHEMES.items())]
        _print_table("partition schemes", ("name", "what it does"), rows)
        return
    if name not in SCHEMES:
        raise unknown_name("partition.scheme", name, SCHEMES)
    _print_doc(SCHEMES[name])
    _print_options(explain(SCHEMES[name]))


@app.command()
def datasets() -> None:
    """List the named data sources, and which of them are here."""
    from fedflow.data import SOURCES, data_root

    root = data_root()
    rows = [(s.name, s.title, s.where(root) or "-", s.about) for s in SOURCES.values()]
    _print_table(f"data sources (data root: {root})", ("name", "dataset", "here", "description"), rows)


@app.command()
def models() -> None:
    """List the network architectures."""
    from fedflow.models import describe

    rows = [tuple(str(value) for value in row.values()) for row in describe()]
    _print_table("architectures", tuple(describe()[0]), rows)


@app.command()
def report(root: Root = Path()) -> None:
    """Write the report over all results: report/index.html and CSV tables."""
    from fedflow.report import build_report

    page = build_report(root / "results", root / "data" / "partitions", root / "report")
    console.print(page, highlight=False)


@app.command()
def ui(
    port: Annotated[int, typer.Option(help="Port on localhost.")] = 5000,
    root: Root = Path(),
) -> None:
    """Open the record of all runs in the MLflow UI, on localhost."""
    from fedflow.tracking import ui_command

    console.print(f"MLflow UI: http://127.0.0.1:{port}  (Ctrl-C stops it)", highlight=False)
    raise typer.Exit(subprocess.call(ui_command(root, port)))


@app.command()
def doctor(root: Root = Path()) -> None:
    """Check versions, devices, data root, params.yaml, store and server; says how to mend what is wrong."""
    from fedflow.doctor import examine

    findings = examine(root)
    signs = {"ok": "[green]ok[/green]", "note": "[yellow]note[/yellow]", "bad": "[red]bad[/red]"}
    table = Table(show_header=False, box=None, pad_edge=False)
    for finding in findings:
        table.add_row(signs[finding.status], finding.what, finding.detail)
    console.print(table)
    if any(finding.status == "bad" for finding in findings):
        raise typer.Exit(2)


def _full_name(change: str, method: str) -> str:
    """``method.mu=1`` means this run's method; other names are as in params.yaml."""
    return f"methods.{method}.{change.removeprefix('method.')}" if change.startswith("method.") else change


def _flow(name: str) -> Callable[..., Any]:
    """A flow of this project, run against the shared Prefect server."""
    found = entry_points(group="fedflow.flows", name=name)
    if not found:
        raise BadInput(
            "engine.executor", "a Prefect executor", "inline, because the flows are not installed here"
        )
    return next(iter(found)).load()


def _print_metrics(metrics: dict[str, Any], folder: Path) -> None:
    shown = (
        "local_accuracy",
        "global_accuracy",
        "tuned_accuracy",
        "local_worst10",
        "clusters",
        "ari",
        "rounds_to_target",
    )
    parts = [f"{n} {metrics[n]:.4g}" for n in shown if metrics.get(n) is not None]
    console.print(", ".join(parts), highlight=False)
    console.print(f"results: {folder}", highlight=False)


def _print_table(title: str, columns: tuple[str, ...], rows: list[tuple]) -> None:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, no_wrap=i == 0, style="bold" if i == 0 else "")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _print_doc(cls: type) -> None:
    module = sys.modules[cls.__module__]
    console.print((module.__doc__ or cls.__doc__ or "").strip(), markup=False, highlight=False)
    console.print()


def _print_options(options: list[dict[str, Any]]) -> None:
    rows = [
        (
            o["name"],
            o["symbol"],
            str(o["default"]),
            o["accepts"],
            o["doc"] + (f" [{o['source']}]" if o["source"] else ""),
        )
        for o in options
    ]
    _print_table("parameters", ("name", "symbol", "default", "accepts", "meaning"), rows)


def _first_line(cls: type) -> str:
    return ((sys.modules[cls.__module__].__doc__ or cls.__doc__ or "").strip().splitlines() or [""])[0]


if __name__ == "__main__":
    main()
