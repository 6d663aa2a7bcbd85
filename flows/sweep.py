"""A whole grid: every partition x method x seed, then every procedure x seed, each on all workers."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from prefect import flow

from fedflow.config import load_params
from fedflow.project.arguments import check_arguments
from fedflow.project.terminal import counted
from fedflow.stages.experiment import Experiment, experiments
from fedflow.stages.procedure import ProcedureRun, procedure_runs
from flows.federate import federate
from flows.procedure import procedure
from tasks.mistakes import checking
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
    """Run a grid (default: params.yaml's) and the procedures of params.yaml; returns all metrics.

    The runs of a partition or of a procedure share an MLflow parent run. Naming partitions or methods leaves
    out the procedures.
    """
    with checking():
        check_arguments(
            partitions=partitions, methods=methods, seeds=seeds, settings=settings, root=root, name=name
        )
        params = load_params(Path(root) / "params.yaml", settings or [])
        cells = experiments(params, Path(root), name, partitions, methods, seeds)
        only = partitions is not None or methods is not None  # a part of the grid of runs
        procedures = [] if only else procedure_runs(params, Path(root), name, seeds)
    every: Iterator[Experiment | ProcedureRun] = counted([*cells, *procedures])
    results = [federate(**cell.parameters) for cell in islice(every, len(cells))]
    if results:
        comparison(name, results)
    return [*results, *(procedure(**run.parameters) for run in every)]
