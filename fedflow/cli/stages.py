"""Commands for single stages, from ``prepare`` to ``report``."""

import warnings
from pathlib import Path
from typing import Annotated, Literal

import typer

from fedflow.cli.options import Again, Executor, Root, Set, Sweep, Workers, load, load_engine
from fedflow.cli.printing import print_line, print_numbers, print_table
from fedflow.cli.startup import importing
from fedflow.cli.unused import entries, network_entries, warn_of_unused
from fedflow.errors import BadInput, called, unknown_name
from fedflow.naming import counted

OF_RUNS = ("run", "training", "tuning")  # sections that only runs read


def prepare(
    dataset: Annotated[str, typer.Argument(help="A name under `data` in params.yaml.")],
    settings: Set = None,
    root: Root = Path(),
) -> None:
    """Prepare the samples of a dataset: data/prepared/DATASET. Prints their numbers and notes on the files.

    Example: `fedflow prepare mnist5k`.
    """
    with importing():
        from fedflow.data import load_prepared
        from fedflow.stages.prepare import prepare_dataset

    params = load(root, settings)
    warn_of_unused(params, dataset, [f"data.{dataset}"], *OF_RUNS, "engine", "grid")
    folder = prepare_dataset(params, dataset, root, tell=lambda note: None)
    print_line(folder)
    data = load_prepared(folder)
    print_line(f"{counted(len(data.y_train), 'training sample')}, {counted(len(data.y_test), 'test sample')}")
    for note in data.notes:
        print_line(note)


def central(
    name: Annotated[str, typer.Argument(help="A name under `central` in params.yaml.")],
    settings: Set = None,
    root: Root = Path(),
) -> None:
    """Train one network on a whole dataset: data/central/NAME, for teachers, experts and references.

    Example: `fedflow central mnist5k-expert`. Rerun it to resume interrupted training.
    """
    from fedflow.cli.experiments import start

    with importing():
        from fedflow.config import Changes
        from fedflow.files import central_folder
        from fedflow.stages.central_network import prepare_network, results

    params = load(root, settings)
    params.network(name)
    warn_of_unused(params, name, network_entries(params, [name]), *OF_RUNS, "grid")
    start(
        params,
        "central",
        lambda: prepare_network(params, name, root),
        name=name,
        settings=Changes(params),
        root=str(root),
    )
    print_numbers(results(root, name), central_folder(root, name))


def procedure(
    name: Annotated[
        str,
        typer.Argument(
            help="A name under `procedures` in params.yaml, or a registered procedure (`fedflow procedures`)."
        ),
    ],
    seed: Annotated[int, typer.Option(help="Seed of the run.", min=0)] = 0,
    settings: Set = None,
    executor: Executor = None,
    workers: Workers = None,
    out: Annotated[
        str | None, typer.Option(help="Folder of the outcome; default: below outcomes or runs.")
    ] = None,
    sweep: Sweep = None,
    again: Again = False,
    root: Root = Path(),
) -> None:
    """Run one procedure, an experiment without federated rounds.

    Results are in outcomes/NAME/SEED, or in runs/NAME/SEED outside the grid.

    Example: `fedflow procedure coreset --set procedures.coreset.kappa=0.2`. Rerun the command to resume an
    interrupted procedure. For a finished one, it prints the numbers.
    """
    from fedflow.cli.experiments import finished_already, start

    with importing():
        from fedflow.project.arguments import check_arguments
        from fedflow.stages.procedure import ProcedureRun, read_summary, run_procedure

    check_arguments(sweep=sweep, root=root, out=out)
    params = load_engine(root, settings, executor, workers)
    run = ProcedureRun(params, name, seed, root, sweep, out)
    params.procedure(name)
    warn_of_unused(params, run.title, entries(params, [run]), *OF_RUNS, "grid")
    if again or not finished_already(run, run.folder):
        start(params, "procedure", lambda: run_procedure(run), **run.parameters)
    columns, rows = read_summary(run)
    table = [("", *columns), *rows]
    head, *lines = zip(*table, strict=True) if len(columns) > len(rows) else table  # the longer side down
    print_table("", head, lines)
    print_line(f"results: {run.folder}")


