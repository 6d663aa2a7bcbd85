"""Central training: one network on all training samples, without clients.

It makes teachers (`training.objective`), experts, whose losses measure the difficulty of samples, and a
reference for the accuracy of federated training.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedflow.data.examples import Examples
from fedflow.errors import BadInput, FedflowError
from fedflow.local.local_training import LocalTraining
from fedflow.local.samples import Samples
from fedflow.local.trainer import Trainer
from fedflow.models.flat import FlatModel
from fedflow.seeding import generator, torch_seed
from fedflow.settings import Settings, option, shown

# Settings of clients and rounds, which have no meaning here.
NEUTRAL = {"stragglers": 0.0, "drop_stragglers": False, "least_epochs": 1, "steps": None}


class CentralTraining(LocalTraining):
    """Local training with the usual values of an expert.

    An epoch counts as a round for ``lr_decay``; ``lr_within`` restarts in every epoch.
    """

    epochs: int = option(10, "epochs", symbol="E", ge=1, source="Curriculum-FL")
    batch_size: int = option(64, "samples per batch; 0 = full gradient", symbol="B", ge=0, le=10**9)
    lr: float = option(0.01, "learning rate", symbol="eta", gt=0)
    momentum: float = option(0.9, "SGD momentum", symbol="rho", ge=0, lt=1)

    def validate(self) -> None:
        for name, value in NEUTRAL.items():
            given = getattr(self, name)
            if given != value:
                accepted = f"{'null' if value is None else value}, as one network has no clients or rounds"
                raise BadInput(f"training.{name}", shown(given), accepted)
        super().validate()
        self.check_central()


class Central(Settings):
    """Training of one network on all samples."""

    section = "central"
    seed: int = option(0, "seed of the initial network, and of order and views of the samples", ge=0)
    schedule: str = option(
        "constant",
        "learning rate of epoch e of E; cosine = lr (1 + cos(pi (e - 1) / E)) / 2",
        choices=("constant", "cosine"),
        source="side losses: cosine from 0.1",
    )
    label_smoothing: float = option(
        0.0,
        "share of each target that is divided among all classes",
        ge=0,
        lt=1,
        source="Curriculum-FL's code: 0.1",
    )
    training: CentralTraining = option(factory=CentralTraining, doc="SGD on all samples")

    def lr_in(self, epoch: int) -> float:
        """The learning rate of an epoch, from 1."""
        lr, share = self.training.lr_in(epoch), (epoch - 1) / self.training.epochs
        return lr * (1 + math.cos(math.pi * share)) / 2 if self.schedule == "cosine" else lr


class SmoothedModel(FlatModel):
    """A network whose loss in training is cross-entropy with smoothed labels."""

    def __init__(self, *given: Any, smoothing: float, **options: Any) -> None:
        super().__init__(*given, **options)
        if hasattr(self._template, "losses"):
            raise BadInput("central.label_smoothing", smoothing, "0, as this network has its own loss")
        self.smoothing = smoothing

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        if y.dtype != torch.int64:
            accepted = "0, as samples of these data have no single label"
            raise BadInput("central.label_smoothing", self.smoothing, accepted)
        return nn.functional.cross_entropy(outputs, y, reduction="none", label_smoothing=self.smoothing)

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return self.losses(outputs, y).mean()


class Epoch(NamedTuple):
    """The end of an epoch: its numbers by name, and the state of the optimizer, for a checkpoint."""

    number: int
    values: dict[str, float]  # lr, train_loss, test_loss, test_accuracy (absent for regression)
    w: Tensor
    state: dict[str, Tensor]


def epochs(
    model: FlatModel,
    train: Examples,
    test: Examples,
    settings: Central,
    inputs: Mapping[str, Any] | None = None,
    done: int = 0,
    state: Mapping[str, Tensor] | None = None,
) -> Iterator[Epoch]:
    """Train on all of ``train``; yields after every epoch.

    With the ``state`` after ``done`` epochs, it resumes from there with the same bits: the random numbers of
    every epoch have their own key. Raises `FedflowError` if the training diverges.
    """
    training, seed, now = settings.training, settings.seed, None
    for number in range(done + 1, training.epochs + 1):
        lr = settings.lr_in(number)
        rng = generator(seed, "batches/central", number)
        trainer = Trainer.central(model, train, replace(training, epochs=1), rng, lr=lr, inputs=inputs)
        if now is None:
            now = trainer.initial_state(model.init(torch_seed(seed, "central")))
            now = _restored(now, state, model.device) if state else now
        now = trainer.run_steps(trainer.step, now)
        losses, hits = evaluate(model, now.w, test)
        if not (now.w.isfinite().all() and trainer.train_loss.isfinite() and np.isfinite(losses).all()):
            raise FedflowError(f"diverged in epoch {number} at learning rate {lr:g}; try a smaller one")
        values = {"lr": lr, "train_loss": trainer.train_loss.item(), "test_loss": float(losses.mean())}
        if not np.isnan(hits).any():
            values["test_accuracy"] = float(hits.mean())
        yield Epoch(number, values, now.w, _packed(now))


@torch.no_grad()
def evaluate(model: FlatModel, w: Tensor, examples: Examples) -> tuple[np.ndarray, np.ndarray]:
    """Loss and hit (1, 0; NaN for regression) of every sample [n], float64, without label smoothing."""
    losses, hits = [], []
    for batch in Samples.all_of(examples).chunks(model.dtype):
        outputs = model.outputs(w, batch.x)
        losses.append(FlatModel.losses(model, outputs, batch.y).double())
        hits.append(model.hits(outputs, batch.y).double())
    return torch.cat(losses).cpu().numpy(), torch.cat(hits).cpu().numpy()


def _packed(state: Any) -> dict[str, Tensor]:
    """The fields of an optimizer's state, a named tuple; counts become tensors."""
    return {name: torch.as_tensor(value) for name, value in state._asdict().items() if value is not None}


def _restored(like: Any, saved: Mapping[str, Tensor], device: torch.device) -> Any:
    """The state that was `_packed`; ``like`` is another one of this optimizer."""
    fields = {
        name: saved[name].to(device) if isinstance(value, Tensor) else type(value)(saved[name].item())
        for name, value in like._asdict().items()
        if value is not None
    }
    return like._replace(**fields)
