"""From clients to results: one experiment, run and recorded."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import torch

from fedflow.data import load_prepared
from fedflow.data.generated import GeneratedImages
from fedflow.errors import FedflowError
from fedflow.files import COUNTS, locked, make_writable, read_fact
from fedflow.finished.results import write_results
from fedflow.local.local_training import LocalTraining
from fedflow.methods.protocols import Leveled
from fedflow.metrics.table import completed
from fedflow.partition import load_partition
from fedflow.project.terminal import say
from fedflow.simulation.compiling import with_compiled
from fedflow.simulation.executors import Executor
from fedflow.simulation.levels import clients_by_level
from fedflow.simulation.loop import Simulation
from fedflow.simulation.outcome import POLLED, PRUNED, SERIES_CLIENTS, Outcome, RoundReport
from fedflow.stages.experiment import Experiment
from fedflow.tracking import ModelCard, RunRecord, open_run

RUN = ("partition", "method", "seed", "settings")  # what identifies a run

Blocks = Callable[[Iterable[RoundReport]], Iterator[RoundReport]]
Listener = Callable[[RoundReport, int], None]  # called with every round and the number of rounds


DRAWN_CLUSTERS = 20  # of a run, those with the lowest numbers, in MLflow
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
    torch.set_num_threads(1)
    experiment.check()
    run, root = experiment.run, experiment.root
    partition = load_partition(experiment.partition_folder)
    checkpoints, identity = root / ".fedflow" / "checkpoints", experiment.identity
    simulation = Simulation(experiment.job, run, executor, checkpoints, identity)
    facts, folder = _facts(experiment), out or experiment.results_folder
    _respect(folder, facts, given=out is not None)
    make_writable(folder)
    code = (root / ".fedflow" / "compiled").resolve()
    simulation.job, compiled = with_compiled(simulation.job, run, experiment.params.engine.compile, code)
    if compiled.startswith("yes"):
        say(f"{experiment.title}: local steps are compiled ({compiled.removeprefix('yes: ')})")
    name = f"{experiment.partition}/{experiment.method}/{experiment.seed}"
    with locked(
        root / ".fedflow" / "locks" / simulation.fingerprint, partial(_refuse, experiment.title), name
    ):
        record = open_run(
            root,
            experiment=f"{experiment.dataset}/{experiment.partition}",
            name=f"{experiment.method} seed {experiment.seed}",
            key=f"{experiment.method} {simulation.fingerprint}",
            params=_recorded_params(experiment, compiled),
            tags={name: facts[name] for name in NAMES},
            datasets=_inputs(experiment, facts),
            sweep=experiment.sweep,
            grid=experiment.grid,
            params_file=root / "params.yaml",
            system_metrics=system_metrics,
            resumes=bool(simulation.state.history),  # finished runs too, if interrupted before `forget`
        )
        rounds: list[RoundReport] = []
        with record:
            begun(simulation, record)
            for report in blocks(simulation.rounds()):
                rounds.append(report)
                record.round(report)
                for listener in listeners:
                    listener(report, simulation.settings.rounds)
            outcome = simulation.outcome()
            outcome.metrics = completed(outcome.metrics, rounds[-1].values)
            params = {"settings": experiment.digest, "seed": experiment.seed, **experiment.effective}
            sizes, groups = partition.sizes, partition.groups
            write_results(folder, facts, params, rounds, outcome, sizes, groups, identity)
            _attach_pictures(record, experiment, simulation.job.training, partition.sizes, folder)
            _attach_mixtures(record, facts["method_label"], outcome.sweep)
            _attach_masks(record, facts["method_label"], outcome, folder)
            _attach_images(record, outcome)
            _attach_clusters(record, experiment, outcome)
            groups = None if simulation.groups is None else simulation.groups.tolist()
            record.finish(outcome, folder, _card(experiment), groups)
        simulation.forget()
    ended(simulation, outcome)
    return facts | outcome.metrics


def _attach_pictures(
    record: RunRecord, experiment: Experiment, training: LocalTraining, sizes: np.ndarray, results: Path
) -> None:
    """Log the pictures of the partition, of kept predictions, and of growing prefixes and pools."""
    record.attach(experiment.partition_folder.glob("*.png"), "partition")
    if len(predictions := pd.read_parquet(results / "predictions.parquet")):
        from fedflow.pictures.reliability import draw_reliability  # imports matplotlib, which is slow

        with TemporaryDirectory() as name:
            draw_reliability(Path(name), predictions)
            record.attach(Path(name).iterdir(), "calibration")
    if training.curriculum is None and experiment.run.client_curriculum is None:
        return
    from fedflow.pictures.curriculum import draw_curricula  # imports matplotlib, which is slow

    with TemporaryDirectory() as name:
        rounds, series = pd.read_csv(results / "rounds.csv"), pd.read_parquet(results / "series.parquet")
        draw_curricula(Path(name), training, sizes, rounds, series[series["name"] == POLLED])
        record.attach(Path(name).iterdir(), "curriculum")


def _attach_mixtures(record: RunRecord, label: str, sweep: pd.DataFrame | None) -> None:
    """Log the pictures of the scores of mixtures of global and personal models, of methods that have them."""
    if sweep is None or sweep.empty:
        return
    from fedflow.pictures.mixtures import SCORES, Sweep, mixtures  # imports matplotlib, which is slow

    with TemporaryDirectory() as name:
        for column in (column for column in SCORES if sweep[column].notna().any()):
            drawn = mixtures({label: [Sweep(label, sweep)]}, {label: 0}, column, f"sweep-{column}")
            drawn.png(Path(name) / f"{column}.png")
        record.attach(Path(name).iterdir(), "sweep")


def _attach_masks(record: RunRecord, label: str, outcome: Outcome, results: Path) -> None:
    """Log the pictures of masks and pruned shares, of methods that have them."""
    masks, series = (
        outcome.recorded.masks(outcome.participations),
        pd.read_parquet(results / "series.parquet"),
    )
    if masks is None and PRUNED not in set(series["name"]):
        return
    from fedflow.pictures.masks import draw_masks  # imports matplotlib, which is slow

    shown = min(len(outcome.participations), SERIES_CLIENTS)
    with TemporaryDirectory() as name:
        draw_masks(Path(name), label, masks, series, shown, int(outcome.metrics["rounds"]))
        record.attach(Path(name).iterdir(), "masks")


def _attach_images(record: RunRecord, outcome: Outcome) -> None:
    """Log the pictures of generated images, of methods that have them."""
    if not outcome.generated:
        return
    from fedflow.pictures.images import draw_images  # imports matplotlib, which is slow

    with TemporaryDirectory() as name:
        draw_images(Path(name), GeneratedImages({**outcome.generated}, outcome.last_images))
        record.attach(Path(name).iterdir(), "generated")


def _attach_clusters(record: RunRecord, experiment: Experiment, outcome: Outcome) -> None:
    """Log a picture of the labels of every cluster's clients, of methods that serve clusters."""
    table = experiment.partition_folder / COUNTS
    if experiment.job.method.serves != "cluster" or not table.is_file():
        return
    from fedflow.pictures.labels import draw_counts  # imports matplotlib, which is slow

    counts = pd.read_csv(table).drop(columns="client").to_numpy()
    cluster = np.asarray(outcome.scores.cluster)
    with TemporaryDirectory() as name:
        for j in sorted({*cluster.tolist()} - {-1})[:DRAWN_CLUSTERS]:
            members = counts[: len(cluster)][cluster == j]
            heading = f"cluster {j} of {experiment.method} on {experiment.partition}, seed {experiment.seed}"
            draw_counts(members, heading, Path(name) / f"cluster-{j}.png")
        record.attach(Path(name).iterdir(), "clusters")


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


def _refuse(title: str) -> None:
    raise FedflowError(f"{title} is already running in another process")