def partition(
    name: Annotated[str, typer.Argument(help="A name under `partitions` in params.yaml.")],
    settings: Set = None,
    root: Root = Path(),
) -> None:
    """Divide a dataset among clients: data/partitions/NAME, with a picture of the labels.

    Example: `fedflow partition mnist5k-dir`. The data are prepared first, and an expert that the scheme
    needs is trained. With `grid.redraw`, every seed of the grid gets a division; `mnist5k-dir@7` is the
    one with seed 7.
    """
    with importing():
        from fedflow.stages.partition import prepare_partition
        from fedflow.stages.prepare import prepare_dataset

    params = load(root, settings)
    expert, dataset = params.expert(name), params.partition(name).dataset
    used = network_entries(params, [expert] if expert else [])
    used |= {f"data.{dataset}", f"partitions.{name.partition('@')[0]}"}
    warn_of_unused(params, name, used, *OF_RUNS, *([] if expert else ["engine"]))
    prepare_dataset(params, dataset, root)
    if expert is not None:
        from fedflow.stages.central_network import prepare_network

        prepare_network(params, expert, root)
    for division in [name] if "@" in name else params.divisions(name):
        print_line(prepare_partition(params, division, root))


def fingerprint(root: Root = Path()) -> None:
    """Write the dependencies of the stages of dvc.yaml to data/fingerprints, for DVC.

    Example: `fedflow fingerprint`. `dvc repro` always calls it: it records settings, code, libraries, and
    the SHA-256 of the data files.
    """
    with importing():
        from fedflow.config import check_dvc
        from fedflow.stages.fingerprints import write_fingerprints

    params = load(root)
    check_dvc(root)
    write_fingerprints(params, root)


def report(
    latex: Annotated[
        bool, typer.Option("--latex", help="Also write paper/: tables in LaTeX and the methods' references.")
    ] = False,
    figures: Annotated[
        Literal["pdf", "svg", "png"] | None,
        typer.Option(help="Also write figures in this format; implies --latex."),
    ] = None,
    verdicts: Annotated[
        bool, typer.Option("--verdicts", help="Also update verdicts.yaml, claims.csv and results.csv.")
    ] = False,
    grid: Annotated[
        bool, typer.Option("--grid", help="Leave out runs outside the grid, which are in runs.")
    ] = False,
    sweep: Annotated[
        str | None, typer.Option(help="Also attach the page to the MLflow parent runs of this name.")
    ] = None,
    root: Root = Path(),
) -> None:
    """Write a report on all results: report/index.html and CSV tables.

    Example: `fedflow report`, after `dvc repro` or some `fedflow run`. For a paper:
    `fedflow report --latex --figures pdf`.
    """
    if grid and verdicts:
        raise BadInput("--grid", "with --verdicts", "one of them: verdicts are on all runs")
    with importing():
        from fedflow.stages.report import has_results, record_verdicts, write_for_paper, write_report

    if not verdicts or has_results(root):
        print_line(write_report(root, sweep, grid))
    for file in record_verdicts(root) if verdicts else ():
        print_line(file)
    for file in write_for_paper(root, figures, grid) if latex or figures else ():
        print_line(file)


def cite(
    methods: Annotated[
        list[str] | None, typer.Argument(help="Names of methods; default: all methods with finished runs.")
    ] = None,
    root: Root = Path(),
) -> None:
    """Print the BibTeX entries of methods, from the sources on their pages.

    Example: `fedflow cite ditto ifca > methods.bib`.
    """
    from fedflow.cli.finished import finished
    from fedflow.cli.remembered import remembered
    from fedflow.report.citing import bibtex, cited

    sources = remembered("cite", cited)
    wanted = methods or [run.params["method"]["name"] for run in finished(root, [])]
    labels = {name: label for name, (label, _) in sources.items()}
    wanted = [called(name, labels) for name in wanted]
    for name in [name for name in dict.fromkeys(wanted) if name not in sources]:
        if methods:
            raise unknown_name("method.name", name, sources, "fedflow methods")
        warnings.warn(f"{name} is left out: its plug-in is not installed", stacklevel=2)
    print(bibtex([name for name in dict.fromkeys(wanted) if name in sources], sources), end="")
