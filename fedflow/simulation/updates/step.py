"""The protocol of a step that an update takes on its way to the server.

A step is a class in a file here or in a plug-in, named by an entry of ``run.updates``. The worker and the
server call its hooks in the order of that list and know no step by name. Every hook has a neutral default:

* Before the first round, `check` refuses a run, and `prepared` completes the step for it.
* Before training, `serve` changes a vector that the server sends to all clients of the round.
* On the worker, `accepts` refuses an update, `change` changes the updates of some clients at once, and `size`
  counts the bytes that cross. Clients `keep` vectors for a step from round to round.
* On the server, `meet` changes all updates of a round together, `reads` can forbid a look at single ones,
  `combine` replaces the mean of uploaded vectors, `after` changes a mean, and `learn` ends a round: it
  returns numbers to record, and the server's values for the next round, which all hooks can read.

Only messages and updates of training take these steps, not messages of an onboarding.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from fedflow.choice import Choice
from fedflow.errors import MISSING, BadInput, FedflowError
from fedflow.local.client import Update
from fedflow.local.wire import Size
from fedflow.settings import option, registering

if TYPE_CHECKING:  # plug-ins have steps before all methods are registered
    from fedflow.methods.method import Conditions, Method, Round


@dataclass(frozen=True)
class Changed:
    """The changes of a step to the updates of C clients: their new ``vectors`` [C, ...], by name.

    ``kept`` [C, n] are the vectors that the clients keep for the step (`UpdateStep.keeps`). ``diagnostics``
    are scalars by client, [C], recorded as ``client/<step>.<name>``; NaN = none. ``entries``, int [C], count
    the entries of a vector that cross if not all do (`UpdateStep.size`).
    """

    vectors: Mapping[str, Tensor] = field(default_factory=dict)
    kept: Mapping[str, Tensor] = field(default_factory=dict)
    diagnostics: Mapping[str, Tensor] = field(default_factory=dict)
    entries: Mapping[str, Tensor] = field(default_factory=dict)


def counterpart(received: Mapping[str, Tensor], name: str, group: int) -> Tensor | None:
    """The vector that a client received for the ``name`` of its update, or None.

    It has the same name, or is the row ``group`` of a matrix [k, n] with the name ``<name>s``, such as the
    model of its cluster; the only row if k is 1.
    """
    matrix = received.get(f"{name}s")
    if name in received or matrix is None:
        return received.get(name)
    row = group if len(matrix) > 1 else 0
    return matrix[row] if 0 <= row < len(matrix) else None


@dataclass(frozen=True)
class Outgoing:
    """The updates of C ``clients`` in one round, as a step sees them on the worker: tensors [C, ...].

    Which clients share one `Outgoing` depends on how the run is computed (one by one, or many at once), so
    the result of one must not depend on the others. ``received`` and ``kept`` have the vectors of each
    client. ``masks`` names the mask of each vector that is sent in part (`Pruning`). ``state`` are the
    server's values for the step that workers get, on the host. ``rng(purpose, client)`` has its own key.
    ``cohort`` are all clients of the round, sorted. ``places`` [C] order all clients of the run at random, in
    [0, 1), the same in all rounds: a step for a share of the clients is for those with a smaller place.
    """

    clients: Sequence[int]
    round: int
    update: Update
    received: Sequence[Mapping[str, Tensor]]
    kept: Sequence[Mapping[str, Tensor]]
    state: Mapping[str, Tensor]
    masks: Mapping[str, str]
    rng: Callable[[str, int], np.random.Generator]
    name: str  # of the step, for errors
    cohort: Sequence[int] = ()
    places: Sequence[float] = ()

    def reference(self, name: str) -> Tensor | None:
        """The vector that the update's ``name`` is compared with, [C, n] or [1, n], or None.

        It is the `counterpart` that the client received, if its shape is the same.
        """
        vectors = self.update.vectors[name]
        rows: list[Tensor | None] = []
        for received, group in zip(self.received, self.update.group.tolist(), strict=True):
            row = counterpart(received, name, group)
            rows.append(row if row is not None and row.shape == vectors.shape[1:] else None)
        addresses = {None if row is None else row.data_ptr() for row in rows}
        if rows[0] is not None and len(addresses) == 1:
            return rows[0][None]
        if addresses == {None}:
            return None
        return torch.stack([torch.zeros_like(vectors[0]) if row is None else row for row in rows])

    def differences(self) -> dict[str, Tensor]:
        """Every vector of real numbers minus its `reference`, [C, ...]; 0 at entries that do not cross.

        A vector without a reference counts as a difference, which some methods send. Vectors of bools (masks)
        and of whole numbers are left out. Raises `BadInput` if there is no other vector.
        """
        differences: dict[str, Tensor] = {}
        for name, vector in self._real().items():
            reference, mask = self.reference(name), self._mask(name)
            difference = vector if reference is None else vector - reference
            differences[name] = difference if mask is None else difference.masked_fill(~mask, 0)
        if not differences:
            raise without_numbers(self.name, "before secure")
        return differences

    def moved(self, differences: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The vectors [C, ...] with these differences; entries that do not cross stay as they are."""
        vectors: dict[str, Tensor] = {}
        for name, difference in differences.items():
            reference, mask = self.reference(name), self._mask(name)
            vector = difference if reference is None else reference + difference
            vectors[name] = vector if mask is None else vector.where(mask, self.update.vectors[name])
        return vectors

    def flat(self) -> Tensor:
        """All `differences` of a client as one vector, [C, n]."""
        return torch.cat([difference.flatten(1) for difference in self.differences().values()], dim=1)

    def parts(self, flat: Tensor) -> dict[str, Tensor]:
        """The inverse of `flat`: the differences of every vector, [C, ...], from ``flat`` [C, n]."""
        vectors = self._real()
        parts = flat.split([vector[0].numel() for vector in vectors.values()], dim=1)
        return {name: part.view_as(vectors[name]) for name, part in zip(vectors, parts)}

    def keep(self, name: str, like: Tensor) -> Tensor:
        """The vectors that clients keep for the step as ``name``, as ``like`` [C, n]; 0 before the first."""
        rows: list[Tensor] = []
        for empty, kept in zip(torch.zeros_like(like), self.kept, strict=True):
            row = kept.get(name, empty)
            if row.numel() != empty.numel():
                sizes = f"{empty.numel()} values, and the client keeps {row.numel()}"
                raise FedflowError(f"run.updates: {self.name}: the update has {sizes} of an earlier round")
            rows.append(row.to(empty).view_as(empty))
        return torch.stack(rows)

    def drawn(self, purpose: str, draw: Callable[[np.random.Generator], np.ndarray], like: Tensor) -> Tensor:
        """A draw for every client, stacked [C, ...]; it does not depend on workers and cohorts."""
        rows = [torch.from_numpy(np.asarray(draw(self.rng(purpose, k)))) for k in self.clients]
        return torch.stack(rows).to(like)

    def _real(self) -> dict[str, Tensor]:
        return {name: vector for name, vector in self.update.vectors.items() if vector.is_floating_point()}

    def _mask(self, name: str) -> Tensor | None:
        """The entries of a vector that cross, bool [C, n], or None for all."""
        mask = self.update.vectors.get(self.masks.get(name, ""))
        return mask if mask is not None and mask.dtype == torch.bool else None


