"""The ``fedflow`` command."""

import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedflow.errors import BadInput, FedflowError

app = typer.Typer(
    help="Federated learning under data heterogeneity: run, compare and explain experiments.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
console = Console(markup=False, emoji=False)  # names, reasons and references may hold square brackets

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

partitions_app = typer.Typer(invoke_without_command=True)
app.add_typer(partitions_app, name="partitions")

store_app = typer.Typer()
app.add_typer(store_app, name="store", help="Look after the record: `fedflow store move`.")

UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # of click, or of the copy inside typer

# Nothing is sent to anybody, and the terminal shows progress instead of a line per task.
QUIET = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
}

INTERRUPTED = 130  # the exit code of a process that Ctrl-C ended


def main() -> None:
    """Run the command line; what a user can mend is one line on stderr and exit code 2."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        code = app(sys.argv[1:] or ["--help"], prog_name="fedflow", standalone_mode=False)
    except FedflowError as error:
        _fail(str(error))
    except UsageError as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "fedflow"
        message = error.format_message().rstrip(".")  # type: ignore[attr-defined]
        _fail(f"{message}; see `{command} --help`")
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except OSError as error:  # a full disk or a folder that may not be written, wherever it shows
        _fail(": ".join(str(part) for part in (error.filename, error.strerror or error) if part))
    if code == INTERRUPTED:
        _fail("stopped; the same command goes on from the last checkpoint", code)
    if code:
        sys.exit(code)


def _fail(message: str, code: int = 2) -> NoReturn:
    stderr = Console(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False)
    stderr.print(f"fedflow: {' '.join(message.split())}")
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
    out: Annotated[str | None, typer.Option(help="Folder of the result files.")] = None,
    sweep: Annotated[str | None, typer.Option(help="MLflow parent run to list this run under.")] = None,
    root: Root = Path(),
) -> None:
    """Run one experiment: `fedflow run --partition mnist5k-dir --method ifca --set method.clusters=4`.

    A run that was cut off goes on from its last checkpoint when the same command is given again.
    """
    from fedflow.arguments import check_arguments
    from fedflow.config import load_params
    from fedflow.experiment import Experiment

    changes = [_full_name(change, method) for change in settings or []]
    changes += [f"engine.executor={executor}"] if executor is not None else []
    changes += [f"engine.workers={workers}"] if workers is not None else []
    check_arguments(out=out, sweep=sweep)
    params = load_params(root / "params.yaml", changes)
    experiment = Experiment(params, partition, method, seed, root, sweep)
    experiment.check()
    with _federating(params.engine.executor) as federate:
        metrics = federate(
            partition, method, seed, settings=changes, root=str(root), out=out, sweep=sweep
        )  # fmt: skip
    _print_metrics(metrics, Path(out) if out else experiment.results_folder)


@app.command()
def sweep(
    settings: Set = None,
    name: Annotated[str, typer.Option(help="Name of the MLflow parent run.")] = "sweep",
    root: Root = Path(),
) -> None:
    """Run the whole grid of params.yaml with one Prefect flow (what `dvc repro` does cell by cell).

    For example `fedflow sweep --set grid.seeds=[0,1,2] --name three-seeds`.
    """
    from fedflow.arguments import check_arguments
    from fedflow.config import load_params
    from fedflow.experiment import Experiment

    check_arguments(name=name)
    params = load_params(root / "params.yaml", settings or [])
    cells = list(product(params.grid.partitions, params.grid.methods, params.grid.seeds))
    for cell in cells:
        Experiment(params, *cell, root=root, sweep=name).check()
    if params.engine.executor == "inline":
        from fedflow.inline import federate

        for cell in cells:
            federate(*cell, settings=settings, root=str(root), sweep=name)
    else:
        with _flow("server")():
            _flow("sweep")(settings=settings, root=str(root), name=name)
    console.print(f"{len(cells)} runs; `fedflow report` sets them side by side")


@app.command()
def tune(
    partition: Annotated[str, typer.Option(help="A name under `partitions` in params.yaml.")],
    method: Annotated[
        list[str] | None, typer.Option(help="A registered method. Repeatable; default: those of the grid.")
    ] = None,
    settings: Set = None,
    write: Annotated[bool, typer.Option(help="Put what is chosen under `tuned` in params.yaml.")] = True,
    root: Root = Path(),
) -> None:
    """Choose each method's learning rate (or what `tuning` lists) on held-out training data.

    For example `fedflow tune --partition mnist5k-dir --method fedavg --method ditto`. Every method gets the
    same small grid and the same rule; test data play no part. `fedflow run` then uses what was chosen.
    """
    from fedflow.config import load_params
    from fedflow.tuning import scores

    params = load_params(root / "params.yaml", settings or [])
    params.partition(partition)
    for name in method or []:
        params.method(name)
    if params.engine.executor == "inline":
        from fedflow.inline import federate
        from fedflow.tuning import tune

        names = method or params.grid.methods
        chosen = tune(params, partition, federate, names, settings or [], root, write)
    else:
        with _flow("server")():
            chosen = _flow("tune")(partition, method, settings=settings, root=str(root), write=write)
    rows = [
        (name, ", ".join(f"{key} {tried[key]}" for key in values), *_score(tried), "*" * tried["chosen"])
        for name, values in chosen.items()
        for tried in scores(root, partition, name).to_dict("records")
    ]
    measure = params.tuning.measure
    console.print(f"{measure} accuracy on training samples of {partition} that clients held out, %:")
    _print_table("", ("method", "settings", "mean", "std over clients", "chosen"), rows)


@app.command()
def prepare(dataset: str, settings: Set = None, root: Root = Path()) -> None:
    """Turn a named source into prepared images: data/prepared/DATASET.

    For example `fedflow prepare mnist5k`; names are those under `data` in params.yaml.
    """
    from fedflow.config import load_params
    from fedflow.experiment import prepare_dataset

    console.print(
        prepare_dataset(load_params(root / "params.yaml", settings or []), dataset, root),
        highlight=False,
        soft_wrap=True,
    )


@app.command()
def partition(name: str, settings: Set = None, root: Root = Path()) -> None:
    """Divide a prepared dataset over clients: data/partitions/NAME, with a picture of the labels.

    For example `fedflow partition mnist5k-dir`; names are those under `partitions` in params.yaml.
    """
    from fedflow.config import load_params
    from fedflow.experiment import prepare_partition

    console.print(
        prepare_partition(load_params(root / "params.yaml", settings or []), name, root),
        highlight=False,
        soft_wrap=True,
    )


@app.command()
def fingerprint(
    what: Annotated[Literal["files", "inputs"], typer.Argument(help="Files of data, or inputs of runs.")],
    root: Root = Path(),
) -> None:
    """Write what the stages of dvc.yaml depend on to data/fingerprints: DVC then reruns what changed.

    `dvc repro` calls `fedflow fingerprint files` (the files that data sets are read from, and code) every
    time, and `fedflow fingerprint inputs` (what partitions and runs depend on) when any of it changed.
    """
    from fedflow.config import load_params
    from fedflow.fingerprints import fingerprint_files, fingerprint_inputs

    write = fingerprint_files if what == "files" else fingerprint_inputs
    write(load_params(root / "params.yaml"), root)


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="Explain this method.")] = None,
    markdown: Annotated[
        bool, typer.Option(help="Print the whole catalogue in Markdown (docs/methods.md).")
    ] = False,
) -> None:
    """List the methods, or explain one: idea, source, equations, hyper-parameters, traffic.

    For example `fedflow methods ifca`.
    """
    from fedflow.errors import unknown_name
    from fedflow.methods import METHODS
    from fedflow.methods.catalogue import catalogue, describe

    if markdown:
        print(catalogue(), end="")
        return
    if name is None:
        _print_table(
            "methods",
            ("name", "method", "serves", "idea"),
            [describe(METHODS[m]).row() for m in sorted(METHODS)],
        )
        return
    if name not in METHODS:
        raise unknown_name("method.name", name, METHODS)
    page = describe(METHODS[name])
    console.print(Text.assemble((page.label, "bold"), f"  ({name})\n"))
    _print_text(page.text)
    _print_options(page.options)
    console.print(
        f"Traffic per participant and round on LeNet-5 for CIFAR-10 (P = 62,006): "
        f"{page.down:,} bytes down, {page.up:,} bytes up",
        highlight=False,
    )
    if page.published:
        console.print(f"Published results: {'; '.join(page.published)}", highlight=False)


@app.command()
def schemes(
    name: Annotated[str | None, typer.Argument(help="Explain this scheme.")] = None,
    markdown: Annotated[
        bool, typer.Option(help="Print the whole catalogue in Markdown (docs/partitions.md).")
    ] = False,
    pictures: Annotated[
        Path | None, typer.Option(help="Draw the catalogue's pictures into this folder.")
    ] = None,
) -> None:
    """List the partition schemes, or explain one: order of sampling, source, parameters.

    For example `fedflow schemes dirichlet`.
    """
    from fedflow.errors import unknown_name
    from fedflow.partition import SCHEMES
    from fedflow.partition.catalogue import catalogue, describe

    if markdown:
        print(catalogue(), end="")
    if pictures is not None:
        from fedflow.pictures.labels import draw_schemes

        draw_schemes(pictures)
    if markdown or pictures is not None:
        return
    if name is None:
        rows = [(n, describe(scheme).idea) for n, scheme in sorted(SCHEMES.items())]
        _print_table("partition schemes", ("name", "what it does"), rows)
        return
    if name not in SCHEMES:
        raise unknown_name("partition.scheme", name, SCHEMES)
    page = describe(SCHEMES[name])
    _print_text(page.text)
    _print_options(page.options)
    console.print(f"In params.yaml, under partitions:  mine: {page.pictures[name]}", highlight=False)


@partitions_app.callback()
def partitions(context: typer.Context, root: Root = Path()) -> None:
    """List the partitions of params.yaml, or compare some: `fedflow partitions compare A B`."""
    from fedflow.config import load_params

    if context.invoked_subcommand is not None:
        return
    params = load_params(root / "params.yaml")
    rows = []
    for name in params.partitions:
        entry = params.partition(name)
        given = {field: str(value) for field, value in entry.parameters.items()}
        own = ", ".join(f"{k} {v if len(v) <= 60 else f'{v[:57]}...'}" for k, v in given.items())
        made = (root / "data" / "partitions" / name / "summary.json").is_file()
        rows.append(
            (name, entry.dataset, entry.scheme, str(entry.clients or "all"), "yes" if made else "", own)
        )
    _print_table("partitions", ("name", "dataset", "scheme", "clients", "made", "parameters"), rows)


@partitions_app.command()
def compare(
    names: Annotated[list[str], typer.Argument(help="Names under `partitions` in params.yaml.")],
    out: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("heterogeneity.png"),
    settings: Set = None,
    root: Root = Path(),
) -> None:
    """Measure how heterogeneous partitions are, by every distance between clients, side by side.

    For example `fedflow partitions compare mnist5k-dir mnist5k-groups`.
    """
    from fedflow.config import load_params
    from fedflow.data import load_prepared
    from fedflow.experiment import prepare_dataset, prepare_partition
    from fedflow.heterogeneity.measures import MEASURES
    from fedflow.partition import load_partition
    from fedflow.partition.compare import compare, table
    from fedflow.pictures.comparison import draw_comparisons

    params = load_params(root / "params.yaml", settings or [])
    entries = {name: params.partition(name) for name in names}  # all names first: nothing is made in vain
    comparisons = []
    for name, entry in entries.items():
        with console.status(Text(f"{name}: comparing clients ...")):
            dataset = load_prepared(prepare_dataset(params, entry.dataset, root))
            partition = load_partition(prepare_partition(params, name, root))
            comparisons.append(compare(partition, dataset, name=name))
    measured = table(comparisons)
    rows = [
        (MEASURES[m].title if m in MEASURES else m.replace("_", " "), *(f"{v:.4g}" for v in measured[m]))
        for m in measured.columns
    ]
    _print_table("how clients differ: mean over pairs of clients", ("measure", *names), rows)
    picture = root / out
    draw_comparisons(comparisons, picture)
    console.print(f"picture: {picture}", highlight=False, soft_wrap=True)


@app.command()
def datasets() -> None:
    """List the named data sources, and where their images would come from.

    For example `FEDFLOW_DATA=/data fedflow datasets` also looks into that folder.
    """
    from fedflow.data import SOURCES, data_root

    root = data_root()
    rows = [
        (s.name, s.title, s.where(root) or ("download" if s.needs_network else "missing"), s.about)
        for s in SOURCES.values()
    ]
    _print_table(f"data sources (data root: {root})", ("name", "dataset", "images", "description"), rows)


@app.command()
def models() -> None:
    """List the network architectures, for `models` in params.yaml.

    For example `fedflow models`, then `fedflow run ... --set models.mnist5k=cnn_mnist`.
    """
    from fedflow.models import describe

    rows = [tuple(str(value) for value in row.values()) for row in describe()]
    _print_table("architectures", tuple(describe()[0]), rows)


@app.command()
def report(root: Root = Path()) -> None:
    """Write the report over all results: report/index.html and CSV tables.

    For example `fedflow report`, after `dvc repro` or some `fedflow run`.
    """
    from fedflow.report import build_report

    page = build_report(root / "results", root / "data" / "partitions", root / "report")
    console.print(page, highlight=False, soft_wrap=True)


@app.command()
def ui(
    port: Annotated[int, typer.Option(help="Port on localhost.")] = 5000,
    root: Root = Path(),
) -> None:
    """Open the record of all runs in the MLflow UI, on localhost.

    For example `fedflow ui --port 5001`.
    """
    from fedflow.tracking import ui_command

    command = ui_command(root, port)
    console.print(f"MLflow UI: http://127.0.0.1:{port}  (Ctrl-C stops it)", highlight=False)
    sys.stdout.flush()
    os.execv(command[0], command)  # so that signals reach MLflow, which ends its own processes


@store_app.command()
def move(root: Root = Path()) -> None:
    """Let the record of a moved or copied project use the artifacts beside it, not those of the old place.

    For example `fedflow store move --root copy`, after `mv` or `cp -r`.
    """
    from fedflow.tracking import move_store

    changed, folder = move_store(root)
    console.print(f"{changed} addresses changed; artifacts: {folder}", highlight=False, soft_wrap=True)


@app.command()
def doctor(root: Root = Path()) -> None:
    """Check versions, devices, data, params.yaml, store and server; says how to mend what is wrong.

    For example `fedflow doctor`; the exit code is 2 when something is bad.
    """
    from fedflow.doctor import examine

    findings = examine(root)
    colours = {"ok": "green", "note": "yellow", "bad": "red"}
    table = Table(show_header=False, box=None, pad_edge=False)
    for finding in findings:
        table.add_row(Text(finding.status, colours[finding.status]), finding.what, finding.detail)
    console.print(table)
    if any(finding.status == "bad" for finding in findings):
        raise typer.Exit(2)


def _full_name(change: str, method: str) -> str:
    """``method.mu=1`` means this run's method; other names are as in params.yaml."""
    return f"methods.{method}.{change.removeprefix('method.')}" if change.startswith("method.") else change


