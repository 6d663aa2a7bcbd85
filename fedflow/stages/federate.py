"""From clients to results: one federated run, recorded in MLflow."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from fedflow.data import load_prepared
from fedflow.files import cache
from fedflow.finished.results import write_results
from fedflow.methods.protocols import Leveled
from fedflow.metrics.table import completed
from fedflow.partition import load_partition
from fedflow.project.terminal import say
from fedflow.simulation.compiling import with_compiled
from fedflow.simulation.executors import Executor
from fedflow.simulation.levels import clients_by_level
from fedflow.simulation.loop import Simulation
from fedflow.simulation.outcome import Outcome, RoundReport
from fedflow.stages.driver import Description, Result, drive
from fedflow.stages.experiment import Experiment, recorded_inputs
from fedflow.stages.started import started
from fedflow.tracking.drawings import drawn
from fedflow.tracking.models import ModelCard
from fedflow.tracking.record import RunRecord

RUN = ("partition", "method", "seed", "settings")  # facts that identify a run

Blocks = Callable[[Iterable[RoundReport]], Iterator[RoundReport]]
Listener = Callable[[RoundReport, int], None]  # called with every round and the number of rounds


def perform(
    experiment: Experiment,
    executor: Executor,
    listeners: Sequence[Listener] = (),
    out: Path | None = None,
    blocks: Blocks = iter,
    begun: Callable[[Simulation, RunRecord], None] = lambda simulation, record: None,
) -> "FederatedWork":
    """Run the experiment, whose inputs exist, to its end, from its last checkpoint if there is one.

    ``blocks`` iterates over the rounds, for example in Prefect tasks. ``begun`` is called before the first
    round. Writes the result files to ``out`` (default: the experiment's ``results_folder``) and one MLflow
    run. Raises `FedflowError` for errors that can be found before training, if the same experiment is already
    running, and if ``out`` holds results of another run or files of the user; in these cases no MLflow run is
    created.
    """
    experiment.check()
    work, folder = FederatedWork(experiment, executor), out or experiment.results_folder
    if work.compiled.startswith("yes"):
        say(f"{experiment.title}: local steps are compiled ({work.compiled.removeprefix('yes: ')})")
    drive(
        work.description(folder, named=out is not None),
        work,
        RunRecord,
        RunRecord.round,
        listeners,
        lambda record: begun(work.simulation, record),
        blocks,
    )
    return work


class FederatedWork:
    """The rounds of a run, whose inputs exist. ``facts`` identify it in its result files."""

    def __init__(self, experiment: Experiment, executor: Executor) -> None:
        self.experiment, root, engine = experiment, experiment.root, experiment.params.engine
        division = experiment.division(experiment.partition)
        self.facts = {
            "partition": experiment.partition,
            "method": experiment.method,
            "method_label": experiment.params.label(experiment.method),
            "dataset": experiment.dataset,
            "model": experiment.params.model(experiment.dataset).name,
            "seed": experiment.seed,
            "settings": experiment.digest,
            "data_hash": experiment.stored("data", experiment.dataset).hash,
            "partition_hash": experiment.stored("partition", division).hash,
        }
        if experiment.params.grid.redraw != "run":
            self.facts["division"] = division
        checkpoints, code = root / ".fedflow" / "checkpoints", (cache() / "compiled").resolve()
        self.simulation = run = Simulation(
            experiment.job, experiment.run, executor, checkpoints, experiment.identity
        )
        run.job, self.compiled = with_compiled(run.job, experiment.run, engine.compile, code)
        self.rounds: list[RoundReport] = []

    @property
    def resumes(self) -> bool:
        """True if there is a checkpoint; a finished run has one if interrupted before `forget`."""
        return bool(self.simulation.state.history)

    @property
    def total(self) -> int:
        return self.simulation.settings.rounds

    def steps(self) -> Iterator[RoundReport]:
        """Every round."""
        for report in self.simulation.rounds():
            self.rounds.append(report)
            yield report
        if self.simulation.stopped:
            say(f"{self.experiment.title}: {self.simulation.stopped}")

    @cached_property
    def outcome(self) -> Outcome:
        """The end of the run."""
        outcome = self.simulation.outcome()
        outcome.metrics = completed(outcome.metrics, self.rounds[-1].values)
        return outcome

    @property
    def metrics(self) -> dict[str, Any]:
        """The facts and the final numbers."""
        return self.facts | self.outcome.metrics

    def description(self, folder: Path, named: bool) -> Description:
        """The run as `drive` needs it, with results in ``folder``, which the user ``named`` or not."""
        experiment, key = self.experiment, self.simulation.fingerprint
        engine = experiment.params.engine.as_dict() | {"compiled": self.compiled}
        more = {"run": experiment.run.as_dict(), "engine": engine, "seed": experiment.seed}
        record = {
            "experiment": f"{experiment.dataset}/{experiment.partition}",
            "name": f"{experiment.method} seed {experiment.seed}",
            "key": f"{experiment.method} {key}",
            "params": experiment.effective | {"dataset": experiment.dataset} | more,
            "tags": {name: self.facts[name] for name in (*RUN, "dataset", "division") if name in self.facts},
            "datasets": recorded_inputs(experiment.root, [experiment.dataset], experiment.partitions),
            "sweep": experiment.sweep,
            "grid": experiment.grid,
        }
        identity, facts = self.simulation.identity, {name: self.facts[name] for name in RUN}
        return Description(
            experiment.title, experiment.root, folder, identity, key, experiment.address, record, facts, named
        )

    def result(self) -> Result:
        """The result, after the last round."""
        experiment, partition = self.experiment, self.simulation.federation.partition
        params = {"settings": experiment.digest, "seed": experiment.seed, **experiment.effective}
        written: list[Path] = []

        def write(folder: Path) -> None:
            written.append(folder)
            write_results(
                folder,
                self.facts,
                params,
                self.rounds,
                self.outcome,
                partition.sizes,
                partition.groups,
                self.simulation.identity,
            )

        def pictures(folder: Path) -> Iterator[tuple[str, Iterable[Path]]]:
            yield "partition", experiment.partition_folder.glob("*.png")
            yield from drawn(written[0], self.facts, experiment.partition_folder, folder)

        return Result(
            self.outcome.metrics,
            int(self.outcome.metrics["rounds"]),
            write,
            pictures,
            self.outcome.models,
            _card(experiment),
            self.outcome.scores.cluster.tolist(),
        )

    def forget(self) -> None:
        """Delete the checkpoint."""
        self.simulation.forget()


def _card(experiment: Experiment) -> ModelCard:
    """The card of the models of this run."""
    model, method = experiment.params.model(experiment.dataset), experiment.job.method
    partition, levels = load_partition(experiment.partition_folder), {}
    if isinstance(method, Leveled):
        clients = clients_by_level(method, partition.training_clients)
        levels = {name: (dict(options), clients[name]) for name, options in method.networks().items()}
    return ModelCard.of(
        load_prepared(experiment.prepared_folder),
        model.name,
        started(model.options, experiment.root),
        classes=tuple(map(str, range(partition.classes))) if partition.classes else None,
        method=experiment.method,
        partition=experiment.partition,
        serves=method.serves,
        seed=experiment.seed,
        levels=levels,
        held_out=partition.held_out,
    )
