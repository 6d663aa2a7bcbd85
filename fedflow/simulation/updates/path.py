"""All steps of a run that updates take on their way to the server, in their order."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedflow.errors import FedflowError, returned
from fedflow.local.client import Update, check_diagnostic
from fedflow.local.wire import Size, masked, message_bytes
from fedflow.methods.method import Method, Round
from fedflow.methods.protocols import Pruning
from fedflow.seeding import generator, place
from fedflow.simulation.updates.step import Arrived, Changed, Incoming, Outgoing, Sent, Shared, UpdateStep

V = TypeVar("V")
KEPT = "update."  # starts the names of vectors that clients keep for steps
RESERVED = f"{KEPT}<number>.<name>"
NOT_FINITE = "its update holds NaN or infinite values"
NEGATIVE = "its weight is {:g}, not a number >= 0"


class Result(Protocol):
    """The result of one client in a round, as the server has it."""

    client: int
    group: int
    weight: float
    reported: dict[str, float]
    vectors: dict[str, Tensor]


class UpdatePath:
    """The ``steps`` of the updates of a ``method``.

    Whatever the steps, no update with a NaN or an infinite value reaches the server, and of a vector under a
    mask (`Pruning.masks`), only the entries of the sub-network cross.
    """

    def __init__(
        self,
        method: Method,
        steps: Sequence[UpdateStep] = (),
        seed: int = 0,
        state: Mapping[str, Tensor] | None = None,
        clients: int = 0,
    ) -> None:
        self.method, self.steps, self.seed, self.clients = method, tuple(steps), seed, clients
        self.sizes: dict[str, Size] = {}  # of served vectors by name
        self.masks = Pruning.of(method).masks
        self.state = dict(state or {})  # of the server, for all steps
        if state is None:
            starts = enumerate(step.start() for step in self.steps)
            self.state = {f"{i}.{name}": value for i, start in starts for name, value in start.items()}

    def having(self, *hooks: str) -> list[UpdateStep]:
        """The steps with their own version of one of these hooks of `UpdateStep`."""
        return [step for step in self.steps if any(_has(step, hook) for hook in hooks)]

    @property
    def gathers(self) -> bool:
        """True if the server needs every single update."""
        return self.method.gathers or bool(self.having("combine", "meet"))

    @property
    def identity(self) -> tuple[object, ...]:
        """The identity of `accepts`."""
        return tuple((type(step), repr(step)) for step in self.having("accepts"))

    # Vectors that clients keep for steps

    @property
    def kept_names(self) -> list[str]:
        return [f"{KEPT}{i}.{name}" for i, step in enumerate(self.steps) for name in step.keeps]

    def first(self, taken: Mapping[str, object], like: Tensor) -> dict[str, Tensor]:
        """Placeholders for the store, in the type and on the device of ``like``: nothing is kept at first.

        Raises `FedflowError` if the method's vectors, ``taken``, have such names.
        """
        if reserved := [name for name in taken if name.startswith(KEPT)]:
            raise FedflowError(f"{self.method.name}: {reserved[0]!r} is a name of the engine ({RESERVED})")
        return {name: like.new_zeros(0) for name in self.kept_names}

    # Before training

    def serve(
        self,
        messages: Mapping[int, dict[str, Tensor]],
        at: tuple[int, int],
        others: Sequence[Mapping[str, Tensor]] = (),
    ) -> Mapping[int, dict[str, Tensor]]:
        """The ``messages`` by client after all steps: vectors that they and ``others`` share are changed.

        ``at`` is the round and its cycle. Also sets the sizes of these vectors, and the server's state.
        """
        serving = [(i, step) for i, step in enumerate(self.steps) if _has(step, "serve")]
        first = next(iter(messages.values()), {})
        changed: dict[str, Tensor] = {}
        for name, vector in first.items() if serving else ():
            address = _address(vector)
            if vector.is_floating_point() and all(
                name in message and _address(message[name]) == address
                for message in [*messages.values(), *others]
            ):
                for i, step in serving:
                    changed[name] = vector = self._serve(i, step, name, vector, at)
        return {k: message | changed for k, message in messages.items()}

    def _serve(self, i: int, step: UpdateStep, name: str, vector: Tensor, at: tuple[int, int]) -> Tensor:
        def rng(purpose: str) -> np.random.Generator:
            return generator(self.seed, f"serve {i} {purpose} {name}", *at)

        served = step.serve(Shared(name, at[0], self._state_of(i), rng), vector)
        if served.vector.shape != vector.shape or served.vector.dtype != vector.dtype:
            raise FedflowError(f"run.updates: {step.name}.serve returns {name} in another shape or type")
        if served.size is not None:
            self.sizes[name] = served.size
        self.state |= {f"{i}.{key}": value for key, value in served.state.items()}
        return served.vector

    @property
    def for_workers(self) -> dict[str, Tensor]:
        """The server's state that workers get."""
        return {name: t for name, t in self.state.items() if not name.partition(".")[2].startswith("_")}

    def received_bytes(self, vectors: Mapping[str, Tensor]) -> int:
        """The bytes of a message to a client."""

        def served(name: str, vectors: Mapping[str, Tensor], size: Size) -> Size:
            return self.sizes.get(name, size)

        return message_bytes(vectors, codings=[masked(self.masks), served])

    # On the worker

    def accepts(self, update: Update, received: Mapping[str, Tensor]) -> Tensor:
        """True if the server may have the update of one client, scalar bool."""
        of_steps = (step.accepts(update, received) for step in self.having("accepts"))
        return torch.stack([update.finite(), update.weight >= 0, *of_steps]).all()

    def fault(self, update: Update, received: Mapping[str, Tensor]) -> str:
        """The reason why the server may not have the update of one client, or an empty text."""
        if not update.finite():
            return NOT_FINITE
        if update.weight < 0:
            return NEGATIVE.format(update.weight.item())
        refusing = (step for step in self.having("accepts") if not step.accepts(update, received))
        return next((f"{step.name} refuses its update" for step in refusing), "")

    def changed(
        self,
        clients: Sequence[int],
        at: tuple[int, int],
        update: Update,
        received: Sequence[Mapping[str, Tensor]],
        kept: Sequence[Mapping[str, Tensor]],
        cohort: Sequence[int] = (),
    ) -> tuple[Update, list[Mapping[str, Tensor]]]:
        """The ``update`` [C, ...] of some clients after all steps, with kept vectors and diagnostics.

        Also `Changed.entries` of every step. ``at`` is the round and its cycle; ``kept`` has all vectors that
        each client keeps for steps; ``cohort`` are all clients of the round.
        """
        entries: list[Mapping[str, Tensor]] = []
        places = self._places(clients)
        for i, step in enumerate(self.steps):

            def rng(purpose: str, client: int, i: int = i) -> np.random.Generator:
                return generator(self.seed, f"update {i} {purpose}", *at, client)

            start = f"{KEPT}{i}."
            kept_for_step = [_under(start, vectors) for vectors in kept]
            state = self._state_of(i)
            sent = Outgoing(
                *(clients, at[0], update, received, kept_for_step, state, self.masks, rng, step.name),
                *(cohort, places),
            )
            new = returned(step.change(sent), Changed, f"{step.name}.change", "Changed")
            numbers = {f"{self.title(i)}.{name}": t for name, t in new.diagnostics.items()}
            _check(step, new, update, numbers)
            entries.append(new.entries)
            update = replace(
                update,
                vectors={**update.vectors, **new.vectors},
                keep=update.keep | {f"{start}{name}": t for name, t in new.kept.items()},
                diagnostics=update.diagnostics | numbers,
            )
        return update, entries

    def bytes(
        self, vectors: Mapping[str, Tensor], scalars: int = 0, entries: Sequence[Mapping[str, int]] = ()
    ) -> int:
        """The bytes of the ``vectors`` and scalars of one client as they cross.

        ``entries`` are the numbers of entries that cross, by step and vector, if a step gave any.
        """
        codings = [partial(_size, step, counts) for step, counts in zip(self.steps, entries, strict=True)]
        return message_bytes(vectors, scalars, [masked(self.masks), *codings])

    # On the server

    def meet(
        self, sent: Sequence[Result], received: Mapping[int, Mapping[str, Tensor]], at: tuple[int, int]
    ) -> None:
        """Change the vectors of all clients of a round together; ``received`` by client."""
        for i, step in enumerate(self.steps):
            if not _has(step, "meet") or not sent:
                continue

            def rng(purpose: str, i: int = i) -> np.random.Generator:
                return generator(self.seed, f"meet {i} {purpose}", *at)

            clients = [c.client for c in sent]
            vectors = {name: [c.vectors[name] for c in sent] for name in sent[0].vectors}
            about = clients, [c.group for c in sent], [c.weight for c in sent], self._places(clients)
            messages = [received.get(k, {}) for k in clients]
            got = Arrived(*about, at[0], vectors, messages, self._state_of(i), rng)
            for name, rows in step.meet(got).items():
                if [row.shape for row in rows] != [row.shape for row in vectors.get(name, ())]:
                    raise FedflowError(f"run.updates: {step.name}.meet returns {name}, which it may not")
                for c, row in zip(sent, rows, strict=True):
                    c.vectors[name] = row

    def reads(self, what: str) -> None:
        """Raise `BadInput` if a step forbids the server to read ``what`` of single clients."""
        for step in self.steps:
            step.reads(self.method, what)

    def mean(
        self,
        name: str,
        group: int | None,
        clients: Sequence[int],
        weights: np.ndarray,
        at: tuple[int, int],
        exact: Callable[[], Tensor],
        rows: Sequence[Tensor],
        cohort: Sequence[int] = (),
    ) -> Tensor:
        """The mean of the ``rows`` of some clients after all steps; ``exact`` computes it without any."""

        def asked_of(i: int) -> Incoming:
            def rng(purpose: str) -> np.random.Generator:
                number = -1 if group is None else group
                return generator(self.seed, f"mean {i} {purpose} {name}", *at, number)

            return Incoming(name, group, clients, weights, at[0], self._state_of(i), rng, cohort)

        mean = None
        for i, step in enumerate(self.steps):
            if _has(step, "combine"):
                if len({vector.shape for vector in rows}) > 1:
                    raise step.unfit(f"without {self.method.name}, whose vectors {name} differ in size")
                mean = step.combine(asked_of(i), torch.stack([*rows]))
        mean = exact() if mean is None else mean
        for i, step in enumerate(self.steps):
            mean = step.after(asked_of(i), mean)
        return mean

    def learn(
        self, now: Round, clients: Sequence[Result], averaged: bool
    ) -> tuple[dict[str, Tensor], dict[str, float]]:
        """The server's state after a round, and numbers to record; ``averaged``: it asked for a mean.

        Raises `BadInput` for steps that change means which the server does not ask for.
        """
        if clients and not averaged and (idle := self.having("combine", "after")):
            raise idle[0].unfit(f"without {self.method.name}, whose server takes no mean of updates")
        states: dict[str, Tensor] = {}
        recorded: dict[str, float] = {}
        for i, step in enumerate(self.steps):
            start = f"{self.title(i)}."
            sent = [Sent(c.client, c.group, c.weight, _under(start, c.reported)) for c in clients]
            state, numbers = step.learn(now, self._state_of(i), sent)
            states |= {f"{i}.{name}": torch.as_tensor(value) for name, value in state.items()}
            for name, number in numbers.items():
                _check_name(step, name)
                recorded[f"update/{start}{name}"] = float(number)
        return states, recorded

    def _places(self, clients: Sequence[int]) -> list[float]:
        return [place(self.seed, k, self.clients) for k in clients]

    def _state_of(self, i: int) -> dict[str, Tensor]:
        return _under(f"{i}.", self.state)

    def title(self, i: int) -> str:
        """The name of the i-th step in the record, with its number if the name occurs twice."""
        name = self.steps[i].name
        return f"{name}-{i + 1}" if [step.name for step in self.steps].count(name) > 1 else name


