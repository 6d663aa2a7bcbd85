"""The protocol of an extension of local training, which changes local steps on the data loss.

An extension is a class in a file here, and a key of `LocalTraining`; or it is registered, as in plug-ins, and
a key of ``training.extensions``. The loop, schedules, cohorts and the simulation call its hooks and know no
extension by name. Every hook has a neutral default, and works in the loop and under ``torch.func.vmap``: with
tensor operations only, in shapes that do not depend on values.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeVar, cast

import numpy as np
from torch import Tensor

from fedflow.data.examples import Examples
from fedflow.errors import BadInput, unknown_name
from fedflow.local.samples import Batch, Samples
from fedflow.local.schedule import Extra, Pass, Schedule
from fedflow.models.flat import FlatModel
from fedflow.settings import Settings, Words, check_base, check_registrable, shown

Losses = Callable[[Tensor, Batch], tuple[Tensor, Tensor | None]]  # of w [D]: a loss, outputs if not compiled


class Reads(NamedTuple):
    """A network of `central` that an extension reads: ``field`` names it in the settings.

    Trainers have it as ``inputs[name]``: a `Teacher`, or its ``losses`` [n] on all training samples. If not
    ``needed`` with these settings, it is only checked.
    """

    name: str
    field: str
    network: str
    losses: bool = False
    needed: bool = True


class Host(Protocol):
    """A `Trainer`, as extensions see it.

    ``records`` are numbers that extensions add to the diagnostics. ``t`` is the number of the round, a scalar
    tensor from 1 to ``rounds``; both are 0 in central training.
    """

    model: FlatModel
    own: Samples
    samples: Tensor
    last: Tensor | None  # the model [D] of the client's last participation, or its stand-in
    records: dict[str, Tensor]
    rounds: int

    @property
    def t(self) -> Tensor: ...

    @property
    def inputs(self) -> Mapping[str, Any]: ...

    def train_outputs(
        self, w: Tensor, x: Tensor, real: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]: ...

    def data_gradient(self, w: Tensor, batch: Batch) -> Tensor: ...

    def features(self, w: Tensor, batch: Batch) -> Tensor: ...

    def full_gradient(self, w: Tensor, loss: Callable[[Tensor, Batch], Tensor] | None = None) -> Tensor: ...

    def in_float32(self) -> "Host": ...


@dataclass(frozen=True)
class Drawing:
    """The training of one client for which ``extensions`` draw.

    ``samples`` n of the client, its ``passes`` and their ``schedule``. ``rng(purpose)`` has its own key, so
    that no extension changes the draws of another; with ``every_stream``, it is the same for all streams.
    ``place`` is the client's in a random order of all (`fedflow.seeding.place`), 1 if there is none: an
    extension for a share of the clients is for the clients with a smaller place.
    """

    extensions: Sequence["Extension"]
    schedule: Schedule
    samples: int
    passes: Sequence[Pass]
    rng: Callable[..., np.random.Generator]
    place: float = 1.0

    def complete(self) -> Schedule:
        """The schedule with the draws of all extensions; ValueError if two draw the same name."""
        schedule = self.schedule
        for extension in self.extensions:
            drawn = extension.draw(self)
            if twice := drawn.keys() & {*schedule.extra, *schedule.further}:
                name = type(extension).__name__
                raise ValueError(f"{name} draws {', '.join(twice)}, which another one draws")
            schedule = schedule.having(drawn)
        return schedule

    def further(self, name: str, schedule: Schedule) -> Schedule:
        """Further batches, with the draws for samples in any batch; ``name`` starts their purposes."""
        return replace(
            self,
            extensions=[extension for extension in self.extensions if extension.for_samples],
            schedule=schedule,
            rng=lambda purpose: self.rng(f"{name} {purpose}"),
        ).complete()


class Extension(Settings):
    """One extension, with its options as fields.

    ``records`` names the numbers that it adds to `Host.records`, which no method may then report;
    ``minimizes`` names the loss that clients minimize, if `loss` changes it. ``for_samples``: it draws for
    samples, whatever batch they are in. Methods on full gradients refuse an extension that ``needs_batches``
    or has its own `begin`, which they do not call; central training one that ``needs_clients``. Fine-tuning
    has only ``tuned`` extensions.
    """

    plural: ClassVar[str] = "extensions"
    records: ClassVar[tuple[str, ...]] = ()
    minimizes: ClassVar[str] = ""
    for_samples: ClassVar[bool] = False
    needs_batches: ClassVar[bool] = False
    needs_clients: ClassVar[bool] = False
    tuned: ClassVar[bool] = False

    @classmethod
    def keyed(cls) -> Mapping[str, type[Settings]]:
        return REGISTERED

    @classmethod
    def parse(cls, values: Any, section: str | None = None) -> Self:
        """An extension from its options; in a mapping of extensions, of the class that its key names.

        There, null stands for no extension, which `named` leaves out.
        """
        if cls is not Extension:
            return super().parse(values, section)
        name = (section or "").rpartition(".")[2]
        if name not in REGISTERED:
            if not REGISTERED:
                raise BadInput(section or name, name, "the name of a registered extension; there is none")
            raise unknown_name(section or name, name, REGISTERED)
        return cast(Self, None if values is None else REGISTERED[name].parse(values, section))

    @classmethod
    def of(cls, training: Any) -> "Extension | None":
        """The extension of this kind that a `LocalTraining` has, under the key that its section ends with."""
        extension: Extension | None = getattr(training, cls.section.rpartition(".")[2])
        return extension

    # Needs

    @property
    def views(self) -> int:
        """Random views of each sample that its loss compares."""
        return 1

    @property
    def compares(self) -> bool:
        """True if it needs the model that the client trained last, `Host.last`."""
        return False

    @property
    def reads(self) -> tuple[Reads, ...]:
        """The central networks that it reads."""
        return ()

    @property
    def gradients(self) -> int:
        """Gradients of a batch in one local step."""
        return 1

    @property
    def evaluations(self) -> int:
        """Passes over all samples, without gradients, at the start of every training."""
        return 0

    # Refusals

    def refused(self, accepted: str) -> BadInput:
        """The error of a training that may not have it; ``accepted`` says when, as "with a regression"."""
        return BadInput(self.section, shown(self), f"null {accepted}")

    def check_training(self, training: Any) -> None:
        """Raise `BadInput` for settings of this `LocalTraining` and other extensions that it excludes."""

    def check(self, model: FlatModel, examples: Examples, inputs: Mapping[str, Any]) -> None:
        """Raise `BadInput` unless it fits the network, the samples and its inputs."""

    def warnings(self, training: Any, sizes: Sequence[int], epochs: Sequence[int]) -> Iterator[str]:
        """Warnings about a run whose clients have ``sizes`` samples and train for ``epochs`` by stream."""
        yield from ()

    # Draws on the host

    def epoch_steps(self, samples: Any, batch_size: int) -> Any:
        """Local steps of an epoch on ``samples`` samples, a number or tensor [.]; None: the usual ones."""

    def passes(self, samples: int, batch_size: int, steps: int) -> Sequence[Pass] | None:
        """The passes over ``samples`` samples in ``steps`` local steps, or None for the usual ones."""

    def draw(self, drawing: Drawing) -> Mapping[str, Extra | Schedule]:
        """Random numbers, and further batches, of one training of a client, by name."""
        return {}

    # Changes on the client

    def begin(self, host: Host, schedules: list[Schedule], start: Tensor) -> list[Schedule]:
        """The schedules of a training that begins at ``start`` [D], which may decide their order."""
        return schedules

    def batch(self, batch: Batch) -> Batch:
        """The batch of a step, changed by the draws for it (`Batch.extra`)."""
        return batch

    def loss(self, host: Host, inner: Losses, w: Tensor, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """The loss that the client minimizes in place of ``inner``, and the outputs [B, .] of the data loss.

        A cohort also calls it in padded steps, in which no sample counts.
        """
        return inner(w, batch)


REGISTERED: dict[str, type[Extension]] = {}
E = TypeVar("E", bound=type[Extension])


def register(name: str) -> Callable[[E], E]:
    """Class decorator: make an extension the key ``name`` of ``training.extensions``.

    Raises `BadInput` for the name of another module's extension.
    """

    check_registrable(name)

    def add(cls: E) -> E:
        check_base(cls, Extension)
        other = REGISTERED.get(name)
        if other is not None and other.__module__ != cls.__module__:
            raise BadInput("name", name, f"another name than an extension of {other.__module__}")
        cls.section = f"training.extensions.{name}"
        REGISTERED[name] = cls
        return cls

    return add


def named(extensions: Mapping[str, Extension]) -> dict[str, Extension]:
    """The ``extensions`` without null. Raises `BadInput` for one under the name of another."""
    present = {name: extension for name, extension in extensions.items() if extension is not None}
    for name, extension in present.items():
        if type(extension) is not REGISTERED.get(name):
            accepted = f"an extension that is registered as {name}"
            raise BadInput(f"training.extensions.{name}", Words(type(extension).__name__), accepted)
    return present
