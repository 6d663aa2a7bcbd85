"""One experiment: a partition, a method and a seed out of ``params.yaml``, run and recorded."""

import contextlib
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from filelock import FileLock, Timeout

from fedflow.arguments import argument
from fedflow.config import Params, digest
from fedflow.data import Dataset, is_current, load_prepared, prepare, within
from fedflow.data.files import reading
from fedflow.errors import BadInput, FedflowError
from fedflow.identity import code_digest
from fedflow.local.expert import expert_losses
from fedflow.local.training import LocalTraining
from fedflow.methods.base import ServerData, server_data
from fedflow.metrics.table import completed
from fedflow.models import ARCHITECTURES, build
from fedflow.models.flat import FlatModel
from fedflow.partition import Partition, PartitionParams, Samples, load_partition, make_partition
from fedflow.partition.after.difficulty import Difficulty
from fedflow.results import write_results
from fedflow.simulation.compiling import with_compiled
from fedflow.simulation.executors import Executor
from fedflow.simulation.federation import FederationFiles, Stored
from fedflow.simulation.job import Job
from fedflow.simulation.loop import Simulation
from fedflow.simulation.outcome import RoundReport
from fedflow.terminal import say
from fedflow.tracking import ModelCard, open_run

T = TypeVar("T")

RUN = ("partition", "method", "seed", "settings")  # tells a run from every other one
SHORT = 8  # digits of the settings' digest in the name of a folder

Listener = Callable[[RoundReport, int], None]  # told every round, and how many there will be


@dataclass(frozen=True)
class Experiment:
    """What to run, and where its files lie below ``root``."""

    params: Params
    partition: str
    method: str
    seed: int
    root: Path = Path()
    sweep: str | None = None  # the MLflow parent run that this run belongs to

    def __post_init__(self) -> None:
        for name in ("partition", "method", "seed", "sweep"):
            object.__setattr__(self, name, argument(name, getattr(self, name)))

    @property
    def dataset(self) -> str:
        return self.params.partition(self.partition).dataset

    @property
    def datasets(self) -> list[str]:
        """The data set that is divided, and the one that the method lets the server hold, if it names one."""
        public = self.params.public(self.method, self.partition)
        return [self.dataset, *([public] if public else [])]

    @property
    def _server_data(self) -> ServerData:
        return server_data(self.params.method(self.method, self.partition)[0])

    @property
    def title(self) -> str:
        return f"{self.partition} · {self.method} · seed {self.seed}"

    @property
    def prepared_folder(self) -> Path:
        return self._prepared(self.dataset)

    def _prepared(self, dataset: str) -> Path:
        return self.root / "data" / "prepared" / dataset

    @property
    def partition_folder(self) -> Path:
        return self.root / "data" / "partitions" / self.partition

    @cached_property
    def effective(self) -> dict[str, Any]:
        """By section, defaults included: all that can change the numbers of the run, except its seed."""
        params, (method, training) = self.params, self.params.method(self.method, self.partition)
        return {
            "method": {"name": self.method, **method.as_dict()},
            "training": training.as_dict(),
            "run": {k: v for k, v in params.run.as_dict().items() if k != "checkpoint_every"},
            "model": params.model(self.dataset).as_dict(),
            "data": {name: params.dataset(name).as_dict() for name in self.datasets},
            "partition": params.partition(self.partition).as_dict(),
        }

    @cached_property
    def settings(self) -> str:
        """A digest of `effective`: runs with different ones are never averaged."""
        return digest(self.effective)

    @cached_property
    def results_folder(self) -> Path:
        """``results/<partition>/<method>/<seed>`` where params.yaml itself gives these settings.

        With other ones, the digest follows the seed.
        """
        name = str(self.seed) if self._as_in_the_file() else f"{self.seed}-{self.settings[:SHORT]}"
        return self.root / "results" / self.partition / self.method / name

    def _as_in_the_file(self) -> bool:
        plain = self.params.plain
        try:
            return plain is not None and replace(self, params=plain).settings == self.settings
        except FedflowError:  # the file knows no such partition, say
            return False

    def check(self) -> None:
        """Raise `BadInput` for any name or value that this experiment cannot run with."""
        self.params.method(self.method, self.partition)[0].check(self.params.run.rounds)
        self.params.model(self.dataset)
        for name in self.datasets:
            self.params.dataset(name)
        pick_device(self.params.engine.device)

    @cached_property
    def job(self) -> Job:
        """What every worker of the run needs to know."""
        method, training = self.params.method(self.method, self.partition)
        model, engine = self.params.model(self.dataset), self.params.engine
        public = [self._prepared(name) for name in self.datasets[1:]]
        files = FederationFiles(
            prepared=_stored(self.prepared_folder, "meta.json"),
            partition=_stored(self.partition_folder, "summary.json"),
            model=model.name,
            model_options=json.dumps(model.options, sort_keys=True),
            device=pick_device(engine.device),
            convolution=engine.convolution,
            public=_stored(public[0], "meta.json") if public else None,
            noise=self._server_data.noise,
        )
        return Job(files, method, training, self.seed, cohort=engine.cohort, width=engine.width)


