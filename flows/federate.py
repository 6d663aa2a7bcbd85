"""One federated run: prepare the data, partition it, run the rounds, record everything."""

from pathlib import Path
from typing import Any

from prefect import flow

from fedflow.stages.all_stages import run_experiment
from fedflow.stages.experiment import Experiment
from fedflow.stages.grid import finished_metrics
from tasks.gpu import OneGpu, in_blocks
from tasks.inputs import TASKS
from tasks.mistakes import checked, checking
from tasks.progress import PrefectProgress, finished_by_an_earlier_try
from tasks.shards import executor_for


@flow(
    name="federate",
    flow_run_name="{partition} · {method} · seed {seed}",
    log_prints=True,
    validate_parameters=False,
)
def federate(
    partition: str,
    method: str,
    seed: int = 0,
    settings: list[str] | None = None,
    root: str = ".",
    out: str | None = None,
    sweep: str | None = None,
) -> dict[str, Any]:
    """Run one method on one partition with one seed; returns its metrics.

    Args:
        partition: a name under ``partitions`` in params.yaml
        method: a name under ``methods`` in params.yaml, or a registered method
        seed: experiment seed
        settings: changes to params.yaml, such as ``run.rounds=5`` or ``methods.ifca.clusters=4``
        root: the project's folder
        out: folder of the result files (default: results/<partition>/<method>/<seed> of the grid, else
            runs/<partition>/<method>/<seed>, followed by a digest of changed settings)
        sweep: name of the MLflow parent run
    """
    with checking():
        params = checked(settings, root, out=out)
        experiment = Experiment(params, partition, method, seed, Path(root), sweep)
        experiment.check()
    folder = Path(out) if out else experiment.results_folder
    if finished_by_an_earlier_try(experiment, folder):
        return finished_metrics(experiment, folder)
    with executor_for(params.engine) as executor, PrefectProgress(experiment, out) as page:
        metrics = run_experiment(
            experiment,
            Path(out) if out else None,
            executor,
            [page.round],
            TASKS,
            in_blocks if isinstance(executor, OneGpu) else iter,
            page.opened,
        )
        page.finish(metrics)
    return metrics
