"""The interface of a federated method: what is sent, the client step, the server step, the model served.

A method is a `Settings` class (its hyper-parameters) and up to six core hooks, called in this order: `setup`
once; in every round `plan`, `broadcast`, `local`, `aggregate`; and `model_for` to serve and score clients.
The other hooks of `Method` have defaults that most methods keep. What only some methods do is a base class
beside `Method` that the engine asks for by `isinstance`: `Onboarding`, `Asynchronous`, `Clustered`, `Cyclic`,
`Pretrained`.

Hooks are functions: they change neither the server's state nor their other arguments, and return what is new.
A method never loops over batches, knows no device, and writes no file; the engine does.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from torch import Tensor

from fedflow.data import Examples
from fedflow.errors import BadInput
from fedflow.local.client import Client, Update
from fedflow.local.training import LocalTraining
from fedflow.models.flat import FlatModel
from fedflow.settings import Settings

Message = dict[str, Tensor]  # what one client receives, by name
Diagnostics = Mapping[str, float]  # a method's own numbers of one round, by name


@dataclass(frozen=True)
class Round:
    """One round as the server sees it.

    ``t`` counts from 1 to ``rounds`` (T); it is 0 in the onboarding before the first round, and T in that of
    newcomers. Models are served and scored as in the round that comes next. ``lr`` is the clients' learning
    rate, ``sizes`` [N] are n_k of all clients, ``public`` is what the server itself holds, if anything.
    ``rng`` is for the random choices of one hook in this round: the same numbers for the same seed.
    """

    t: int
    rounds: int
    lr: float
    sizes: np.ndarray
    model: FlatModel
    public: Examples | None
    draw: Callable[[], np.random.Generator]

    @cached_property
    def rng(self) -> np.random.Generator:
        return self.draw()  # a generator costs more than a small hook: only on demand

    @property
    def clients(self) -> int:
        """N."""
        return len(self.sizes)

    def need_public(self, by: str, *, instead: str = "") -> Examples:
        """The server's data, which the method ``by`` this name needs; `BadInput` if there are none.

        ``instead`` says how else the method can get data.
        """
        if self.public is None:
            accepted = f"a number >= 1, as {by} needs data of the server{instead and '; ' + instead}"
            raise BadInput("partition.public", 0, accepted)
        return self.public


@dataclass(frozen=True)
class ServerState:
    """What the server remembers between rounds: tensors, or None for what is not known or not used.

    Methods with more than a model subclass it.
    """

    def tensors(self) -> dict[str, Tensor]:
        """All that is known, by field."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def restored(self, tensors: Mapping[str, Tensor]) -> Any:
        """A state of this class with what `tensors` returned."""
        return type(self)(**{field.name: tensors.get(field.name) for field in dataclasses.fields(self)})


@dataclass(frozen=True)
class GlobalModel(ServerState):
    """One ``model`` [D] for all."""

    model: Tensor


class Cohort(Protocol):
    """The updates of one round, in client order."""

    ids: list[int]
    groups: list[int]
    newcomers: bool  # whether these clients join after training (numbers N and up)

    def mean(self, name: str, group: int | None = None, weights: np.ndarray | None = None) -> Tensor:
        """Weighted mean [.] of an uploaded vector, over all clients or over one of ``groups``.

        ``weights`` [m], not normalised, replace the clients' own (for methods that declare ``gathers``).
        """

    def stack(self, name: str) -> Tensor:
        """Every client's vector [m, .] (for methods that declare ``gathers``)."""

    def vectors(self, name: str) -> list[Tensor]:
        """The same as a list, for vectors of different shapes."""

    def scalars(self, name: str) -> np.ndarray:
        """An uploaded scalar of every client [m], float64."""

    @property
    def weights(self) -> np.ndarray:
        """Every client's weight [m], float64, not normalised."""


class Passes(NamedTuple):
    """Local work in one round: passes over all samples of a client, by what is computed."""

    gradients: float
    losses: float = 0.0  # without their gradients


