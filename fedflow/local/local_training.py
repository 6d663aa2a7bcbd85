"""Settings of local training that all methods share."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedflow.data.examples import Examples
from fedflow.errors import BadInput
from fedflow.local.adaptation import Adaptation
from fedflow.local.augment import CUTOUT
from fedflow.local.curriculum import Curriculum, Pass
from fedflow.local.objective import Objective
from fedflow.local.teacher import Teacher
from fedflow.models.flat import FlatModel
from fedflow.settings import Settings, option, shown

BETAS = [0.9, 0.999]  # of adam


class Workload(NamedTuple):
    """Local steps tau of one client, and the samples whose gradients are computed in them."""

    steps: int
    samples: int


class LocalTraining(Settings):
    """Local training of one client in one round. The state of the optimizer is reset in every round.

    BatchNorm cannot normalize a batch with one value per channel. Such a batch of one sample takes its step
    in evaluation mode: with the running statistics, which do not change, and without dropout.

    ``augment`` changes the images of all steps on batches, also those of fine-tuning and of a server's own
    training. Losses and gradients over all samples of a client, model selection and scores see the images as
    they are. ``objective`` replaces the data loss in all gradients of clients; fine-tuning, losses and scores
    keep the data loss. ``adaptation`` changes all steps on batches; losses over all samples, by which clients
    choose a cluster or methods weigh clients, and fine-tuning are those of the model as it is.
    """

    section = "training"
    epochs: int = option(1, "local epochs", symbol="E", ge=1)
    steps: int | None = option(
        None,
        "local steps of every training in place of epochs, the last of which may be incomplete",
        symbol="K",
        ge=1,
        source="SCAFFOLD, Algorithm 1",
    )
    batch_size: int = option(
        10, "samples per batch; the last one may be smaller; 0 = full gradient", symbol="B", ge=0, le=10**9
    )
    lr: float = option(0.05, "client learning rate", symbol="eta", gt=0)
    optimizer: str = option(
        "sgd",
        "takes the local steps: sgd, or adam with weight decay in the gradient and eps 1e-8",
        choices=("sgd", "adam"),
    )
    momentum: float = option(0.0, "SGD momentum", symbol="rho", ge=0, lt=1)
    betas: list[float] = option(factory=BETAS.copy, doc="decay of the two moments of adam", ge=0, lt=1)
    weight_decay: float = option(0.0, "L2 penalty in the gradient", ge=0)
    clip_norm: float | None = option(
        None, "largest norm of a gradient, without weight decay; longer ones are scaled down", gt=0
    )
    augment: str = option(
        "none",
        "random views of images: mirrored; shifted by up to 4 pixels, zero outside; a hole of 16x16",
        choices=("none", "flip_crop", "flip_crop_cutout"),
        source="FedDyn: flip_crop on CIFAR",
    )
    objective: Objective | None = option(
        None, "side losses beside the data loss: robustness, distillation, or both; null = none"
    )
    adaptation: Adaptation | None = option(
        None,
        "clients minimize the loss of the model after adaptation to other own samples; null = none",
        source="PFL",
    )
    curriculum: Curriculum | None = option(
        None,
        "local steps see a growing prefix of the samples, sorted by difficulty; null = all samples",
        source="Curriculum-FL",
    )
    precision: str = option(
        "float32",
        "of matrix products: tf32 rounds their factors on GPUs that support it, bf16 on all devices",
        choices=("float32", "tf32", "bf16"),
    )
    lr_decay: float = option(
        1.0, "factor on lr after every round; other learning rates of a method do not decay", gt=0, le=1
    )
    lr_decay_every: int = option(1, "rounds between these factors", ge=1, source="FedEvg: 50")
    lr_within: list[float] | None = option(
        None,
        "[a, b]: local step i, from 0 in every training, has the rate lr (1 + a i)^-b; other "
        "learning rates of a method do not change",
        ge=0,
    )
    stragglers: float = option(
        0.0,
        "share of a cohort, rounded down, whose epochs are random in a round, from least_epochs to E",
        ge=0,
        le=1,
        grid=(0, 0.5, 0.9),
        source="FedProx, section 5.2; FedNova: 1",
    )
    least_epochs: int = option(1, "fewest epochs of a straggler", ge=1, source="FedProx: 1; FedNova: 2 of 5")
    drop_stragglers: bool = option(
        False, "drop stragglers from the cohort", source="FedAvg as compared with FedProx"
    )

    def validate(self) -> None:
        if self.steps is not None and self.epochs != 1:
            raise BadInput("training.epochs", self.epochs, "1, its default, with steps")
        if self.steps is not None and self.stragglers:
            raise BadInput("training.stragglers", self.stragglers, "0 with steps, as stragglers train epochs")
        if self.optimizer == "adam" and self.momentum:
            raise BadInput("training.momentum", self.momentum, "0 with optimizer: adam")
        if len(self.betas) != 2:
            raise BadInput("training.betas", self.betas, "two numbers, for both moments")
        if self.optimizer != "adam" and self.betas != BETAS:
            raise BadInput("training.betas", self.betas, f"{BETAS}, its default, without optimizer: adam")
        if self.lr_decay_every > 1 and self.lr_decay == 1:
            raise BadInput("training.lr_decay_every", self.lr_decay_every, "1, its default, with lr_decay: 1")
        if self.lr_within is not None and len(self.lr_within) != 2:
            raise BadInput("training.lr_within", self.lr_within, "null or two numbers, [a, b]")
        if self.stragglers == 1 and self.drop_stragglers:
            raise BadInput("training.stragglers", self.stragglers, "less than 1 with drop_stragglers")
        if self.stragglers and not self.drop_stragglers and self.least_epochs >= self.epochs:
            raise BadInput("training.least_epochs", self.least_epochs, f"less than epochs, {self.epochs}")
        lazy = self.curriculum is not None and self.curriculum.mode == "lazy_epoch"
        if lazy and (not self.batch_size or self.steps is not None):
            why = "steps" if self.batch_size else "batch_size 0"
            raise BadInput("training.curriculum.mode", "lazy_epoch", f"queue or per_step with training.{why}")
        if self.adaptation is not None and self.curriculum is not None:
            accepted = "null with training.adaptation, whose support are samples of all difficulties"
            raise BadInput("training.curriculum", shown(self.curriculum), accepted)
        proto = self.adaptation is not None and self.adaptation.name == "proto"
        if proto and self.objective is not None and self.objective.taught:
            accepted = "null or robust with proto, which excludes classes that a teacher may predict"
            raise BadInput("training.objective", self.objective.name, accepted)
        if self.objective is not None and self.objective.two_views and self.augment == "none":
            accepted = f"flip_crop or flip_crop_cutout, as {self.objective.name} compares two random views"
            raise BadInput("training.augment", self.augment, accepted)

    @property
    def views(self) -> int:
        """Random views of each sample in a step, if there are any."""
        return 1 + (self.objective is not None and self.objective.two_views)

    def check(self, model: FlatModel, examples: Examples, teacher: Teacher | None = None) -> None:
        """Raise `BadInput` unless this training can augment ``examples`` and its objective fits the networks.

        Only images [C, H, W] can be augmented, and Cutout must not hide a whole one.
        """
        if self.augment != "none" and examples.x.ndim != 4:
            shape = list(examples.x.shape[1:])
            raise BadInput(
                "training.augment", self.augment, f"none, as inputs of shape {shape} are not images"
            )
        height, width = examples.x.shape[-2:] if examples.x.ndim == 4 else (0, 0)
        if self.augment == "flip_crop_cutout" and min(height, width) <= CUTOUT:
            accepted = f"none or flip_crop, as Cutout can hide a whole image of {height}x{width}"
            raise BadInput("training.augment", self.augment, accepted)
        if self.objective is not None:
            self.objective.check(model, examples, teacher)
        if self.adaptation is not None:
            self.adaptation.check(model, examples)

    def need_sgd(self, by: str, why: str) -> None:
        """Raise `BadInput` unless local steps are those of SGD, which the method ``by`` this name needs."""
        if self.optimizer != "sgd":
            raise BadInput("training.optimizer", self.optimizer, f"sgd with {by}, {why}")

    def need_no_adaptation(self, by: str, why: str) -> None:
        """Raise `BadInput` if there is an adaptation, which the method ``by`` this name would ignore."""
        if self.adaptation is not None:
            raise BadInput("training.adaptation", shown(self.adaptation), f"null with {by}, {why}")

    def draw_stragglers(self, cohort: np.ndarray, rng: np.random.Generator) -> dict[int, int]:
        """The stragglers of a cohort [m], and the epochs that each has time for."""
        count = int(self.stragglers * len(cohort) + 1e-9)
        chosen = rng.choice(np.sort(cohort), size=count, replace=False)
        epochs = rng.integers(self.least_epochs, max(self.least_epochs, self.epochs), count, endpoint=True)
        return dict(zip(chosen.tolist(), epochs.tolist()))

    def lr_in(self, round: int) -> float:
        """The learning rate of a round; rounds count from 1; the onboarding has that of the first."""
        return self.lr * self.lr_decay ** (max(0, round - 1) // self.lr_decay_every)

    def lr_factor(self, step: Any) -> Any:
        """eta_i / eta of local step i = ``step``, a number or a tensor [.]."""
        if self.lr_within is None:
            return 1.0
        a, b = self.lr_within
        return (1 + a * step) ** -b

    def batches(self, samples: Any) -> Any:
        """Batches in one pass over ``samples`` samples, a number or a tensor [.]: ceil(n / B)."""
        return -(-samples // (self.batch_size or samples))

    def epoch_steps(self, samples: Any) -> Any:
        """Local steps of one epoch on ``samples`` samples, a number or a tensor [.]."""
        if self.curriculum is not None and self.curriculum.mode == "lazy_epoch":
            return samples // self.batch_size + 1
        return self.batches(samples)

    @property
    def compares(self) -> bool:
        """Whether clients need the model that they trained last."""
        return self.curriculum is not None and self.curriculum.compares

    def passes(self, samples: int, epochs: int) -> Sequence[Pass]:
        """The passes over all samples, or a curriculum's over prefixes, in K steps or ``epochs`` epochs."""
        batches, size, curriculum = self.epoch_steps(samples), self.batch_size or samples, self.curriculum
        steps = epochs * batches if self.steps is None else self.steps
        if curriculum is not None:
            return curriculum.passes(samples, size, steps)
        whole, rest = divmod(steps, batches)
        return [Pass(samples, batches)] * whole + [Pass(samples, rest)] * (rest > 0)

    def workload(self, samples: int, epochs: int | None = None) -> Workload:
        """The work of one training on ``samples`` samples: K steps, or ``epochs`` epochs (default: E)."""
        passes = self.passes(samples, self.epochs if epochs is None else epochs)
        shown = (min(each.prefix, each.steps * (self.batch_size or samples)) for each in passes)
        return Workload(sum(each.steps for each in passes), sum(shown))