def pick_device(wanted: str) -> str:
    """``auto`` becomes cuda where there is a GPU; `FedflowError` when cuda is asked for in vain."""
    if wanted == "cuda" and not torch.cuda.is_available():
        raise FedflowError("engine.device: 'cuda' was asked for, but torch sees no GPU here; use cpu or auto")
    return ("cuda" if torch.cuda.is_available() else "cpu") if wanted == "auto" else wanted


def prepare_dataset(params: Params, name: str, root: Path = Path()) -> Path:
    """Make ``data/prepared/<name>`` unless it is there, whole, from the same files and parameters.

    Returns the folder.
    """
    folder, wanted = root / "data" / "prepared" / name, params.dataset(name)
    there = is_current(folder, wanted)
    if not there or _whole(lambda: load_prepared(folder, verify=True)) is None:
        with within(f"data.{name}"):
            prepare(wanted, folder)
    return folder


def prepare_partition(params: Params, name: str, root: Path = Path()) -> Path:
    """Make ``data/partitions/<name>`` unless it is there, whole, for the same data and parameters.

    Returns the folder. A note in ``.fedflow/partitions`` says what it was made from, code included, so that
    it is not made only to be compared; in the folder it would change what DVC sees with every comment.
    """
    wanted, folder = params.partition(name), root / "data" / "partitions" / name
    dataset = load_prepared(root / "data" / "prepared" / wanted.dataset)
    there, note = _whole(lambda: load_partition(folder)), root / ".fedflow" / "partitions" / f"{name}.json"
    origin = _origin(wanted, dataset, root)
    if there is not None and (_fact(note, "partition"), _fact(note, "origin")) == (there.hash, origin):
        return folder
    from fedflow.pictures.labels import draw_labels  # imports matplotlib, which is slow

    samples = Samples.of(
        dataset, root=root, losses=lambda difficulty: _losses(difficulty, dataset, wanted.seed, root)
    )
    made = make_partition(wanted, samples, dataset.hash)
    if there is None or (there.hash, there.params) != (made.hash, made.params):
        draw_labels(made, folder / "labels.png")
        made.save(folder)  # last: its summary says that the folder is complete
    _make_writable(note.parent)
    note.write_text(json.dumps({"partition": made.hash, "origin": origin}) + "\n")
    return folder


def _origin(wanted: PartitionParams, dataset: Dataset, root: Path) -> str:
    """A hash of all that a partition depends on: parameters, data, code, and the files that they name."""
    files = hashlib.blake2b()
    for name in wanted.files():
        with contextlib.suppress(OSError):  # whoever reads it says so
            files.update((root / name).read_bytes())
    about = wanted.as_dict(), dataset.hash, partition_code(wanted), files.hexdigest(), torch.__version__
    return hashlib.blake2b(json.dumps(about).encode(), digest_size=8).hexdigest()


