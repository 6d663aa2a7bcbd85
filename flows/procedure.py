"""One procedure with one seed: an experiment without federated rounds, such as a coreset."""

from functools import partial
from pathlib import Path
from typing import Any

from prefect import flow

from fedflow.stages.grid import finished_metrics
from fedflow.stages.procedure import ProcedureRun, run_procedure
from tasks.inputs import TASKS
from tasks.mistakes import checked, checking
from tasks.progress import ProgressBar, add_tags, finished_by_an_earlier_try, link_record, outcome_table
from tasks.shards import executor_for


@flow(name="procedure", flow_run_name="{name} · seed {seed}", log_prints=True, validate_parameters=False)
def procedure(
    name: str,
    seed: int = 0,
    settings: list[str] | None = None,
    root: str = ".",
    sweep: str | None = None,
    out: str | None = None,
) -> dict[str, Any]:
    """Run a procedure with one seed, and make its inputs; returns its metrics.

    Args:
        name: a name under ``procedures`` in params.yaml, or a registered procedure
        seed: experiment seed
        settings: changes to params.yaml, such as ``procedures.coreset.kappa=0.2``
        root: the project's folder
        sweep: name of the MLflow parent run
        out: folder of the outcome (default: outcomes/<name>/<seed> of the grid, else
            runs/<name>/<seed>, followed by a digest of changed settings)
    """
    with checking():
        params = checked(settings, root, name=name, sweep=sweep, out=out)
        run = ProcedureRun(params, name, seed, Path(root), sweep, out)
        params.procedure(name)
    if finished_by_an_earlier_try(run, run.folder):
        return finished_metrics(run, run.folder)
    bar = ProgressBar(f"procedure · {run.title}", "procedure", name, seed, "progress")
    add_tags(name, f"seed {seed}")
    with executor_for(params.engine) as executor:
        metrics = run_procedure(
            run, executor, [bar.step], TASKS, opened=partial(link_record, parts=("procedure", name, seed))
        )
    outcome_table(run)
    return metrics
