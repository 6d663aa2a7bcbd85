"""Settings of local training that all methods share."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from math import prod
from typing import Any, NamedTuple, Self, cast

import numpy as np

from fedflow.data.examples import Examples
from fedflow.errors import BadInput
from fedflow.local.extensions.adaptation import Adaptation
from fedflow.local.extensions.augmentation import Augmentation
from fedflow.local.extensions.curriculum import Curriculum
from fedflow.local.extensions.extension import REGISTERED, Extension, Reads, named
from fedflow.local.extensions.objective import Objective
from fedflow.local.schedule import Pass
from fedflow.models.flat import FlatModel
from fedflow.settings import Settings, option, shown

BETAS = [0.9, 0.999]  # of adam
EXTENSIONS: tuple[type[Extension], ...] = (  # the loss of the first one is the outermost
    Augmentation,
    Adaptation,
    Objective,
    Curriculum,
)


class Workload(NamedTuple):
    """Local steps tau of one client, and the samples whose gradients are computed in them."""

    steps: int
    samples: int


class LocalTraining(Settings):
    """Local training of one client in one round. The state of the optimizer is reset in every round.

    BatchNorm cannot normalize a batch with one value per channel. Such a batch of one sample takes its step
    in evaluation mode: with the running statistics, which do not change, and without dropout.

    ``augment`` changes the images of all steps on batches, also in fine-tuning and on the server. Losses and
    gradients over all samples of a client, model selection and scores see the images as they are.
    ``objective`` replaces the data loss in all gradients of clients; fine-tuning, losses and scores keep the
    data loss. ``adaptation`` changes all steps on batches; fine-tuning, and losses over all samples, by which
    clients choose a cluster or methods weigh clients, use the model as it is.
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
        None, "side losses added to the data loss: robustness, distillation, or both; null = none"
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
    extensions: dict[str, Extension] = option(
        factory=dict, doc="options of registered extensions, for example of plug-ins, by name; null = none"
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

    @classmethod
    def check_names(cls, values: Mapping[str, Any], section: str) -> None:
        """As `Settings.check_names`; options of registered extensions are below ``extensions``."""
        if name := next((name for name in values if name in REGISTERED), ""):
            raise BadInput(f"{section}.{name}", values[name], f"it as {section}.extensions.{name}")
        super().check_names(values, section)

    def validate(self) -> None:
        object.__setattr__(self, "extensions", named(self.extensions))
        if self.steps is not None:
            self.refuse_unused("with steps", "epochs")
        if self.steps is not None and self.stragglers:
            raise BadInput("training.stragglers", self.stragglers, "0 with steps, as stragglers train epochs")
        if self.optimizer == "adam" and self.momentum:
            raise BadInput("training.momentum", self.momentum, "0 with optimizer: adam")
        if len(self.betas) != 2:
            raise BadInput("training.betas", self.betas, "two numbers, for both moments")
        if self.optimizer != "adam":
            self.refuse_unused("without optimizer: adam", "betas")
        if self.lr_decay == 1:
            self.refuse_unused("with lr_decay: 1", "lr_decay_every")
        if self.lr_within is not None and len(self.lr_within) != 2:
            raise BadInput("training.lr_within", self.lr_within, "null or two numbers, [a, b]")
        if not self.stragglers:
            self.refuse_unused("with stragglers: 0", "drop_stragglers", "least_epochs")
        if self.stragglers == 1 and self.drop_stragglers:
            raise BadInput("training.stragglers", self.stragglers, "less than 1 with drop_stragglers")
        if self.stragglers and not self.drop_stragglers and self.least_epochs >= self.epochs:
            raise BadInput("training.least_epochs", self.least_epochs, f"less than epochs, {self.epochs}")
        for extension in self.in_use:
            extension.check_training(self)

    @cached_property
    def in_use(self) -> tuple[Extension, ...]:
        """All extensions of this training: in the order of `EXTENSIONS`, then the registered ones by name."""
        of_keys = (kind.of(self) for kind in EXTENSIONS)
        registered = (self.extensions[name] for name in sorted(self.extensions))
        return (*(extension for extension in of_keys if extension is not None), *registered)

    def with_hook(self, name: str) -> tuple[Extension, ...]:
        """The extensions with their own version of this hook of `Extension`."""
        usual = getattr(Extension, name)
        return tuple(e for e in self.in_use if getattr(type(e), name) is not usual)

    @property
    def tuning(self) -> Self:
        """This training as fine-tuning has it, without extensions that belong to training only."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        without = {
            name: None for name, value in values.items() if isinstance(value, Extension) and not value.tuned
        }
        tuned = {name: extension for name, extension in self.extensions.items() if extension.tuned}
        return replace(self, **cast(Any, without | {"extensions": tuned}))

    @property
    def reads(self) -> tuple[Reads, ...]:
        return tuple(network for extension in self.in_use for network in extension.reads)

    @property
    def gradients(self) -> int:
        """Gradients of a batch in one local step."""
        return prod(extension.gradients for extension in self.in_use)

    @property
    def evaluations(self) -> int:
        """Passes over all samples, without gradients, at the start of every training."""
        return sum(extension.evaluations for extension in self.in_use)

    def check(self, model: FlatModel, examples: Examples, inputs: Mapping[str, Any] | None = None) -> None:
        """Raise `BadInput` unless its extensions fit ``model``, ``examples`` and the ``inputs`` they read."""
        for extension in self.in_use:
            extension.check(model, examples, inputs or {})

    def check_central(self) -> None:
        """Raise `BadInput` for extensions that one network, trained on all samples, cannot have."""
        for extension in self.in_use:
            if extension.needs_clients:
                raise extension.refused("in central training, as one network has no clients or rounds")

    def warnings(self, sizes: Sequence[int], epochs: Sequence[int]) -> Iterator[str]:
        """Warnings about a run whose clients have ``sizes`` samples and train for ``epochs`` by stream."""
        for extension in self.in_use:
            yield from extension.warnings(self, sizes, epochs)

    def need_sgd(self, by: str, why: str) -> None:
        """Raise `BadInput` unless local steps are of SGD, which the method ``by`` this name needs."""
        if self.optimizer != "sgd":
            raise BadInput("training.optimizer", self.optimizer, f"sgd with {by}, {why}")

    def need_no_adaptation(self, by: str, why: str) -> None:
        """Raise `BadInput` if there is an adaptation, which the method ``by`` this name would ignore."""
        if self.adaptation is not None:
            raise BadInput("training.adaptation", shown(self.adaptation), f"null with {by}, {why}")

    def dropped(self, clients: int) -> int:
        """The number of stragglers that are dropped from a cohort of ``clients`` (m)."""
        return self._stragglers(clients) if self.drop_stragglers else 0

    def _stragglers(self, clients: int) -> int:
        return int(self.stragglers * clients + 1e-9)

    def draw_stragglers(self, cohort: np.ndarray, rng: np.random.Generator) -> dict[int, int]:
        """The stragglers of a cohort [m], and the epochs that each has time for."""
        count = self._stragglers(len(cohort))
        chosen = rng.choice(np.sort(cohort), size=count, replace=False)
        epochs = rng.integers(self.least_epochs, max(self.least_epochs, self.epochs), count, endpoint=True)
        return dict(zip(chosen.tolist(), epochs.tolist()))

    def lr_in(self, round: int) -> float:
        """The learning rate of a round, from 1; the onboarding, round 0, has the rate of the first."""
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
        for extension in self.in_use:
            if (steps := extension.epoch_steps(samples, self.batch_size)) is not None:
                return steps
        return self.batches(samples)

    @property
    def paced(self) -> bool:
        """True if an extension decides the passes over the samples."""
        return bool(self.with_hook("passes"))

    @property
    def compares(self) -> bool:
        """True if clients need the model that they trained last."""
        return any(extension.compares for extension in self.in_use)

    def passes(self, samples: int, epochs: int) -> Sequence[Pass]:
        """The passes over all samples, or of an extension, in K steps or ``epochs`` epochs."""
        batches, size = self.epoch_steps(samples), self.batch_size or samples
        steps = epochs * batches if self.steps is None else self.steps
        for extension in self.in_use:
            if (passes := extension.passes(samples, size, steps)) is not None:
                return passes
        whole, rest = divmod(steps, batches)
        return [Pass(samples, batches)] * whole + [Pass(samples, rest)] * (rest > 0)

    def workload(self, samples: int, epochs: int | None = None) -> Workload:
        """The work of one training on ``samples`` samples: K steps, or ``epochs`` epochs (default: E)."""
        passes = self.passes(samples, self.epochs if epochs is None else epochs)
        seen = (min(prefix, steps * (self.batch_size or samples)) for prefix, steps in passes)
        return Workload(sum(steps for _, steps in passes), sum(seen))