def partition_code(wanted: PartitionParams) -> str:
    """A digest of the code that makes a partition: its scheme, what follows, the expert where it has one."""
    modules = [Partition.__module__, type(wanted.build()).__module__]
    if not wanted.difficulty or wanted.difficulty.losses:
        return code_digest(*modules)
    network = ARCHITECTURES[wanted.difficulty.expert]
    code = code_digest(*modules, __name__, network.build.__module__)
    return digest({"code": code, "options": network.options})


def _losses(difficulty: Difficulty, dataset: Dataset, seed: int, root: Path) -> np.ndarray:
    """A loss per training sample [n]: of the file, or of an expert (on the CPU, so the same everywhere)."""
    if difficulty.losses is not None:
        with reading(root / difficulty.losses):
            losses = np.load(root / difficulty.losses, allow_pickle=False)
        numbers = isinstance(losses, np.ndarray) and losses.dtype.kind in "fiu"
        if not numbers or losses.shape != dataset.y_train.shape[:1] or not np.isfinite(losses).all():
            accepted = f"an .npy file of {len(dataset.y_train)} finite numbers, one per training sample"
            raise BadInput(f"{difficulty.section}.losses", difficulty.losses, accepted)
        return losses
    torch.set_num_threads(1)
    try:
        model = FlatModel(partial(build, difficulty.expert, dataset.input_shape, dataset.num_classes))
    except BadInput as error:
        raise BadInput(f"{difficulty.section}.expert", difficulty.expert, error.accepted) from None
    training = LocalTraining.parse(
        {"epochs": difficulty.epochs, "batch_size": 64, "lr": difficulty.lr, "momentum": 0.9}
    )
    return expert_losses(model, dataset.train, training, seed)


def perform(
    experiment: Experiment,
    executor: Executor,
    listeners: Sequence[Listener] = (),
    out: Path | None = None,
    system_metrics: bool = True,
) -> dict[str, Any]:
    """Run the experiment to its end, from its last checkpoint if it was cut off; returns its metrics.

    Writes the result files to ``out`` (default: the experiment's ``results_folder``) and one MLflow run.
    Whatever can be wrong before training raises `FedflowError` before there is a run in MLflow; so does
    the same experiment when it is running already, and an ``out`` that holds results of another run.
    """
    torch.set_num_threads(1)
    experiment.check()
    run, root = experiment.params.run, experiment.root
    partition = load_partition(experiment.partition_folder)
    job, compiled = with_compiled(
        experiment.job, run, experiment.params.engine.compile, (root / ".fedflow" / "compiled").resolve()
    )
    if compiled.startswith("yes"):
        say(f"{experiment.title}: local steps are compiled ({compiled.removeprefix('yes: ')})")
    simulation = Simulation(job, run, executor, checkpoints=root / ".fedflow" / "checkpoints")
    if run.min_cohort > simulation.cohort_size:
        size, share = simulation.cohort_size, run.participation
        raise BadInput(
            "run.min_cohort", run.min_cohort, f"at most {size}, a round at participation {share:g}"
        )
    facts, folder = _facts(experiment), out or experiment.results_folder
    _respect(folder, facts, given=out is not None)
    _make_writable(folder)
    with _only_one(root / ".fedflow" / "locks" / simulation.fingerprint, experiment):
        record = open_run(
            root,
            experiment=f"{experiment.dataset}/{experiment.partition}",
            name=f"{experiment.method} seed {experiment.seed}",
            key=simulation.fingerprint,
            params=_recorded_params(experiment, compiled),
            tags={name: facts[name] for name in ("partition", "method", "dataset", "seed", "settings")},
            datasets=_inputs(experiment, facts),
            sweep=experiment.sweep,
            params_file=root / "params.yaml",
            system_metrics=system_metrics,
            resumes=bool(simulation.state.history),  # a finished run too, if it was cut off before forgetting
        )
        rounds: list[RoundReport] = []
        with record:
            for report in simulation.rounds():
                rounds.append(report)
                record.round(report)
                for tell in listeners:
                    tell(report, run.rounds)
            outcome = simulation.outcome()
            outcome.metrics = completed(outcome.metrics, rounds[-1].values)
            params = {"settings": experiment.settings, "seed": experiment.seed, **experiment.effective}
            write_results(folder, facts, params, rounds, outcome, partition.sizes, partition.groups)
            groups = None if simulation.groups is None else simulation.groups.tolist()
            record.finish(outcome, folder, _card(experiment), groups)
        simulation.forget()
    return facts | outcome.metrics


