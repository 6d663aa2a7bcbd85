"""The protocol of a step that an update takes on its way to the server.

A step is a class in a file here or in a plug-in, named by an entry of ``run.updates``. The worker and the
server call its hooks in the order of that list and know no step by name. Every hook has a neutral default,
so a step has those that it needs:

* On the worker, `accepts` refuses an update, `change` changes the updates of some clients at once, and `size`
  says how many of its bytes cross. Clients `keep` vectors from round to round for a step.
* On the server, `combine` replaces the mean of uploaded vectors, `after` changes a mean, and `learn` ends a
  round: it returns numbers for the record, and the server's values for the next round (from `start`), which
  all other hooks see.

Updates of training take these steps. The clients' answers of an onboarding, and what is sent to clients, do
not.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from fedflow.choice import Choice
from fedflow.errors import BadInput, FedflowError, unknown_name
from fedflow.local.client import Update
from fedflow.local.wire import Size
from fedflow.settings import option, registering

if TYPE_CHECKING:  # plug-ins have steps before all methods are registered
    from fedflow.methods.method import Conditions, Method, Round


@dataclass(frozen=True)
class Changed:
    """The changes of a step to the updates of C clients: their new ``vectors`` [C, ...], by name.

    ``kept`` [C, n] are the vectors that the clients keep for the step (`UpdateStep.keeps`). ``diagnostics``
    are scalars by client, [C], recorded as ``client/<step>.<name>``; NaN = none. ``entries`` are the numbers
    of entries that cross of each vector, int [C], where not all do (`UpdateStep.size`).
    """

    vectors: Mapping[str, Tensor] = field(default_factory=dict)
    kept: Mapping[str, Tensor] = field(default_factory=dict)
    diagnostics: Mapping[str, Tensor] = field(default_factory=dict)
    entries: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Outgoing:
    """The updates of C ``clients`` in one round, as a step sees them on the worker: tensors [C, ...].

    The clients of one `Outgoing` depend on how the run is computed (one by one, or many at once), so that
    what happens to one of them must not depend on the others. ``received`` and ``kept`` have the vectors of
    each client, ``masks`` of the vectors that are sent in part (`Pruning`). ``state`` are the server's values
    for the step, on the host. ``rng(purpose, client)`` has its own key.
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

    def reference(self, name: str) -> Tensor | None:
        """The vector that the update's ``name`` is compared with, [C, n] or [1, n], or None.

        Each client's vector is compared with the vector that it received under the same name and in the same
        shape; without one, with the row `Update.group` of a matrix [k, n] that it received as ``<name>s``,
        such as the model of its cluster.
        """
        vectors = self.update.vectors[name]
        rows: list[Tensor | None] = []
        for received, group in zip(self.received, self.update.group.tolist(), strict=True):
            own, several = received.get(name), received.get(f"{name}s")
            if own is None and several is not None and 0 <= group < len(several):
                own = several[group]
            rows.append(own if own is not None and own.shape == vectors.shape[1:] else None)
        known = [row for row in rows if row is not None]
        if not known:
            return None
        if len(known) == len(rows) and all(row.data_ptr() == known[0].data_ptr() for row in known):
            return known[0][None]
        return torch.stack([torch.zeros_like(vectors[0]) if row is None else row for row in rows])

    def differences(self) -> dict[str, Tensor]:
        """Every vector of real numbers minus its `reference`, [C, ...]; 0 at entries that do not cross.

        A vector without a reference is a difference as it is, as methods send some. Masks and other vectors
        of bools and whole numbers are left out. Raises `BadInput` if there is no other vector.
        """
        found: dict[str, Tensor] = {}
        for name, vector in self.update.vectors.items():
            if vector.is_floating_point():
                reference, mask = self.reference(name), self._mask(name)
                difference = vector if reference is None else vector - reference
                found[name] = difference if mask is None else difference.masked_fill(~mask, 0)
        if not found:
            accepted = f"{self.name} with methods whose clients send vectors of real numbers"
            raise BadInput("run.updates", self.name, accepted)
        return found

    def moved(self, differences: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The vectors [C, ...] with these differences; entries that do not cross stay as they are."""
        found: dict[str, Tensor] = {}
        for name, difference in differences.items():
            reference, mask = self.reference(name), self._mask(name)
            vector = difference if reference is None else reference + difference
            found[name] = vector if mask is None else vector.where(mask, self.update.vectors[name])
        return found

    def flat(self) -> Tensor:
        """All `differences` of a client as one vector, [C, n]."""
        return torch.cat([each.flatten(1) for each in self.differences().values()], dim=1)

    def parts(self, flat: Tensor) -> dict[str, Tensor]:
        """The differences of every vector, [C, ...], of ``flat`` [C, n] in the order of `flat`."""
        own = {name: each for name, each in self.update.vectors.items() if each.is_floating_point()}
        parts = flat.split([each[0].numel() for each in own.values()], dim=1)
        return {name: part.view_as(own[name]) for name, part in zip(own, parts)}

    def keep(self, name: str, like: Tensor) -> Tensor:
        """The vectors that the clients keep for the step as ``name``, in the shape of ``like`` [C, n].

        They are 0 for a client that keeps none yet.
        """
        rows: list[Tensor] = []
        for own, kept in zip(like, self.kept, strict=True):
            row = kept.get(name)
            if row is not None and row.numel() != own.numel():
                sizes = f"{own.numel()} values, and the client keeps {row.numel()}"
                raise FedflowError(f"run.updates: {self.name}: the update has {sizes} of an earlier round")
            rows.append(torch.zeros_like(own) if row is None else row.to(own).view_as(own))
        return torch.stack(rows)

    def drawn(self, purpose: str, draw: Callable[[np.random.Generator], np.ndarray], like: Tensor) -> Tensor:
        """A draw for every client, stacked [C, ...]: the same for any workers and cohorts."""
        rows = [torch.from_numpy(np.asarray(draw(self.rng(purpose, k)))) for k in self.clients]
        return torch.stack(rows).to(like)

    def _mask(self, name: str) -> Tensor | None:
        """The entries of a vector that cross, bool [C, n]; None: all."""
        mask = self.update.vectors.get(self.masks.get(name, ""))
        return mask if mask is not None and mask.dtype == torch.bool else None


@dataclass(frozen=True)
class Incoming:
    """A mean that the server asks for: of the vectors ``name`` of ``clients`` of a ``group`` (None: of all).

    ``weights`` [m] are not normalized, ``state`` are the server's values. ``rng(purpose)`` is keyed by the
    round and by the vector and group, so that a mean that is asked for twice is the same.
    """

    name: str
    group: int | None
    clients: Sequence[int]
    weights: np.ndarray
    round: int
    state: Mapping[str, Tensor]
    rng: Callable[[str], np.random.Generator]


@dataclass(frozen=True)
class Sent:
    """One client of a round, with its ``numbers``: the diagnostics of the step."""

    client: int
    group: int
    weight: float
    numbers: Mapping[str, float]


class UpdateStep(Choice):
    """One step, with its options as fields.

    ``keeps`` names the vectors that clients keep for it from round to round. ``fault`` says why `accepts`
    refuses an update.
    """

    section: ClassVar[str] = "run.updates"
    plural: ClassVar[str] = "steps"
    key: ClassVar[str] = "step"
    name: ClassVar[str] = ""
    label: ClassVar[str] = ""
    keeps: ClassVar[tuple[str, ...]] = ()
    fault: ClassVar[str] = ""

    step: str = option("", "the registered step")

    @classmethod
    def known(cls) -> Mapping[str, type["UpdateStep"]]:
        return STEPS

    @classmethod
    def refused(cls, field: str, name: Any) -> BadInput:
        if name is None:
            return BadInput(field, name, f"one of {', '.join(sorted(STEPS))}")
        return unknown_name(field, name, STEPS)

    @classmethod
    def _accepted(cls) -> str:
        return f"a mapping with `{cls.key}` and parameters"

    @classmethod
    def parse(cls, values: Any, section: str | None = None) -> Self:
        """A step from the mapping of ``params.yaml``, whose ``step`` names it."""
        section = cls.section if section is None else section
        if isinstance(values, Mapping) and not values.get(cls.key) and not cls.name:
            raise cls.refused(f"{section}.{cls.key}", None)
        return super().parse(values, section)

    @classmethod
    def schema(cls, fields: dict[str, Any]) -> dict[str, Any]:
        return fields | {"required": [cls.key]}

    # What it refuses

    def unfit(self, accepted: str) -> BadInput:
        """The error of a run that may not have it; ``accepted`` says with what."""
        return BadInput(self.section, self.name, f"{self.name} {accepted}")

    def check(self, method: "Method", run: "Conditions") -> None:
        """Raise `BadInput` (`unfit`) for a method or a run with which it does not work."""

    def accepts(self, update: Update, received: Mapping[str, Tensor]) -> Tensor:
        """True if the server may have the ``update`` of one client, scalar bool; else the client has failed.

        The engine asks before and after the steps of a run, also under ``torch.func.vmap``.
        """
        return torch.ones((), dtype=torch.bool, device=update.weight.device)

    # On the worker

    def change(self, sent: Outgoing) -> Changed:
        """The changes to the updates of all clients of ``sent``, computed at once."""
        return Changed()

    def size(self, name: str, vectors: Mapping[str, Tensor], size: Size) -> Size:
        """The size of the vector ``name``, one of a client's ``vectors``, as it crosses.

        ``size`` is its size without this step, with the number of `Changed.entries`, if there is one.
        """
        return size

    # On the server

    def combine(self, got: Incoming, vectors: Tensor) -> Tensor:
        """The vector [n] in place of the mean of ``vectors`` [m, n].

        With a step that has this hook, every update of a round travels to the server and is held in its
        memory until the end of the round: m times n numbers, where a mean needs 2 n for each group.
        """
        raise NotImplementedError

    def after(self, got: Incoming, mean: Tensor) -> Tensor:
        """The vector [n] in place of a ``mean`` [n]."""
        return mean

    def start(self) -> Mapping[str, Tensor]:
        """The server's values for the step before the first round, by name, on the host."""
        return {}

    def learn(
        self, now: "Round", state: Mapping[str, Tensor], sent: Sequence[Sent]
    ) -> tuple[Mapping[str, Tensor], Mapping[str, float]]:
        """The server's values after a round, and numbers to record as ``update/<step>.<name>``."""
        return state, {}


def check_steps(steps: Sequence[UpdateStep]) -> None:
    """Raise `BadInput` for steps that exclude each other."""
    combining = [i for i, step in enumerate(steps) if type(step).combine is not UpdateStep.combine]
    if len(combining) > 1:
        first, second, *_ = combining
        accepted = f"none, as {steps[first].name} replaces means already"
        raise BadInput(f"run.updates[{second}].step", steps[second].name, accepted)


STEPS: dict[str, type[UpdateStep]] = {}
register = registering(STEPS)
