"""Trains a network on all prepared samples: a teacher, an expert, a reference."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from fedflow.config import CentralParams, ModelParams, Params
from fedflow.data import Dataset, Examples, load_prepared
from fedflow.errors import BadInput, FedflowError
from fedflow.files import central_folder, intact, locked, prepared_folder, write_json
from fedflow.local.central_training import Central, SmoothedModel, epochs, evaluate
from fedflow.local.precision import use_plain_products
from fedflow.local.trained import load_network, save_network
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.models.registry import adapted
from fedflow.models.start import without_start
from fedflow.procedures.interface import Row, State
from fedflow.procedures.steps import Here
from fedflow.project.digest import digest
from fedflow.project.identity import FILE as IDENTITY
from fedflow.project.identity import Identity, versions
from fedflow.project.running import LOCKS
from fedflow.project.terminal import say
from fedflow.simulation.checkpoint import drop_checkpoint
from fedflow.simulation.executors import Inline
from fedflow.simulation.fits import need_fit
from fedflow.stages.driver import Description, Result, outdated
from fedflow.stages.experiment import contents, pick_device, recorded_inputs
from fedflow.stages.prepare import prepare_dataset
from fedflow.stages.started import start_files, started
from fedflow.stages.steps import Listener, PartWork, Progress, run_parts
from fedflow.tracking.models import ModelCard
from fedflow.tracking.record import Record

TABLE = "epochs.csv"
FINAL = ("parameters", "train_loss", "test_loss", "test_accuracy")  # metrics of the end


def prepare_network(
    params: Params,
    name: str,
    root: Path = Path(),
    prepare: Callable[..., Any] = prepare_dataset,
    listeners: Sequence[Listener] = (),
    opened: Callable[[Record], None] = lambda record: None,
) -> Path:
    """Make ``data/central/<name>`` unless it exists, intact, from the same data, settings and code.

    Its dataset and its teachers are made first if necessary. An interrupted training resumes from its last
    epoch. One MLflow run is recorded; ``opened`` is called with it before the first epoch. Returns the
    folder. Raises `FedflowError`, for example if the training diverges.
    """
    params.network(name)
    for needed in params.networks(name):
        prepare(params, params.network(needed).dataset, root)
        training = CentralRun(params, needed, root)
        waiting = partial(say, f"{training.title}: waiting for another process that trains it")
        with locked(root / LOCKS / f"central-{needed}", waiting):
            if not training.is_current():
                training.run(listeners, opened)
            drop_checkpoint(training.checkpoint)  # of a process that was killed after it recorded the end
    return central_folder(root, name)


def results(root: Path, name: str) -> dict[str, Any]:
    """The final metrics of a central network."""
    facts = load_network(central_folder(root, name)).facts
    return {metric: facts[metric] for metric in FINAL}


@dataclass(frozen=True)
class CentralRun:
    """The training of one central network, whose dataset and input networks exist."""

    params: Params
    name: str
    root: Path = Path()

    @property
    def title(self) -> str:
        return f"central · {self.name}"

    @property
    def folder(self) -> Path:
        return central_folder(self.root, self.name)

    @cached_property
    def settings(self) -> CentralParams:
        return self.params.network(self.name)

    @cached_property
    def network(self) -> ModelParams:
        return self.settings.model or self.params.model(self.settings.dataset)

    @cached_property
    def dataset(self) -> Dataset:
        return load_prepared(prepared_folder(self.root, self.settings.dataset))

    @property
    def identity(self) -> Identity:
        """The identity of the network, from settings, data, input networks and code."""
        settings = self.settings
        networks = [read.network for read in settings.training.reads]
        files = start_files(self.network.options)
        return Identity.of(
            {"central": settings.as_dict()},
            None,
            contents(self.root, [settings.dataset], networks=networks, files=files),
            [Central.__module__],
            [settings.training],
            [adapted(self.network.name, self.network.options)],
        )

    @cached_property
    def key(self) -> str:
        """Key of checkpoint and record: the name, the identity, and the builds of libraries here."""
        return digest([self.name, self.identity.on(libraries=versions()).key])

    @property
    def checkpoint(self) -> Path:
        return self.root / ".fedflow" / "checkpoints" / self.key

    def is_current(self) -> bool:
        """True if the network is intact, recorded, and was trained from the same identity."""
        exists = intact(lambda: load_network(self.folder)) is not None
        return exists and not outdated(self.folder, self.identity)

    def run(self, listeners: Sequence[Listener], opened: Callable[[Record], None]) -> None:
        """Train, record and write the network."""
        use_plain_products()
        settings, dataset, network = self.settings, self.dataset, self.network
        device = torch.device(pick_device(self.params.engine.device))
        options = started(network.options, self.root)
        factory = partial(build, network.name, dataset.input_shape, dataset.num_classes, **options)
        smoothing = settings.label_smoothing
        kind = partial(SmoothedModel, smoothing=smoothing) if smoothing else FlatModel
        if dataset.pooled:
            say(f"central.{self.name}: trained on the test samples of {settings.dataset} too")
        train, test = dataset.train.to(device), dataset.test.to(device)
        try:
            model = kind(factory, device=device)
            need_fit(model, train, network.name, len(dataset.classes))
            inputs = {
                read.name: load_network(central_folder(self.root, read.network)).read(
                    read.losses, device, model.dtype
                )
                for read in settings.training.reads
            }
            settings.training.check(model, train, inputs)
        except BadInput as error:
            field = f"central.{self.name}.{error.field.removeprefix('central.')}"
            raise error.renamed(field) from error
        steps = CentralSteps(model, train, test, settings, inputs, f"central.{self.name}")
        record = {
            "experiment": f"{settings.dataset}/central",
            "name": self.name,
            "params": {"central": settings.as_dict(), "device": str(device)},
            "tags": {"central": self.name, "dataset": settings.dataset, "seed": settings.seed},
            "datasets": recorded_inputs(self.root, [settings.dataset]),
        }
        work = PartWork(
            Here(steps, str(device)),
            Inline(),
            self.checkpoint,
            "epoch",
            lambda progress: self._result(model, train, progress),
            note=_note,
            seconds=0,  # an epoch is a block
        )
        described = Description(self.title, self.root, self.folder, self.identity, self.key, None, record)
        run_parts(described, work, listeners, opened)

    def _result(self, model: FlatModel, train: Examples, progress: Progress) -> Result:
        """The network after its last epoch; `FedflowError` if it diverged."""
        ((part, state),) = progress.states.items()
        assert state is not None
        w = state["w"].to(model.device)
        losses, _ = evaluate(model, w, train)
        if not np.isfinite(losses).all():
            count = np.count_nonzero(~np.isfinite(losses))
            reason = f"{count} training samples have no finite loss; try a smaller lr"
            raise FedflowError(f"central.{self.name}: diverged: {reason}")
        rows = [{"epoch": number} | row for number, row in enumerate(progress.rows[part], 1)]
        facts = self._facts(model, rows[-1])

        def write(folder: Path) -> None:
            identity = partial(write_json, value=self.identity.as_dict())
            table = partial(pd.DataFrame(rows).to_csv, index=False, float_format="%.9g")
            save_network(folder, w, losses, facts, {TABLE: table, IDENTITY: identity}, model.frozen)

        final = {metric: facts[metric] for metric in FINAL}
        return Result(final, len(rows), write, models={0: w}, card=self._card())

    def _facts(self, model: FlatModel, last: dict[str, Any]) -> dict[str, Any]:
        """The entries of ``metrics.json``, except the hash."""
        settings, network, dataset = self.settings, self.network, self.dataset
        return {
            "name": self.name,
            "dataset": settings.dataset,
            "model": network.name,
            "options": without_start(network.options),
            "input_shape": list(dataset.input_shape),
            "outputs": dataset.num_classes,
            "parameters": model.size,
            "train_samples": len(dataset.y_train),
            "epochs": settings.training.epochs,
            "seed": settings.seed,
            "train_loss": last["train_loss"],
            "test_loss": last["test_loss"],
            "test_accuracy": last.get("test_accuracy"),
            "data_hash": dataset.hash,
            "teacher": settings.teacher,
            "settings": settings.as_dict(),
        }

    def _card(self) -> ModelCard:
        """The card of the model, whose registered name is ``central.<name>``."""
        return ModelCard.of(
            self.dataset,
            self.network.name,
            started(self.network.options, self.root),
            partition="central",
            method=self.name,
            seed=self.settings.seed,
        )


@dataclass(frozen=True)
class CentralSteps:
    """The epochs of a central training, as steps of one part."""

    model: FlatModel
    train: Examples
    test: Examples
    settings: Central
    inputs: Mapping[str, Any]
    name: str

    def names(self) -> list[str]:
        return [""]

    def steps(self, part: str) -> int:
        return self.settings.training.epochs

    def start(self, part: str) -> State:
        return {}

    def step(self, part: str, state: State, number: int) -> tuple[State, Row]:
        given = (self.model, self.train, self.test, self.settings, self.inputs)
        try:
            epoch = next(epochs(*given, number - 1, state))
        except FedflowError as error:
            raise FedflowError(f"{self.name}: {error}") from error
        return epoch.state, epoch.values


def _note(values: Row) -> str:
    """One-line summary of an epoch."""
    name = "test_accuracy" if "test_accuracy" in values else "test_loss"
    return f"{name.replace('_', ' ')} {values[name]:.3f}"