def _respect(folder: Path, facts: dict[str, Any], given: bool) -> None:
    """Refuse to replace results of another run in a folder that the user named; elsewhere say so."""
    file = folder / "metrics.json"
    differs = [name for name in RUN if file.exists() and _fact(file, name) != facts[name]]
    if differs and given:
        raise FedflowError(
            f"{folder} holds results of another run (other {', '.join(differs)}): "
            "name another folder with --out, or delete it"
        )
    if differs:
        say(f"{folder}: results of another run (other {', '.join(differs)}) are replaced")


def _facts(experiment: Experiment) -> dict[str, Any]:
    """Which run this is, in every one of its result files."""
    return {
        "partition": experiment.partition,
        "method": experiment.method,
        "method_label": experiment.job.method.label,
        "dataset": experiment.dataset,
        "model": experiment.params.model(experiment.dataset).name,
        "seed": experiment.seed,
        "settings": experiment.settings,
        "data_hash": _fact(experiment.prepared_folder / "meta.json", "hash"),
        "partition_hash": _fact(experiment.partition_folder / "summary.json", "hash"),
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
    """How the models of this run are built again."""
    dataset, model = load_prepared(experiment.prepared_folder), experiment.params.model(experiment.dataset)
    normalises = bool(dataset.mean) and not dataset.by_domain
    renamed = load_partition(experiment.partition_folder).classes
    return ModelCard(
        architecture=model.name,
        options=model.options,
        input_shape=dataset.input_shape,
        classes=tuple(map(str, range(renamed))) if renamed else dataset.classes,
        mean=dataset.mean if normalises else None,
        std=dataset.std if normalises else None,
        input_type="uint8" if normalises else "int64" if dataset.x_train.dtype == torch.int32 else "float32",
        method=experiment.method,
        partition=experiment.partition,
        serves=experiment.job.method.serves,
        seed=experiment.seed,
    )


def _recorded_params(experiment: Experiment, compiled: str) -> dict[str, Any]:
    params = experiment.params
    return experiment.effective | {
        "dataset": experiment.dataset,
        "run": params.run.as_dict(),
        "engine": params.engine.as_dict() | {"compiled": compiled},
        "seed": experiment.seed,
    }


@contextmanager
def _only_one(path: Path, experiment: Experiment) -> Iterator[None]:
    _make_writable(path.parent)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise FedflowError(f"{experiment.title} is already running in another process") from None
    try:
        yield
    finally:
        lock.release()


def _make_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise FedflowError(f"cannot write to {folder}: {error.strerror}") from error


def _whole(load: Callable[[], T]) -> T | None:
    """What ``load`` returns, None when its files are missing or damaged: then they are made again."""
    try:
        return load()
    except FedflowError:
        return None


def _stored(folder: Path, facts: str) -> Stored:
    """The folder, and the hash that its file ``facts`` records; no hash while it is not made."""
    return Stored(str(folder.resolve()), _fact(folder / facts, "hash") or "")


def _fact(path: Path, name: str) -> Any:
    try:
        return json.loads(path.read_text())[name]
    except (OSError, ValueError, KeyError, TypeError):
        return None
