"""The task that writes the report."""

from pathlib import Path

from prefect import task
from prefect.artifacts import create_link_artifact
from prefect.cache_policies import NO_CACHE

from fedflow.stages.report import write_report


@task(name="report", cache_policy=NO_CACHE)
def make_report(root: Path, sweep: str | None = None, grid: bool = False) -> Path:
    """Write the report on all results, or on the grid alone; returns the path of its page.

    It is also attached to the MLflow parent runs of ``sweep``.
    """
    page = write_report(root, sweep, grid)
    create_link_artifact(
        link=page.resolve().as_uri(),
        link_text="report",
        key="report",
        description="Report on all results, a file",
    )
    return page
