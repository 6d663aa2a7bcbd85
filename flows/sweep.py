"""Many federated runs: every partition x method x seed, one after the other, each on all workers."""

from itertools import product
from pathlib import Path
from typing import Any

from prefect import flow

from fedflow.arguments import check_arguments
from fedflow.config import load_params
from fedflow.experiment import Experiment
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
    grid = params.grid
    cells = list(product(partitions or grid.partitions, methods or grid.methods, seeds or grid.seeds))
    for cell in cells:
        Experiment(params, *cell, root=Path(root)).check()
    results = [federate(p, m, s, settings=settings, root=root, sweep=name) for p, m, s in cells]
    comparison(name, results)
    return results
