"""The whole pipeline, from raw images to the report: what scheduled deployments run."""

from pathlib import Path

from prefect import flow

from fedflow.config import Changes, load_params
from fedflow.project.arguments import check_arguments
from flows.central import central
from flows.sweep import sweep
from tasks.inputs import make_partition, prepare_data
from tasks.mistakes import checking
from tasks.report import make_report

NAME = "pipeline"  # of the MLflow parent runs


@flow(name="pipeline", log_prints=True, validate_parameters=False)
def pipeline(settings: list[str] | None = None, root: str = ".") -> str:
    """Prepare data, central networks and partitions, run the grid, write the report; returns its path."""
    with checking():
        check_arguments(settings=settings, root=root)
        params = load_params(Path(root) / "params.yaml", settings or [])
        datasets = sorted({params.partition(name).dataset for name in params.grid.partitions})
    for dataset in datasets:
        prepare_data(params, dataset, Path(root))
    experts = [name for name in map(params.expert, params.grid.partitions) if name is not None]
    for name in dict.fromkeys([*params.grid.central, *experts]):
        central(name, Changes(params), root)
    for name in params.grid.partitions:
        make_partition(params, name, Path(root))
    sweep(settings=Changes(params), root=root, name=NAME)
    return str(make_report(Path(root), NAME))
