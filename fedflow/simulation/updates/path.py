"""The way of the updates of a run to the server: its parts in order, and what follows from all of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedflow.errors import FedflowError
from fedflow.local.client import Update, check_diagnostic
from fedflow.local.wire import Size, message_bytes
from fedflow.methods.method import Method, Round
from fedflow.methods.protocols import Pruning
from fedflow.seeding import generator
from fedflow.simulation.updates.parts import Finite, Masked
from fedflow.simulation.updates.step import Changed, Incoming, Outgoing, Sent, UpdateStep

V = TypeVar("V")
OWN = "update."  # starts the names of vectors that clients keep for steps
RESERVED = f"{OWN}<number>.<name>"


class Result(Protocol):
    """The result of one client in a round, as the server has it."""

    client: int
    group: int
    weight: float
    reported: dict[str, float]


@lru_cache
def _usual(masks: tuple[tuple[str, str], ...]) -> tuple[UpdateStep, ...]:
    """The parts of every run: made once, as a path is made for every client."""
    return Finite(), Masked(masks=dict(masks))


class UpdatePath:
    """The parts that updates of a ``method`` pass: the parts of every run, then the ``steps`` of this run."""

    def __init__(
        self,
        method: Method,
        steps: Sequence[UpdateStep] = (),
        seed: int = 0,
        state: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.method, self.steps, self.seed = method, tuple(steps), seed
        self.state = self._start() if state is None else dict(state)  # the server's, of all steps
        self.masks = Pruning.of(method).masks
        self.parts: tuple[UpdateStep, ...] = (*_usual(tuple(self.masks.items())), *self.steps)

    def having(self, *hooks: str) -> list[UpdateStep]:
        """The parts with their own version of one of these hooks of `UpdateStep`."""
        return [part for part in self.parts if any(_has(part, hook) for hook in hooks)]

    @property
    def gathers(self) -> bool:
        """True if the server needs every single update."""
        return self.method.gathers or bool(self.having("combine"))

    @property
    def about(self) -> tuple[object, ...]:
        """The identity of `accepts`."""
        return tuple((type(part), repr(part)) for part in self.having("accepts"))

    # What clients keep for steps

    def kept_name(self, i: int, name: str) -> str:
        """The name in the client store of what the i-th step keeps."""
        return f"{OWN}{i}.{name}"

    @property
    def kept_names(self) -> list[str]:
        """The names of all vectors that clients keep for steps."""
        return [self.kept_name(i, name) for i, step in enumerate(self.steps) for name in step.keeps]

    def first(self, taken: Mapping[str, object], like: Tensor) -> dict[str, Tensor]:
        """Placeholders for the store, in the type and on the device of ``like``: nothing is kept at first.

        Raises `FedflowError` if the method's vectors, ``taken``, have such names.
        """
        if reserved := [name for name in taken if name.startswith(OWN)]:
            raise FedflowError(f"{self.method.name}: {reserved[0]!r} is a name of the engine ({RESERVED})")
        return {name: like.new_zeros(0) for name in self.kept_names}

    # On the worker

    def accepts(self, update: Update, received: Mapping[str, Tensor]) -> Tensor:
        """True if all parts accept the update of one client, scalar bool."""
        asked = [part.accepts(update, received) for part in self.having("accepts")]
        return asked[0] if len(asked) == 1 else torch.stack(asked).all()

    def fault(self, update: Update, received: Mapping[str, Tensor]) -> str:
        """The reason why a part refuses the update of one client, or an empty text."""
        for part in self.having("accepts"):
            if not part.accepts(update, received):
                return part.fault or f"{part.name} refuses its update"
        return ""

    def changed(
        self,
        clients: Sequence[int],
        at: tuple[int, int],
        update: Update,
        received: Sequence[Mapping[str, Tensor]],
        kept: Sequence[Mapping[str, Tensor]],
    ) -> tuple[Update, list[Mapping[str, Tensor]]]:
        """The ``update`` [C, ...] of some clients after all steps, with what they keep and report.

        Also `Changed.entries` of every part. ``at`` are the round and its cycle; ``kept`` has all that each
        client keeps for steps.
        """
        entries: list[Mapping[str, Tensor]] = [{} for _ in self.parts]
        for i, step in enumerate(self.steps):
            if not _has(step, "change"):
                continue
            start = self.kept_name(i, "")
            own = [_under(start, of) for of in kept]

            def rng(purpose: str, client: int, i: int = i) -> np.random.Generator:
                return generator(self.seed, f"update {i} {purpose}", *at, client)

            state = self._state_of(i)
            sent = Outgoing(clients, at[0], update, received, own, state, self.masks, rng, step.name)
            new = step.change(sent)
            entries[len(self.parts) - len(self.steps) + i] = new.entries
            numbers = {f"{self.title(i)}.{name}": t for name, t in new.diagnostics.items()}
            _check(step, new, update, numbers)
            update = replace(
                update,
                vectors={**update.vectors, **new.vectors},
                keep=update.keep | {f"{start}{name}": t for name, t in new.kept.items()},
                diagnostics=update.diagnostics | numbers,
            )
        return update, entries

    def bytes(
        self,
        vectors: Mapping[str, Tensor],
        scalars: int = 0,
        entries: Sequence[Mapping[str, int]] | None = None,
    ) -> int:
        """The bytes of the ``vectors`` and scalars of one client as they cross.

        ``entries`` are the numbers of entries that cross, by part and vector, where a part gave any.
        """
        own = entries or [{} for _ in self.parts]
        codings = [partial(_size, part, of) for part, of in zip(self.parts, own, strict=True)]
        return message_bytes(vectors, scalars, codings)

    # On the server

    def mean(
        self,
        asked: tuple[str, int | None],
        clients: Sequence[int],
        weights: np.ndarray,
        at: tuple[int, int],
        exact: Callable[[], Tensor],
        rows: Callable[[], Sequence[Tensor]],
    ) -> Tensor:
        """The mean of the ``rows`` of some clients after all steps; ``exact`` without any.

        ``asked`` are the name and the group of the vectors, ``at`` the round and its cycle.
        """
        name, group = asked

        def incoming(i: int) -> Incoming:
            def rng(purpose: str) -> np.random.Generator:
                number = -1 if group is None else group
                return generator(self.seed, f"mean {i} {purpose} {name}", *at, number)

            return Incoming(name, group, clients, weights, at[0], self._state_of(i), rng)

        mean = None
        for i, step in enumerate(self.steps):
            if _has(step, "combine"):
                vectors = rows()
                if len({vector.shape for vector in vectors}) > 1:
                    raise step.unfit(f"without {self.method.name}, whose vectors {name} differ in size")
                mean = step.combine(incoming(i), torch.stack([*vectors]))
        mean = exact() if mean is None else mean
        for i, step in enumerate(self.steps):
            mean = step.after(incoming(i), mean)
        return mean

    def learn(
        self, now: Round, clients: Sequence[Result], averaged: bool
    ) -> tuple[dict[str, Tensor], dict[str, float]]:
        """The server's state after a round, and the numbers of the steps; ``averaged``: it asked for a mean.

        Raises `BadInput` for steps that change means which the server does not ask for.
        """
        if clients and not averaged and (idle := self.having("combine", "after")):
            raise idle[0].unfit(f"without {self.method.name}, whose server takes no mean of updates")
        states: dict[str, Tensor] = {}
        found: dict[str, float] = {}
        for i, step in enumerate(self.steps):
            start = f"{self.title(i)}."
            sent = [Sent(c.client, c.group, c.weight, _under(start, c.reported)) for c in clients]
            state, numbers = step.learn(now, self._state_of(i), sent)
            states |= {f"{i}.{name}": torch.as_tensor(value) for name, value in state.items()}
            for name, number in numbers.items():
                _named(step, name)
                found[f"update/{start}{name}"] = float(number)
        return states, found

    def _start(self) -> dict[str, Tensor]:
        """The server's state before the first round."""
        return {f"{i}.{n}": value for i, step in enumerate(self.steps) for n, value in step.start().items()}

    def _state_of(self, i: int) -> dict[str, Tensor]:
        """The server's values for the i-th step."""
        return _under(f"{i}.", self.state)

    def title(self, i: int) -> str:
        """The name of the i-th step in the record, with its number if it is there twice."""
        name = self.steps[i].name
        return f"{name}-{i + 1}" if [step.name for step in self.steps].count(name) > 1 else name