@dataclass(frozen=True)
class Shared:
    """A vector ``name`` that the server sends to all clients of a round.

    ``state`` are the server's values for the step; ``rng(purpose)`` is keyed by round and vector.
    """

    name: str
    round: int
    state: Mapping[str, Tensor]
    rng: Callable[[str], np.random.Generator]


@dataclass(frozen=True)
class Served:
    """The ``vector`` that clients receive, its ``size`` (None: as before), and new values of the server."""

    vector: Tensor
    size: Size | None = None
    state: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Arrived:
    """All updates of a round: the ``vectors`` of every client by name, tensors [.] in client order.

    ``received`` are the vectors that each client had received. ``groups``, ``weights``, ``places`` have an
    item for every client (see `Outgoing`). ``rng(purpose)`` is keyed by round.
    """

    clients: Sequence[int]
    groups: Sequence[int]
    weights: Sequence[float]
    places: Sequence[float]
    round: int
    vectors: Mapping[str, Sequence[Tensor]]
    received: Sequence[Mapping[str, Tensor]]
    state: Mapping[str, Tensor]
    rng: Callable[[str], np.random.Generator]


@dataclass(frozen=True)
class Incoming:
    """A mean that the server asks for: of the vectors ``name`` of ``clients`` of a ``group`` (None: of all).

    ``weights`` [m] are not normalized, ``state`` are the server's values. ``rng(purpose)`` is keyed by round,
    vector and group, so that asking for a mean twice gives the same. ``cohort`` are all clients that trained,
    also those that failed.
    """

    name: str
    group: int | None
    clients: Sequence[int]
    weights: np.ndarray
    round: int
    state: Mapping[str, Tensor]
    rng: Callable[[str], np.random.Generator]
    cohort: Sequence[int] = ()


@dataclass(frozen=True)
class Sent:
    """One client of a round, with its ``numbers``: the diagnostics of the step."""

    client: int
    group: int
    weight: float
    numbers: Mapping[str, float]


def without_numbers(step: str, order: str) -> BadInput:
    """The error of a ``step`` on updates without real numbers; ``order`` is "before secure" or "without"."""
    accepted = f"{step} {order}, with methods whose clients send vectors of real numbers"
    return BadInput("run.updates", step, accepted)


