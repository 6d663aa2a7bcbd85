"""The interface of a federated method: what is sent, the client step, the server step, the model served.

A method is a `Settings` class (its hyperparameters) with four facts and ten hooks. They are called in this
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
# Reported values of one round, by name: a number, or an array [N] with one number per client (NaN = none).
Diagnostics = Mapping[str, float | np.ndarray]
# Initial values of the vectors that a client keeps, by name; a function makes one per client, from a seed.
ClientState = Mapping[str, Tensor | Callable[[int], Tensor]]
Initial = Callable[[int], Tensor]  # the i-th initial model [D]
REGISTERED = ("section", "name", "label")  # class attributes that are not part of the contract


@dataclass(frozen=True)
class Round:
    """One round as the server sees it.

    ``t`` counts the rounds from 1 to ``rounds`` (T), ``cycle`` the server steps within a round from 0
    (`Cyclic`). During onboarding, ``t`` is 0; to serve and score models, it is the next round. ``lr`` is the
    clients' learning rate, ``sizes`` [N] are the n_k of all clients, ``public`` is the server's own data, if
    any. ``rng`` makes the random choices of one hook call: the same for the same seed, round and client.
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
        """Number N of clients, without newcomers."""
        return len(self.sizes)

    def need_public(self, by: str) -> Examples:
        """Return the server's data for the method named ``by``; raise `BadInput` if there are none."""
        if self.public is None:
            raise BadInput("partition.public", 0, f"a number >= 1, as {by} needs data of the server")
        return self.public


@dataclass(frozen=True)
class Conditions:
    """Settings of a run that a method checks; ``clients`` (N) is None until the partition is known.

    ``several``: the samples can have several labels each, which is known with the data. ``participation``
    and ``sampling`` are the settings of the run. ``rule`` names the step of updates that replaces means.
    """

    rounds: int
    training: LocalTraining
    clients: int | None = None
    several: bool = False
    participation: float = 1.0
    sampling: str = "uniform"
    rule: str = ""

    def need_means(self, by: str, why: str) -> None:
        """Raise `BadInput` if a step of updates replaces means, which are not all that ``by`` averages."""
        if self.rule:
            raise BadInput("run.updates", self.rule, f"{self.rule} without {by}, {why}")

    def need_clients(self, field: str, number: int | None) -> None:
        """Raise `BadInput` if ``number``, the value of ``field``, exceeds the number of clients."""
        if number is not None and self.clients is not None and number > self.clients:
            raise BadInput(field, number, f"at most {self.clients}, the clients")