@contextmanager
def _federating(executor: str) -> Iterator[Callable[..., dict[str, Any]]]:
    """What runs one experiment: the flow on the shared Prefect server, or a plain call."""
    if executor == "inline":
        from fedflow.inline import federate

        yield federate
    else:
        with _flow("server")():
            yield _flow("federate")


def _flow(name: str) -> Callable[..., Any]:
    """A flow of this project, run against the shared Prefect server."""
    found = entry_points(group="fedflow.flows", name=name)
    if not found:
        raise BadInput(
            "engine.executor", "a Prefect executor", "inline, because the flows are not installed here"
        )
    return next(iter(found)).load()


def _score(tried: dict[Any, Any]) -> tuple[str, str]:
    """Mean and spread of a candidate of tuning in per cent; the loss where there is no accuracy."""
    known = {name: value for name, value in tried.items() if value == value}
    if "accuracy" in known:
        return f"{100 * known['accuracy']:.2f}", f"{100 * known['spread']:.2f}"
    return (f"loss {known['loss']:.4g}" if "loss" in known else "diverged"), ""


def _print_metrics(metrics: dict[str, Any], folder: Path) -> None:
    from fedflow.metrics.table import headlines

    parts = [f"{name} {metrics[name]:.4g}" for name in headlines(metrics) if metrics[name] is not None]
    console.print(", ".join(parts), highlight=False, soft_wrap=True)
    console.print(f"results: {folder}", highlight=False, soft_wrap=True)


def _print_table(title: str, columns: tuple[str, ...], rows: list[tuple]) -> None:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, no_wrap=i == 0, style="bold" if i == 0 else "")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _print_text(text: str) -> None:
    """Print the text of a module, its paragraphs wrapped to the terminal; examples stay as they are."""
    for paragraph in text.split("\n\n"):
        if not paragraph.startswith(">>>"):
            items = re.split(r"\n(?=\*|[A-Z][\w ]{2,20}: )", paragraph)
            paragraph = "\n".join(textwrap.fill(" ".join(i.split()), console.width) for i in items)
        console.print(paragraph, highlight=False, soft_wrap=True)
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


def _doc(cls: type) -> str:
    return (sys.modules[cls.__module__].__doc__ or "").strip()


if __name__ == "__main__":
    main()