def _check(step: UpdateStep, new: Changed, update: Update, numbers: Mapping[str, Tensor]) -> None:
    """Raise `FedflowError` for names and shapes that a step may not return."""
    for name in new.diagnostics:
        _check_name(step, name)
    shapes = {name: vector.shape for name, vector in update.vectors.items()}
    wrong = {name for name, vector in new.vectors.items() if vector.shape != shapes.get(name)}
    by_client = [*new.diagnostics.items(), *new.entries.items()]
    wrong |= {name for name, values in by_client if values.shape != update.weight.shape}
    wrong |= (new.kept.keys() - {*step.keeps}) | (numbers.keys() & update.diagnostics.keys())
    if wrong:
        names = ", ".join(sorted(wrong))
        raise FedflowError(f"run.updates: {step.name}.change returns {names}, which it may not")


def _check_name(step: UpdateStep, name: str) -> None:
    """Raise `FedflowError` for a name that no number of the record can have."""
    try:
        check_diagnostic(name)
    except ValueError as error:
        raise FedflowError(f"run.updates: {step.name}: {error}") from error


def _under(start: str, values: Mapping[str, V]) -> dict[str, V]:
    return {name.removeprefix(start): value for name, value in values.items() if name.startswith(start)}


def _size(
    step: UpdateStep, entries: Mapping[str, int], name: str, vectors: Mapping[str, Tensor], size: Size
) -> Size:
    return step.size(name, vectors, size._replace(entries=entries.get(name, size.entries)))


def _address(vector: Tensor) -> tuple[object, ...]:
    return vector.data_ptr(), vector.shape, vector.stride(), vector.dtype


def _has(step: UpdateStep, hook: str) -> bool:
    return getattr(type(step), hook) is not getattr(UpdateStep, hook)