def _check(step: UpdateStep, new: Changed, update: Update, numbers: Mapping[str, Tensor]) -> None:
    """Raise `FedflowError` for names and shapes that a step may not return."""
    for name in new.diagnostics:
        _named(step, name)
    shapes = {name: vector.shape for name, vector in update.vectors.items()}
    wrong = {name for name, vector in new.vectors.items() if vector.shape != shapes.get(name)}
    each = [*new.diagnostics.items(), *new.entries.items()]
    wrong |= {name for name, values in each if values.shape != update.weight.shape}
    wrong |= (new.kept.keys() - {*step.keeps}) | (numbers.keys() & update.diagnostics.keys())
    if wrong:
        named = ", ".join(sorted(wrong))
        raise FedflowError(f"run.updates: {step.name}.change returns {named}, which it may not")


def _under(start: str, values: Mapping[str, V]) -> dict[str, V]:
    """The values whose names begin with ``start``, by the rest of the name."""
    return {name.removeprefix(start): value for name, value in values.items() if name.startswith(start)}


def _named(step: UpdateStep, name: str) -> None:
    """Raise `FedflowError` for a name that no number of the record can have."""
    try:
        check_diagnostic(name)
    except ValueError as error:
        raise FedflowError(f"run.updates: {step.name}: {error}") from error


def _size(
    part: UpdateStep, entries: Mapping[str, int], name: str, vectors: Mapping[str, Tensor], size: Size
) -> Size:
    """The size of a vector after a part."""
    return part.size(name, vectors, size._replace(entries=entries.get(name, size.entries)))


def _has(part: UpdateStep, hook: str) -> bool:
    """True if a part has its own version of a hook."""
    return getattr(type(part), hook) is not getattr(UpdateStep, hook)
