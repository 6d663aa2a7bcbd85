"""Many federated runs: every partition x method x seed, one after another, each on all workers."""

from pathlib import Path
from typing import Any

from prefect import flow

from fedflow.arguments import check_arguments
from fedflow.config import load_params
from fedflow.experiment import experiments
from flows.federate import federate
from tasks.progress import comparison


@flow(name="sweep", log_prints=True, validate_parameters=False)
def sweep(
    partitions: list[str] | None = None,
    methods: list[str] | None = None,
    seeds: list[int] | None = None,
    settings: list[str] | None = None,
    root: str = ".",
    name: str = "sweep",
) -> list[dict[str, Any]]:
    """Run a grid (default: params.yaml's), each partition under one MLflow parent; returns all metrics."""
    check_arguments(
        partitions=partitions, methods=methods, seeds=seeds, settings=settings, root=root, name=name
    )
    params = load_params(Path(root) / "params.yaml", settings or [])
    cells = experiments(params, Path(root), name, partitions, methods, seeds)
    results = [federate(**cell.parameters) for cell in cells]
    comparison(name, results)
    return results
