"""Base of methods whose clients prune their networks: the server averages what is kept."""

import warnings
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedflow.errors import BadInput
from fedflow.local.client import Client, Update
from fedflow.local.masks import mask_distance, next_rate, pruned_share, without_smallest
from fedflow.local.optimizer import Moving
from fedflow.local.samples import Batch
from fedflow.local.task import Loss
from fedflow.methods.method import Cohort, Conditions, GlobalModel, Initial, Method, Next, Passes, Round
from fedflow.methods.protocols import Pruning, Recording, Selecting
from fedflow.models.flat import FlatModel
from fedflow.settings import option


class Epochs(NamedTuple):
    """State of training: the vector, its value ``first`` [D] after the first epoch, and steps taken."""

    now: Moving
    first: Tensor
    steps: int = 0


class Trained(NamedTuple):
    """Masked vectors [D] after the first and after the last local epoch."""

    first: Tensor
    last: Tensor


class Pruned(Pruning, Recording, Selecting, Method[GlobalModel]):
    """Clients keep a mask and their last model, with which they are served.

    A pruning step drops the smallest weights of each tensor. It is taken if the masks after the first and the
    last epoch differ enough, the target is not reached, and the smaller network is accurate enough. ``never``
    has the effect of a threshold above 1, by option, and ``off`` the settings that prune nothing.
    """

    serves = "personal"
    newcomer: ClassVar[Mapping[str, str]] = {"model": "model"}
    serves_with = ("model",)
    masks: ClassVar[Mapping[str, str]] = {"model": "mask"}
    series: ClassVar[tuple[str, ...]] = ("pruned", "gate_kept")
    records: ClassVar[tuple[str, ...]] = ("mask",)
    never: ClassVar[Mapping[str, str]] = {"threshold": "no client prunes", "distance": "no client prunes"}
    off: ClassVar[str] = "method.target: 0"

    rate: float = option(
        0.1, "share of a tensor's kept weights that a step drops", symbol="r_us", gt=0, lt=1, grid=(0.05, 0.1)
    )
    target: float = option(
        0.5, "pruned share at which pruning ends; 0 = none", symbol="p_us", ge=0, lt=1, grid=(0.3, 0.5, 0.7)
    )
    threshold: float = option(
        0.5, "least accuracy of the smaller network; above 1 = no pruning", symbol="Acc_th", ge=0
    )
    distance: float = option(
        1e-4, "least distance of the two masks; above 1 = no pruning", symbol="eps_us", ge=0, source="text"
    )
    gate: str = option(
        "selection",
        "samples that measure this accuracy; with test, training sees the test set",
        choices=("selection", "train", "test"),
    )

    def check(self, run: Conditions) -> None:
        for name, effect in self.never.items():
            if self.gates() and getattr(self, name) > 1:
                warnings.warn(f"{self.name}: {effect}, as method.{name} is above 1", stacklevel=2)
        training = run.training
        by = f"with {self.name}, which compares the masks after the first and the last epoch"
        if self.gates() and training.steps is not None:
            raise BadInput("training.steps", training.steps, f"null {by}")
        if self.gates() and training.epochs == 1:
            raise BadInput("training.epochs", 1, f"at least 2 {by}; or {self.off}")

    def selects(self) -> str:
        return "method.gate to train or test" if self.gates() and self.gate == "selection" else ""

    def selects_on_test(self) -> bool:
        return bool(self.gates()) and self.gate == "test"

    def work(self, now: Round, server: GlobalModel, epochs: float, steps: int) -> Passes:
        measured = self.gates() + 1 if self.gates() else 0  # and the network that the client keeps
        return Passes(epochs, losses=measured if self.gate == "train" else 0)

    def gates(self) -> int:
        """Number of networks whose accuracy a client measures in a round."""
        return int(self.target > 0)

    def prunable(self, model: FlatModel) -> Sequence[str]:
        """Names of the tensors whose entries are pruned one by one."""
        return model.weights

    def setup(self, model: FlatModel, initial: Initial) -> GlobalModel:
        if self.rate and self.target and not self.prunable(model):
            accepted = f"0, as the network has no weights that {self.name} prunes"
            raise BadInput("method.target", self.target, accepted)
        return GlobalModel(initial(0))

    def client_state(self, model: FlatModel, initial: Tensor) -> dict[str, Tensor]:
        return {"model": initial, "mask": torch.ones_like(initial, dtype=torch.bool)}

    def train(self, client: Client, start: Tensor, mask: Tensor, loss: Loss | None = None) -> Trained:
        """Local training from ``start`` [D] under ``mask`` [D]: entries outside it are 0 and stay 0.

        ``loss`` is the objective of `Trainer.gradient`.
        """
        epoch, pruned = client.training.epoch_steps(client.samples), ~mask

        def step(at: Epochs, batch: Batch) -> tuple[Epochs, Tensor]:
            plain = client.gradient(at.now.w, batch, loss)
            masked = plain._replace(gradient=plain.gradient.masked_fill(pruned, 0))
            now, steps = client.descend(at.now, masked), at.steps + 1
            return Epochs(now, now.w.where(steps <= epoch, at.first), steps), plain.loss

        # Not `where` with a number, which a captured graph would have to copy to the GPU.
        start = start.masked_fill(pruned, 0)
        now, first, _ = client.run_steps(step, Epochs(client.initial_state(start), start))
        return Trained(first, now.w)

    def prune(self, client: Client, trained: Trained, mask: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The mask [D] after a pruning step, or ``mask`` if none is due; and diagnostics."""
        model, w = client.model, trained.last
        names, pruned = self.prunable(model), pruned_share(model, mask)
        first, last = (without_smallest(model, v, mask, self.rate, names) for v in trained)
        moved = mask_distance(model, first, last, names)
        # With less left than a step drops, the rate is left / (1 - pruned), which grows with what is left.
        largest = max(self.rate, self.rate / (1 - self.target + self.rate))
        fewer = without_smallest(model, w, mask, self.next_rate(pruned), names, largest)
        accuracy = self.accuracy(client, w.masked_fill(~fewer, 0))
        due = (accuracy >= self.threshold) & (pruned < self.target) & (moved >= self.distance)
        return fewer.where(due, mask), {"distance": moved, "gate": accuracy}

    def next_rate(self, pruned: Tensor) -> Tensor:
        """The rate of the next step if this share of all parameters is ``pruned``, scalar."""
        return next_rate(self.rate, self.target, pruned)

    def accuracy(self, client: Client, w: Tensor) -> Tensor:
        """Accuracy of ``w`` [D] on the samples of the gate, scalar."""
        return client.full_accuracy(w) if self.gate == "train" else client.selection_accuracy(w)

    def send(self, client: Client, w: Tensor, mask: Tensor, diagnostics: Mapping[str, Tensor]) -> Update:
        """The update with ``w`` [D] under ``mask`` [D], both of which the client keeps.

        ``gate_kept`` is the accuracy of the network that it keeps, pruned in this round or not.
        """
        client.trained = w = w.masked_fill(~mask, 0)
        diagnostics = {"pruned": pruned_share(client.model, mask), **diagnostics}
        if self.gates():
            diagnostics["gate_kept"] = self.accuracy(client, w)
        keep = {"model": w, "mask": mask}
        return client.update(model=w, mask=mask, weight=1.0, keep=keep, diagnostics=diagnostics)

    def aggregate(self, now: Round, server: GlobalModel, cohort: Cohort) -> Next[GlobalModel]:
        """Average every entry over the clients that keep it; without any, it does not change."""
        share = cohort.mean("mask")
        return GlobalModel((cohort.mean("model") / share).where(share > 0, server.model)), {}

    def model_for(self, client: Client) -> Tensor:
        return client.kept["model"]
