"""Choose the settings of methods on held-out training data, by the same rule for every method."""

from pathlib import Path
from typing import Any

from prefect import flow

from fedflow.stages.experiment import Experiment
from fedflow.stages.tune import searches
from fedflow.stages.tune import tune as choose_settings
from flows.federate import federate
from tasks.mistakes import checked, checking


@flow(name="tune", log_prints=True, validate_parameters=False)
def tune(
    partition: str,
    methods: list[str] | None = None,
    settings: list[str] | None = None,
    root: str = ".",
    write: bool = True,
) -> dict[str, dict[str, Any]]:
    """Run the grid under ``tuning`` in params.yaml; returns the chosen settings of every method.

    Args:
        partition: a name under ``partitions`` in params.yaml
        methods: names of methods (default: the methods of the grid)
        settings: changes to params.yaml, such as ``tuning.rounds=10``
        root: the project's folder
        write: write the choice to ``tuned`` in params.yaml
    """
    with checking():
        params = checked(settings, root, partition=partition, methods=methods, write=write)
        searches(params, partition, methods, Path(root))

    def run(experiment: Experiment, out: Path) -> dict[str, Any]:
        return federate(**experiment.parameters, out=str(out))

    return choose_settings(params, partition, run, methods, Path(root), write)
