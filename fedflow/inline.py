"""One federated run in this process, without a Prefect server: what ``engine.executor: inline`` means."""

from pathlib import Path
from typing import Any

from fedflow.arguments import check_arguments
from fedflow.config import load_params
from fedflow.experiment import Experiment, perform, prepare_dataset, prepare_partition
from fedflow.simulation.executors import Inline
from fedflow.terminal import RoundBar


def federate(
    partition: str,
    method: str,
    seed: int = 0,
    settings: list[str] | None = None,
    root: str = ".",
    out: str | None = None,
    sweep: str | None = None,
) -> dict[str, Any]:
    """Prepare the data, partition it, run the rounds, record everything; returns the metrics.

    Arguments as of the flow of the same name (`flows.federate`).
    """
    check_arguments(settings=settings, root=root, out=out)
    params = load_params(Path(root) / "params.yaml", settings or [])
    experiment = Experiment(params, partition, method, seed, Path(root), sweep)
    experiment.check()
    for name in experiment.datasets:
        prepare_dataset(params, name, Path(root))
    prepare_partition(params, partition, Path(root))
    with RoundBar(experiment.title) as bar:
        return perform(experiment, Inline(), [bar.round], Path(out) if out else None)