@dataclass(frozen=True)
class ServerState:
    """The server's state between rounds: tensors, or None where a field is not set."""

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by field name, without fields that are None."""
        named = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in named.items() if value is not None}

    def restored(self, tensors: Mapping[str, Tensor]) -> Self:
        """A state of this class with the tensors that `tensors` returned."""
        return type(self)(**{field.name: tensors.get(field.name) for field in dataclasses.fields(self)})


@dataclass(frozen=True)
class GlobalModel(ServerState):
    """One ``model`` [D] for all."""

    model: Tensor


S = TypeVar("S", bound=ServerState, default=Any)  # a method's server state
M = TypeVar("M", bound=GlobalModel, default=GlobalModel)  # a server state with a global model
Next = tuple[S, Diagnostics]  # the server's next state, and values to record


class Cohort(Protocol):
    """The updates of one round, in client order."""

    failed: list[int]  # clients of the cohort whose update was not finite or whose training raised
    newcomers: bool  # true if these clients (numbers N and up) join after the last round

    @property
    def ids(self) -> list[int]:
        """The clients [m], sorted."""

    @property
    def groups(self) -> list[int]:
        """The groups of all clients [m], such as their clusters."""

    def mean(self, name: str, group: int | None = None, weights: np.ndarray | None = None) -> Tensor:
        """Weighted mean [.] of an uploaded vector, over the cohort or over one of its ``groups``.

        ``weights`` [m], not normalized, replace the uploaded ones (for methods that declare ``gathers``).
        """

    def stack(self, name: str) -> Tensor:
        """Uploaded vectors of all clients [m, .] (for methods that declare ``gathers``)."""

    def vectors(self, name: str) -> list[Tensor]:
        """The same as a list, for vectors of different shapes."""

    def scalars(self, name: str) -> np.ndarray:
        """Uploaded scalars of all clients [m], float64."""

    @property
    def weights(self) -> np.ndarray:
        """Weights of all clients [m], float64, not normalized."""


class Passes(NamedTuple):
    """Local work in one round, in passes over all samples of a client."""

    gradients: float
    losses: float = 0.0  # passes without gradients
    inputs: float = 0.0  # number of other inputs whose gradients are computed
    fits: int | None = None  # trainings that score samples for a curriculum, or None for one per stream


class Ability:
    """Base of the protocols, its direct subclasses, whose hooks only some methods have.

    Their defaults are the answers for a method without the ability.
    """

    @classmethod
    def of(cls, method: object) -> Self:
        """Return ``method`` if it has this ability, else the defaults."""
        return method if isinstance(method, cls) else cls()


def contract(kind: type) -> list[str]:
    """Names of the hooks and facts that `Method` or a protocol defines."""
    return [name for name in vars(kind) if not name.startswith("_") and name not in REGISTERED]


class Method(Settings, Generic[S]):
    """Base of all methods; the server's state has class ``S``.

    ``serves`` is the kind of model that clients are served: "global", one per "cluster", one per "level", or
    "personal". With ``gathers``, `aggregate` needs the update of every client, not only means. ``newcomer``
    maps kept vectors to the received ones that replace them for a client that never took part.
    ``serves_with`` names the kept vectors that `model_for` reads (by default all if models are "personal",
    else none).
    """

    section = "method"
    name: ClassVar[str] = ""
    label: ClassVar[str] = ""
    serves: ClassVar[str] = "global"
    gathers: ClassVar[bool] = False
    newcomer: ClassVar[Mapping[str, str]] = {}
    serves_with: ClassVar[tuple[str, ...] | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Raise `TypeError` for a hook that nothing would call, because its protocol is no base class."""
        super().__init_subclass__(**kwargs)
        bases = [vars(base) for base in cls.__mro__]
        defined = {name for base in bases for name in (*base, *base.get("__annotations__", ()))}
        for kind in Ability.__subclasses__():
            if not issubclass(cls, kind) and (hooks := [name for name in contract(kind) if name in defined]):
                if hooks[0] in {field.name for field in dataclasses.fields(cls)}:
                    wanted = "give the option another name"
                else:
                    wanted = f"write class {cls.__name__}({kind.__name__}, ...)"
                raise TypeError(f"{cls.__name__}.{hooks[0]} is a hook of {kind.__name__}: {wanted}")

    def check(self, run: Conditions) -> None:
        """Raise `BadInput` if the method does not fit this run."""

    def setup(self, model: FlatModel, initial: Initial) -> S:
        """Return the server's initial state. ``initial(i)`` [D] is the i-th initial model."""
        return cast("S", GlobalModel(initial(0)))  # methods with another state override this

    def client_state(self, model: FlatModel, initial: Tensor) -> ClientState:
        """Return the initial vectors that a client keeps; ``initial`` [D] is the common model.

        Kept vectors have the type and the shape of the first ones; the length of a vector [n] may differ.
        A function makes a different vector for each client from a seed.
        """
        return {}

    def streams(self, training: LocalTraining) -> dict[str, int]:
        """Return the batch streams that `local` uses, with their local epochs."""
        return {"batches": training.epochs}

    def plan(self, now: Round, server: S, chances: np.ndarray, size: int) -> tuple[np.ndarray, S]:
        """Return the cohort and the server's state, with random choices that are needed later.

        The cohort is ``size`` distinct clients, drawn in proportion to their chances [N] (`run.sampling`).
        """
        return draw(now.rng, chances, size), server

    def broadcast(self, now: Round, server: S, client: int) -> Message:
        """Return the message for one client; traffic down is counted from it."""
        if not isinstance(server, GlobalModel):
            raise NotImplementedError(f"{type(self).__name__}.broadcast: its state is not a GlobalModel")
        return {"model": server.model}

    def local(self, client: Client) -> Update:
        """Take the client step; traffic up is counted from the update's vectors and scalars."""
        raise NotImplementedError

    def aggregate(self, now: Round, server: S, cohort: Cohort) -> Next[S]:
        """Return the server's next state and the values to record for this round."""
        raise NotImplementedError

    def model_for(self, client: Client) -> Tensor | tuple[Tensor, Tensor | None]:
        """Return the vector [D] that a client is served and scored with.

        Clustered methods return (vector, cluster number). Clients that share a model should return the same
        memory, so that it is evaluated once. (vectors [k, D], None) selects the model with the lowest loss on
        the client's test data, as some published numbers do.
        """
        return client.received["model"]

    def work(self, now: Round, server: S, epochs: float, steps: int) -> Passes:
        """Return the work of `local`, for simulated time and the count of gradients.

        ``epochs`` is the sum over all streams, ``steps`` the number of batches in one epoch.
        """
        return Passes(epochs)


def draw(rng: np.random.Generator, chances: np.ndarray, size: int) -> np.ndarray:
    """Draw ``size`` distinct indices in proportion to ``chances`` [n], which need not sum to 1."""
    equal = (chances == chances[0]).all()
    return rng.choice(len(chances), size=size, replace=False, p=None if equal else chances / chances.sum())