class Method(Settings):
    """Base of all methods.

    ``serves`` says what clients are given: one "global" model, one per "cluster", or a "personal" one each.
    ``gathers`` asks for every client's update in `aggregate` instead of their means. ``newcomer`` maps kept
    vectors to received ones: a client that never took part is served with these. ``serves_with`` names the
    kept vectors that `model_for` reads (default: all where models are "personal", else none). ``masks`` maps
    uploaded vectors to uploaded masks (bool): only entries under the mask travel.
    """

    section = "method"
    name: ClassVar[str] = ""
    label: ClassVar[str] = ""
    serves: ClassVar[str] = "global"
    gathers: ClassVar[bool] = False
    newcomer: ClassVar[Mapping[str, str]] = {}
    serves_with: ClassVar[tuple[str, ...] | None] = None
    masks: ClassVar[Mapping[str, str]] = {}

    # The core.

    def setup(self, model: FlatModel, initial: Callable[[int], Tensor]) -> Any:
        """The server's first state, a `ServerState`. ``initial(i)`` [D] is the i-th first model."""
        return GlobalModel(initial(0))

    def plan(self, now: Round, server: Any, chances: np.ndarray, size: int) -> tuple[np.ndarray, Any]:
        """The cohort, ``size`` distinct clients, each in proportion to its chance [N] (`run.sampling`).

        Also the server's state, with what was drawn here and is needed later.
        """
        return draw(now.rng, chances, size), server

    def broadcast(self, now: Round, server: Any, client: int) -> Message:
        """What one client receives; traffic down is counted from it."""
        return {"model": server.model}

    def local(self, client: Client) -> Update:
        """The client step; traffic up is counted from the update's vectors and scalars."""
        raise NotImplementedError

    def aggregate(self, now: Round, server: Any, cohort: Cohort) -> tuple[Any, Diagnostics]:
        """The server's next state, and numbers of this round to record."""
        raise NotImplementedError

    def model_for(self, client: Client) -> Tensor | tuple[Tensor, Tensor | None]:
        """The vector [D] that a client is served and scored with, from what it received to be served.

        Clustered methods return (vector, cluster number). Clients that share a model should return
        the same memory, so that it is evaluated once. (vectors [k, D], None) leaves the choice to
        the client's own test data, as some published numbers do: the least loss there.
        """
        return client.received["model"]

    # What most methods leave as it is.

    def check(self, rounds: int) -> None:
        """Raise `BadInput` if a run of ``rounds`` rounds is too short for a phase of the method."""

    def client_state(self, model: FlatModel, initial: Tensor) -> dict[str, Tensor]:
        """The first value of every vector that a client keeps; ``initial`` [D] is the common first model."""
        return {}

    def phase(self, now: Round) -> str:
        """The phase of the method that a round belongs to (`Client.phase`), by its number alone."""
        return ""

    def streams(self, training: LocalTraining) -> dict[str, int]:
        """The batch streams that `local` uses, with their local epochs."""
        return {"batches": training.epochs}

    def epochs(self, now: Round, server: Any, client: int) -> int | None:
        """Local epochs of one client, in all its streams; None: those of `streams`."""
        return None

    def work(self, now: Round, server: Any, epochs: float, steps: int) -> Passes:
        """What `local` computes, for simulated time: by default one gradient per step.

        ``epochs`` are those of all its streams together, ``steps`` the local steps of one epoch.
        """
        return Passes(epochs)

    def broadcast_for_evaluation(self, now: Round, server: Any, client: int) -> Message:
        """What one client receives to be served and scored: by default as to train."""
        return self.broadcast(now, server, client)

    def selects(self) -> bool:
        """Whether clients choose by samples that they hold out, so that the partition needs ``selection``."""
        return False


class Onboarding:
    """For methods whose server must know clients before these take part.

    In every phase the clients are asked in turns (`onboarding_broadcast`, `onboarding_local`), and the server
    learns from the answers of each turn (`onboarding_aggregate`). Newcomers, numbered N and up, are onboarded
    after the last round, before they are served.
    """

    def onboarding_phases(self) -> int:
        """The number of phases; 0: these settings need none."""
        return 1

    def onboarding_turns(
        self, now: Round, phase: int, server: Any, clients: Sequence[int]
    ) -> Sequence[Sequence[int]]:
        """The clients of each turn, out of all clients or all newcomers: by default one turn.

        The answers of one turn are aggregated before the next one begins.
        """
        return [clients]

    def onboarding_broadcast(self, now: Round, phase: int, server: Any, client: int) -> Message:
        """What one client receives; traffic down is counted from it."""
        return {}

    def onboarding_local(self, phase: int, client: Client) -> Update:
        """A client's answer, never vmapped; traffic up is counted from it."""
        raise NotImplementedError

    def onboarding_aggregate(self, now: Round, phase: int, server: Any, cohort: Cohort) -> Any:
        """The server's state after the answers of one turn."""
        return server


class Asynchronous:
    """For methods whose server takes a step as soon as some clients are done, while others still work."""

    def clients_in_flight(self, size: int) -> int:
        """Clients that train at the same time, if a server step uses ``size`` updates.

        Each trains from the model that it once received; `plan` is not asked. 0: synchronous rounds.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Dissimilarity:
    """How far apart clients are to the server: ``matrix`` [n, n] in ``unit``, symmetric, of ``clients`` [n].

    ``linkage`` is how clusters of them are compared (`fedflow.heterogeneity.LINKAGES`), and ``height`` is
    where the tree of clusters was cut, if it was. ``decomposition_error`` is the share of adjacent pairs that
    are in different clusters, if a graph was cut into these.
    """

    matrix: np.ndarray
    clients: Sequence[int]
    unit: str
    linkage: str = "upgma"
    height: float | None = None
    decomposition_error: float | None = None


class Clustered:
    """For methods whose `model_for` returns a cluster number: assignments are recorded and compared.

    ``stable_cluster_ids`` is false if cluster numbers are given again in every round.
    """

    stable_cluster_ids: ClassVar[bool] = True

    def dissimilarity(self, server: Any) -> Dissimilarity | None:
        """The matrix by which the server groups clients, if there is one: recorded and drawn."""
        return None


class Cyclic:
    """For methods that repeat `plan` to `aggregate` within one round."""

    def cycles(self) -> int:
        """Server steps in one round."""
        raise NotImplementedError


@dataclass(frozen=True)
class ServerData:
    """Inputs that a method gives the server, in place of those that the partition sets aside, if any.

    ``dataset`` names one under `data`; ``noise`` is a number of uniform random inputs.
    """

    dataset: str | None = None
    noise: int = 0


class Pretrained:
    """For methods whose server has inputs of its own, and may train on them before it meets any client."""

    def server_data(self) -> ServerData | None:
        """The server's inputs; None: those that the partition sets aside."""
        return None

    def pretrain_server(self, server: Any, public: Examples, seed: int) -> Any:
        """The server's first state after it has used these inputs."""
        return server


def server_data(method: Method) -> ServerData:
    """What the method gives its server; nothing by default."""
    declared = method.server_data() if isinstance(method, Pretrained) else None
    return declared or ServerData()


def draw(rng: np.random.Generator, chances: np.ndarray, size: int) -> np.ndarray:
    """``size`` distinct indices, each in proportion to its chance [n], which are not normalised."""
    equal = (chances == chances[0]).all()
    return rng.choice(len(chances), size=size, replace=False, p=None if equal else chances / chances.sum())
