"""From a named source to results: all stages that one experiment needs."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedflow.files import read_fact
from fedflow.project.terminal import RoundBar, say
from fedflow.simulation.executors import Executor, Inline
from fedflow.simulation.loop import Simulation
from fedflow.stages.central_network import prepare_network
from fedflow.stages.experiment import Experiment
from fedflow.stages.federate import Blocks, Listener, perform
from fedflow.stages.inputs import make_inputs
from fedflow.stages.partition import prepare_partition
from fedflow.stages.prepare import prepare_dataset
from fedflow.tracking import RunRecord


def run_experiment(
    experiment: Experiment,
    out: Path | None = None,
    executor: Executor | None = None,
    listeners: Sequence[Listener] = (),
    prepare: Callable[..., Any] = prepare_dataset,
    train: Callable[..., Any] = prepare_network,
    divide: Callable[..., Any] = prepare_partition,
    blocks: Blocks = iter,
    opened: Callable[[RunRecord], None] = lambda record: None,
) -> dict[str, Any]:
    """Prepare the data, train central networks, partition, run the rounds; returns the metrics.

    ``executor`` trains the clients (default: this process); ``prepare``, ``train`` and ``divide`` are the
    earlier stages, for example as Prefect tasks; ``blocks`` are those of `perform`; ``opened`` is
    called with the record before the first round.
    """
    experiment.check()
    make_inputs([experiment], prepare, train, divide)

    def begun(simulation: Simulation, record: RunRecord) -> None:
        clients = f"{simulation.cohort_size:,} of {simulation.clients:,} clients per round"
        classes = simulation.federation.partition.classes or len(
            read_fact(experiment.prepared_folder / "meta.json", "classes") or ()
        )
        chance = f", chance accuracy {1 / classes:.3f}" if classes else ""
        say(f"{experiment.title}: {clients}{chance}, run {record.run_id}")
        opened(record)

    with RoundBar(experiment.title) as bar:
        return perform(
            experiment, executor or Inline(), [*listeners, bar.round], out, blocks=blocks, begun=begun
        )
