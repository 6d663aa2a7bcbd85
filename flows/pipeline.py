"""The whole pipeline, from raw images to the report: what scheduled deployments run."""

from pathlib import Path

from prefect import flow

from fedflow.config import Changes
from fedflow.stages.grid import cells
from flows.sweep import sweep
from tasks.mistakes import checked, checking
from tasks.report import make_report

NAME = "pipeline"  # of the MLflow parent runs


@flow(name="pipeline", log_prints=True, validate_parameters=False)
def pipeline(settings: list[str] | None = None, root: str = ".") -> str:
    """Run all unfinished cells of the grid, with their inputs, and write the report; returns its path.

    Without ``settings``, the report leaves out runs outside the grid, as in `dvc repro`.
    """
    with checking():
        params = checked(settings, root)
        cells(params, Path(root), NAME)
    sweep(settings=Changes(params), root=root, name=NAME)
    return str(make_report(Path(root), NAME, grid=not settings))
