"""From clients to results: one experiment, run and recorded."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from fedflow.data import load_prepared
from fedflow.errors import FedflowError
from fedflow.files import cache, read_fact
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
from fedflow.stages.driver import Experiment as Described
from fedflow.stages.driver import Result, drive
from fedflow.stages.experiment import Experiment
from fedflow.tracking import ModelCard, RunRecord
from fedflow.tracking.drawings import drawn

RUN = ("partition", "method", "seed", "settings")  # what identifies a run

Blocks = Callable[[Iterable[RoundReport]], Iterator[RoundReport]]
Listener = Callable[[RoundReport, int], None]  # called with every round and the number of rounds


NAMES = ("partition", "method", "dataset", "seed", "settings")  # facts that are tags of a run


def perform(
    experiment: Experiment,
    executor: Executor,
    listeners: Sequence[Listener] = (),
    out: Path | None = None,
    system_metrics: bool = True,
    blocks: Blocks = iter,
    begun: Callable[[Simulation, RunRecord], None] = lambda simulation, record: None,
    ended: Callable[[Simulation, Outcome], None] = lambda simulation, outcome: None,
) -> dict[str, Any]:
    """Run the experiment to its end, from its last checkpoint if it was interrupted; returns its metrics.

    ``blocks`` iterates over the rounds, for example in blocks, each of which is a task of Prefect. ``begun``
    is called before the first round, ``ended`` when all is recorded.
    Writes the result files to ``out`` (default: the experiment's ``results_folder``) and one MLflow run.
    Data set and partition must exist. Raises `FedflowError` for errors that can be found before training,
    if the same experiment is already running, and if ``out`` holds results of another run; in these cases
    no MLflow run is created.
    """
    experiment.check()
    facts, folder = _facts(experiment), out or experiment.results_folder
    _respect(folder, facts, given=out is not None)
    work = FederatedWork(experiment, facts, executor)
    if work.compiled.startswith("yes"):
        say(f"{experiment.title}: local steps are compiled ({work.compiled.removeprefix('yes: ')})")
    described = Described(
        experiment.title,
        experiment.root,
        folder,
        work.simulation.identity,
        work.simulation.fingerprint,
        f"{experiment.partition}/{experiment.method}/{experiment.seed}",
        {
            "experiment": f"{experiment.dataset}/{experiment.partition}",
            "name": f"{experiment.method} seed {experiment.seed}",
            "key": f"{experiment.method} {work.simulation.fingerprint}",
            "params": _recorded_params(experiment, work.compiled),
            "tags": {name: facts[name] for name in NAMES},
            "datasets": _inputs(experiment, facts),
            "sweep": experiment.sweep,
            "grid": experiment.grid,
            "system_metrics": system_metrics,
        },
    )
    drive(
        described,
        work,
        RunRecord,
        RunRecord.round,
        listeners,
        lambda record: begun(work.simulation, record),
        blocks,
    )
    ended(work.simulation, work.outcome)
    return facts | work.outcome.metrics


class FederatedWork:
    """The rounds of a run, whose data set and partition exist."""

    def __init__(self, experiment: Experiment, facts: dict[str, Any], executor: Executor) -> None:
        self.experiment, self.facts, root = experiment, facts, experiment.root
        checkpoints, code = root / ".fedflow" / "checkpoints", (cache() / "compiled").resolve()
        self.simulation = run = Simulation(
            experiment.job, experiment.run, executor, checkpoints, experiment.identity
        )
        run.job, self.compiled = with_compiled(
            run.job, experiment.run, experiment.params.engine.compile, code
        )
        self.rounds: list[RoundReport] = []

    @property
    def resumes(self) -> bool:
        """True if there is a checkpoint; finished runs have one if interrupted before `forget`."""
        return bool(self.simulation.state.history)

    @property
    def total(self) -> int:
        """Rounds of the run."""
        return self.simulation.settings.rounds

    def steps(self) -> Iterator[RoundReport]:
        """Every round."""
        for report in self.simulation.rounds():
            self.rounds.append(report)
            yield report

    @cached_property
    def outcome(self) -> Outcome:
        """The end of the run."""
        outcome = self.simulation.outcome()
        outcome.metrics = completed(outcome.metrics, self.rounds[-1].values)
        return outcome

    def result(self) -> Result:
        """The result, after the last round."""
        experiment, partition = self.experiment, self.simulation.federation.partition
        params = {"settings": experiment.digest, "seed": experiment.seed, **experiment.effective}
        sizes, groups, written = partition.sizes, partition.groups, list[Path]()

        def write(folder: Path) -> None:
            written.append(folder)
            write_results(
                folder, self.facts, params, self.rounds, self.outcome, sizes, groups, self.simulation.identity
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


def _respect(folder: Path, facts: dict[str, Any], given: bool) -> None:
    """Refuse to replace results of another run in a folder that the user named; otherwise say so."""
    file = folder / "metrics.json"
    differs = [name for name in RUN if file.exists() and read_fact(file, name) != facts[name]]
    if differs and given:
        raise FedflowError(
            f"{folder} holds results of another run (other {', '.join(differs)}): "
            "name another folder with --out, or delete this one"
        )
    if differs:
        say(f"{folder}: replacing results of another run (other {', '.join(differs)})")


def _facts(experiment: Experiment) -> dict[str, Any]:
    """What identifies this run in its result files."""
    return {
        "partition": experiment.partition,
        "method": experiment.method,
        "method_label": experiment.params.label(experiment.method),
        "dataset": experiment.dataset,
        "model": experiment.params.model(experiment.dataset).name,
        "seed": experiment.seed,
        "settings": experiment.digest,
        "data_hash": read_fact(experiment.prepared_folder / "meta.json", "hash"),
        "partition_hash": read_fact(experiment.partition_folder / "summary.json", "hash"),
    }


def _inputs(experiment: Experiment, facts: dict[str, Any]) -> list[dict[str, Any]]:
    """The data set and the partition, as inputs of the recorded run."""
    folders = {"data": experiment.prepared_folder, "partition": experiment.partition_folder}
    names = {"data": experiment.dataset, "partition": experiment.partition}
    return [
        {"name": names[what], "digest": facts[f"{what}_hash"], "source": str(folder), "context": what}
        for what, folder in folders.items()
    ]


def _card(experiment: Experiment) -> ModelCard:
    """How to rebuild the models of this run."""
    model = experiment.params.model(experiment.dataset)
    partition = load_partition(experiment.partition_folder)
    renamed = partition.classes
    return ModelCard.of(
        load_prepared(experiment.prepared_folder),
        model.name,
        model.options,
        classes=tuple(map(str, range(renamed))) if renamed else None,
        method=experiment.method,
        partition=experiment.partition,
        serves=experiment.job.method.serves,
        seed=experiment.seed,
        levels=_levels(experiment),
        held_out=partition.held_out,
    )


def _levels(experiment: Experiment) -> dict[str, tuple[dict[str, Any], list[int]]]:
    """The options of each level's network and its clients, if clients hold networks of different sizes."""
    method = experiment.job.method
    if not isinstance(method, Leveled):
        return {}
    clients = clients_by_level(method, load_partition(experiment.partition_folder).training_clients)
    return {name: (dict(options), clients[name]) for name, options in method.networks().items()}


def _recorded_params(experiment: Experiment, compiled: str) -> dict[str, Any]:
    params = experiment.params
    return experiment.effective | {
        "dataset": experiment.dataset,
        "run": experiment.run.as_dict(),
        "engine": params.engine.as_dict() | {"compiled": compiled},
        "seed": experiment.seed,
    }
