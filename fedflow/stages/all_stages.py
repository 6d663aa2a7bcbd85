"""All stages of one experiment, from named sources to results."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedflow.files import read_fact
from fedflow.project.terminal import RoundBar, say
from fedflow.simulation.executors import Executor, Inline
from fedflow.simulation.loop import Simulation
from fedflow.stages.experiment import Experiment
from fedflow.stages.federate import Blocks, Listener, perform
from fedflow.stages.inputs import MAKERS, Makers, make_inputs, need_current
from fedflow.tracking.record import RunRecord


def run_experiment(
    experiment: Experiment,
    out: Path | None = None,
    executor: Executor | None = None,
    listeners: Sequence[Listener] = (),
    makers: Makers = MAKERS,
    blocks: Blocks = iter,
    opened: Callable[[RunRecord], None] = lambda record: None,
) -> dict[str, Any]:
    """Make the inputs of an experiment and run it; returns its metrics.

    ``executor`` trains the clients (default: this process). ``opened`` is called with the record before the
    first round. The other arguments are as for `make_inputs` and `perform`.
    """
    experiment.check()
    make_inputs([experiment], makers)

    def begun(simulation: Simulation, record: RunRecord) -> None:
        need_current(experiment)
        clients = f"{simulation.cohort_size:,} of {simulation.clients:,} clients per round"
        classes = simulation.federation.partition.classes or len(
            read_fact(experiment.prepared_folder / "meta.json", "classes") or ()
        )
        several = simulation.federation.train.several
        chance = f", chance accuracy {1 / classes:.3f}" if classes and not several else ""
        done = len(simulation.state.history)
        resumed = f", resumes after round {done}" if done else ""
        say(f"{experiment.title}: {clients}{chance}, run {record.run_id}{resumed}")
        opened(record)

    with RoundBar(experiment.title) as bar:
        work = perform(experiment, executor or Inline(), [*listeners, bar.round], out, blocks, begun)
        return work.metrics
