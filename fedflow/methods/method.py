"""The interface of a federated method: what is sent, the client step, the server step, the model served.

A method is a `Settings` class (its hyper-parameters) with four facts and ten hooks. They are called in this
order: `check`, `setup` and `client_state` once; in every round `plan`, `broadcast`, `local`, `aggregate`; and
`model_for` to serve and score clients. Abilities that only some methods have, such as `Onboarding` or
`Pruning`, are further base classes (`fedflow.methods.protocols`).

Hooks are pure functions: they do not modify the server's state or other arguments, but return new values.
A method never loops over batches, chooses a device or writes a file; the engine does.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, Self, cast

import numpy as np
from torch import Tensor
from typing_extensions import TypeVar  # with defaults, which the standard library has from Python 3.13 on

from fedflow.data import Examples
from fedflow.errors import BadInput
from fedflow.local.client import Client, Update
from fedflow.local.local_training import LocalTraining
from fedflow.models.flat import FlatModel
from fedflow.settings import Settings

Message = dict[str, Tensor]  # what one client receives, by name
# What a method reports of one round, by name: a number, or an array [N] with one per client (NaN = none).
Diagnostics = Mapping[str, float | np.ndarray]
# Initial values of the vectors that a client keeps, by name; a function makes one per client, from a seed.
ClientState = Mapping[str, Tensor | Callable[[int], Tensor]]
REGISTERED = ("section", "name", "label")  # of a method, but not of its contract
RETIRED = {  # hooks of the past, which nothing would call
    "check_training": "check(run), where run.training is local training",
    "check_clients": "check(run), where run.clients is None until data are divided",
    "fits": "work, whose Passes have fits",
    "trains_one_model": "serves and serves_with",
}


@dataclass(frozen=True)
class Round:
    """One round as the server sees it.

    ``t`` counts from 1 to ``rounds`` (T), ``cycle`` from 0 the server steps within a round (`Cyclic`). In
    every onboarding ``t`` is 0; models are served and scored as in the next round. ``lr`` is the clients'
    learning rate, ``sizes`` [N] are n_k of all clients, ``public`` is the server's own data, if any. ``rng``
    is for the random choices of one call of a hook: the same numbers for the same seed, round and client.
    """

    t: int
    rounds: int
    lr: float
    sizes: np.ndarray
    model: FlatModel
    public: Examples | None
    draw: Callable[[], np.random.Generator]
    cycle: int = 0

    @cached_property
    def rng(self) -> np.random.Generator:
        return self.draw()  # a generator costs more than a small hook: only on demand

    @property
    def clients(self) -> int:
        """The number N of clients, without newcomers."""
        return len(self.sizes)

    def need_public(self, by: str) -> Examples:
        """The server's data, which the method ``by`` this name needs; `BadInput` if there are none."""
        if self.public is None:
            raise BadInput("partition.public", 0, f"a number >= 1, as {by} needs data of the server")
        return self.public


@dataclass(frozen=True)
class Conditions:
    """The run that a method has to fit: its ``rounds``, its local ``training``, its number of ``clients``.

    ``clients`` (N, without newcomers) is None as long as no partition is drawn.
    """

    rounds: int
    training: LocalTraining
    clients: int | None = None

    def need_clients(self, field: str, number: int | None) -> None:
        """Raise `BadInput` for this ``field`` if its value ``number`` is more than the number of clients."""
        if number is not None and self.clients is not None and number > self.clients:
            raise BadInput(field, number, f"at most {self.clients}, the clients")


@dataclass(frozen=True)
class ServerState:
    """The server's state between rounds: tensors, or None for fields that are unknown or unused.

    Methods with more state than a model subclass it.
    """

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by field, without those that are None."""
        named = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in named.items() if value is not None}

    def restored(self, tensors: Mapping[str, Tensor]) -> Self:
        """A state of this class from what `tensors` returned."""
        return type(self)(**{field.name: tensors.get(field.name) for field in dataclasses.fields(self)})


@dataclass(frozen=True)
class GlobalModel(ServerState):
    """One ``model`` [D] for all."""

    model: Tensor


S = TypeVar("S", bound=ServerState, default=Any)  # the server's state of a method
M = TypeVar("M", bound=GlobalModel, default=GlobalModel)  # one with a global model


class Cohort(Protocol):
    """The updates of one round, in client order."""

    ids: list[int]
    groups: list[int]
    failed: list[int]  # clients of the cohort without an update: theirs was not finite, or training raised
    newcomers: bool  # whether these clients join after the last round (numbers N and up)

    def mean(self, name: str, group: int | None = None, weights: np.ndarray | None = None) -> Tensor:
        """Weighted mean [.] of an uploaded vector, over the cohort or over one of its ``groups``.

        ``weights`` [m], not normalized, replace the uploaded ones (for methods that declare ``gathers``).
        """

    def stack(self, name: str) -> Tensor:
        """Every client's vector [m, .] (for methods that declare ``gathers``)."""

    def vectors(self, name: str) -> list[Tensor]:
        """The same as a list, for vectors of different shapes."""

    def scalars(self, name: str) -> np.ndarray:
        """An uploaded scalar of every client [m], float64."""

    @property
    def weights(self) -> np.ndarray:
        """Every client's weight [m], float64, not normalized."""


