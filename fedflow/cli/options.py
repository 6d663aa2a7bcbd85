"""Options that several commands share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedflow.errors import BadInput

if TYPE_CHECKING:
    from fedflow.config import Loaded

Root = Annotated[Path, typer.Option(help="The project's folder, with params.yaml, data, results and mlruns.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        help="Change a field of params.yaml: `run.rounds=5`, `methods.ditto.lam=2`. Repeatable.",
    ),
]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print the whole catalogue in Markdown.")]
Sweep = Annotated[str | None, typer.Option(help="MLflow parent run that groups this run.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Executor = Annotated[
    str | None,
    typer.Option(help="auto, inline (no server), threads, processes, dask or ray; default from params.yaml."),
]
Workers = Annotated[
    int | None, typer.Option(help="Workers that share the clients of a round; default from params.yaml.")
]

Again = Annotated[bool, typer.Option("--again", help="Run again, even if finished and unchanged.")]


def load(root: Path, changes: list[str] | None = None) -> "Loaded":
    """The parameters of a project."""
    from fedflow.config import load_params

    return load_params(root / "params.yaml", changes or [])


def load_engine(root: Path, changes: list[str] | None, executor: str | None, workers: int | None) -> "Loaded":
    """The parameters of a project, with these two options. Raises `BadInput` for workers of `inline`."""
    given = {"executor": executor, "workers": workers}
    options = [f"engine.{name}={value}" for name, value in given.items() if value is not None]
    params = load(root, [*(changes or []), *options])
    if (workers or 1) > 1 and params.engine.executor == "inline":
        accepted = "1 with executor inline, a plain loop in this process; --executor chooses another"
        raise BadInput("--workers", workers, accepted)
    return params