class UpdateStep(Choice):
    """One step, with its options as fields. Clients keep the vectors ``keeps`` for it from round to round."""

    section: ClassVar[str] = "run.updates"
    plural: ClassVar[str] = "steps"
    key: ClassVar[str] = "step"
    name: ClassVar[str] = ""
    label: ClassVar[str] = ""
    keeps: ClassVar[tuple[str, ...]] = ()

    step: str = option("", "the registered step")

    @classmethod
    def known(cls) -> Mapping[str, type["UpdateStep"]]:
        return STEPS

    @classmethod
    def needs_key(cls) -> bool:
        return True

    @classmethod
    def parse(cls, values: Any, section: str | None = None) -> Self:
        """A step from the mapping of ``params.yaml``, whose ``step`` names it."""
        section = section or cls.section
        if cls is UpdateStep and isinstance(values, Mapping) and not values.get(cls.key):
            raise cls.refused(f"{section}.{cls.key}", values.get(cls.key, MISSING))
        return super().parse(values, section)

    @classmethod
    def schema(cls, fields: dict[str, Any]) -> dict[str, Any]:
        return fields | {"required": [cls.key]}

    @property
    def changes(self) -> bool:
        """True if it changes updates of single clients, and not only their form."""
        return type(self).change is not UpdateStep.change

    # Refusals

    def unfit(self, accepted: str) -> BadInput:
        """The error of a run that may not have this step; ``accepted`` says what could, as "without ..."."""
        return BadInput(self.section, self.name, f"{self.name} {accepted}")

    def check(self, method: "Method", run: "Conditions") -> None:
        """Raise `BadInput` (`unfit`) for a method or a run that this step does not work with."""

    def among(self, before: Sequence["UpdateStep"], after: Sequence["UpdateStep"]) -> None:
        """Raise `BadInput` (`unfit`) for other steps of the run that this one does not work with."""

    def prepared(self, run: "Conditions") -> Self:
        """This step, completed for a run, such as by the noise that a target needs."""
        return self

    def accepts(self, update: Update, received: Mapping[str, Tensor]) -> Tensor:
        """True if the server may have the ``update`` of one client, scalar bool; if not, the client fails.

        It is asked before and after the steps of a run, also under ``torch.func.vmap``.
        """
        return torch.ones((), dtype=torch.bool, device=update.weight.device)

    # On the worker

    def change(self, sent: Outgoing) -> Changed:
        """The changes to the updates of all clients of ``sent``, computed at once."""
        return Changed()

    def size(self, name: str, vectors: Mapping[str, Tensor], size: Size) -> Size:
        """The size of the vector ``name`` of a client's ``vectors`` as it crosses.

        ``size`` is its size without this step, with the count from `Changed.entries`, if there is one.
        """
        return size

    # On the server

    def serve(self, got: Shared, vector: Tensor) -> Served:
        """The vector of real numbers [...] that all clients of the round receive in place of ``vector``."""
        return Served(vector)

    def meet(self, got: Arrived) -> Mapping[str, Sequence[Tensor]]:
        """New vectors of all clients, by name, computed together; the server then holds every update."""
        return {}

    def reads(self, method: "Method", what: str) -> None:
        """Raise `BadInput` (`unfit`) if the server may not read ``what`` of single clients.

        This is "vectors", "scalars", "weights", "groups", "clients" for who took part, or "a mean of some"
        for a mean with other weights.
        """

    def combine(self, got: Incoming, vectors: Tensor) -> Tensor:
        """The vector [n] in place of the mean of ``vectors`` [m, n].

        A step with this hook makes the server hold every update until the end of the round: m times n
        numbers, where a mean needs 2 n for each group.
        """
        raise NotImplementedError

    def after(self, got: Incoming, mean: Tensor) -> Tensor:
        """The vector [n] in place of a ``mean`` [n]."""
        return mean

    def start(self) -> Mapping[str, Tensor]:
        """The server's values for the step before the first round, by name, on the host.

        Those whose name starts with an underscore are not sent to workers.
        """
        return {}

    def learn(
        self, now: "Round", state: Mapping[str, Tensor], sent: Sequence[Sent]
    ) -> tuple[Mapping[str, Tensor], Mapping[str, float]]:
        """The server's values after a round, and numbers to record as ``update/<step>.<name>``."""
        return state, {}


def replaces_means(step: UpdateStep) -> bool:
    """True if the step has its own `UpdateStep.combine`."""
    return type(step).combine is not UpdateStep.combine


def check_steps(steps: Sequence[UpdateStep]) -> None:
    """Raise `BadInput` for steps that exclude each other."""
    combining = [i for i, step in enumerate(steps) if replaces_means(step)]
    if len(combining) > 1:
        first, second, *_ = combining
        accepted = f"none, as {steps[first].name} replaces means already"
        raise BadInput(f"run.updates[{second}].step", steps[second].name, accepted)
    for i, step in enumerate(steps):
        step.among(steps[:i], steps[i + 1 :])


STEPS: dict[str, type[UpdateStep]] = {}
register = registering(STEPS, UpdateStep)