class Passes(NamedTuple):
    """Local work in one round: passes over all samples of a client, with and without gradients.

    ``inputs`` counts other inputs whose gradients are computed. ``fits`` counts calls of `Client.fit` and
    `Client.run_steps`, each of which scores the samples for a curriculum; None: one per stream.
    """

    gradients: float
    losses: float = 0.0  # without gradients
    inputs: float = 0.0  # not in passes, but their number
    fits: int | None = None


class Ability:
    """Base of the protocols: what some methods can do besides the hooks of `Method`.

    Direct subclasses are protocols. Their answers are neutral, as for a method without the ability.
    """

    @classmethod
    def of(cls, method: object) -> Self:
        """``method``, if it has this ability, else a neutral answer for it."""
        return method if isinstance(method, cls) else cls()


def contract(kind: type) -> list[str]:
    """The names of hooks and facts that `Method` or a protocol defines."""
    return [name for name in vars(kind) if not name.startswith("_") and name not in REGISTERED]


class Method(Settings, Generic[S]):
    """Base of all methods, whose server has a state of class ``S``.

    ``serves``: the kind of model that clients are served, "global", one per "cluster", one per "level", or
    "personal". ``gathers``: `aggregate` needs every client's update, not only means. ``newcomer`` maps kept
    vectors to received ones, which replace them for a client that never took part. ``serves_with`` names the
    kept vectors that `model_for` reads (default: all where models are "personal", else none).
    """

    section = "method"
    name: ClassVar[str] = ""
    label: ClassVar[str] = ""
    serves: ClassVar[str] = "global"
    gathers: ClassVar[bool] = False
    newcomer: ClassVar[Mapping[str, str]] = {}
    serves_with: ClassVar[tuple[str, ...] | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Raise `TypeError` for a hook that would not be called: its protocol is not a base class."""
        super().__init_subclass__(**kwargs)
        defined = {name for each in cls.__mro__ for name in (*vars(each), *_annotated(each))}
        for name in RETIRED.keys() & defined:
            raise TypeError(f"{cls.__name__}.{name} is no longer a hook: use {RETIRED[name]}")
        for kind in Ability.__subclasses__():
            if not issubclass(cls, kind) and (hooks := [name for name in contract(kind) if name in defined]):
                if hooks[0] in {field.name for field in dataclasses.fields(cls)}:
                    wanted = "give the option another name"
                else:
                    wanted = f"write class {cls.__name__}({kind.__name__}, ...)"
                raise TypeError(f"{cls.__name__}.{hooks[0]} is a hook of {kind.__name__}: {wanted}")

    def check(self, run: Conditions) -> None:
        """Raise `BadInput` unless the method is right for this run."""

    def setup(self, model: FlatModel, initial: Callable[[int], Tensor]) -> S:
        """The server's initial state. ``initial(i)`` [D] is the i-th initial model."""
        return cast("S", GlobalModel(initial(0)))  # methods with another state have a `setup`

    def client_state(self, model: FlatModel, initial: Tensor) -> ClientState:
        """Initial values of the vectors that a client keeps; ``initial`` [D] is the common model.

        A function makes another vector for every client, from a seed.
        """
        return {}

    def streams(self, training: LocalTraining) -> dict[str, int]:
        """The batch streams that `local` uses, with their local epochs."""
        return {"batches": training.epochs}

    def plan(self, now: Round, server: S, chances: np.ndarray, size: int) -> tuple[np.ndarray, S]:
        """The cohort, ``size`` distinct clients, drawn in proportion to their chances [N] (`run.sampling`).

        Also the server's state, with random choices that are needed later.
        """
        return draw(now.rng, chances, size), server

    def broadcast(self, now: Round, server: S, client: int) -> Message:
        """What one client receives; traffic down is counted from it."""
        if not isinstance(server, GlobalModel):
            raise NotImplementedError(f"{type(self).__name__}.broadcast: its state is not a GlobalModel")
        return {"model": server.model}

    def local(self, client: Client) -> Update:
        """The client step; traffic up is counted from the update's vectors and scalars."""
        raise NotImplementedError

    def aggregate(self, now: Round, server: S, cohort: Cohort) -> tuple[S, Diagnostics]:
        """The server's next state, and what to record of this round."""
        raise NotImplementedError

    def model_for(self, client: Client) -> Tensor | tuple[Tensor, Tensor | None]:
        """The vector [D] that a client is served and scored with, from what it received for that.

        Clustered methods return (vector, cluster number). Clients that share a model should return
        the same memory, so that it is evaluated once. (vectors [k, D], None) leaves the choice to
        the client's own test data, as some published numbers do: the model with the lowest loss there.
        """
        return client.received["model"]

    def work(self, now: Round, server: S, epochs: float, steps: int) -> Passes:
        """The work of `local`, for simulated time and the count of gradients: by default one per step.

        ``epochs`` is the sum over all streams, ``steps`` the number of batches in one epoch.
        """
        return Passes(epochs)


def _annotated(cls: type) -> Mapping[str, Any]:
    """The names that a class annotates, with or without a value."""
    found: Mapping[str, Any] = vars(cls).get("__annotations__", {})
    return found


def draw(rng: np.random.Generator, chances: np.ndarray, size: int) -> np.ndarray:
    """``size`` distinct indices, drawn in proportion to ``chances`` [n], which need not sum to 1."""
    equal = (chances == chances[0]).all()
    return rng.choice(len(chances), size=size, replace=False, p=None if equal else chances / chances.sum())
