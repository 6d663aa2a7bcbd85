"""The interface of a federated method: what is sent, the client step, the server step, the model served.

A method is a `Settings` class (its hyper-parameters) plus up to eight hooks, in this order: `check`, `setup`,
`plan`, `broadcast`, `broadcast_for_evaluation`, `local`, `aggregate`, `model_for`. It never loops over
batches, knows no device, and writes no file; the engine does.

Methods that must know clients before these take part have `onboarding_phases`: in each of them all clients
are asked (`onboarding_broadcast`, `onboarding_local`) and the server takes note (`onboarding_aggregate`),
once or in `onboarding_turns`. Newcomers, numbered N and up, are asked after the last round, before they are
served.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
from torch import Tensor

from fedflow.data import Examples
from fedflow.local.client import Client, Update
from fedflow.local.training import LocalTraining
from fedflow.models.flat import FlatModel
from fedflow.settings import Settings

Server = dict[str, Tensor]  # everything the server remembers between rounds, by name


class Cohort(Protocol):
    """The updates of one round, gathered in client order."""

    model: FlatModel
    ids: list[int]
    groups: list[int]
    sizes: np.ndarray  # n_k of all N clients, taking part or not
    rng: np.random.Generator  # the server's own random choices of this round
    public: Examples | None  # what the server has of its own: the public data of the partition or the method

    @property
    def clients(self) -> int:
        """N."""

    def mean(self, name: str, group: int | None = None, weights: np.ndarray | None = None) -> Tensor:
        """Weighted mean [.] of an uploaded vector, over all clients or over one of ``groups``.

        ``weights`` [m], not normalised, replace the clients' own (for methods that declare ``gathers``).
        """

    def stack(self, name: str) -> Tensor:
        """Every client's vector [m, .] (for methods that declare ``gathers``)."""

    def vectors(self, name: str) -> list[Tensor]:
        """The same one by one, where their shapes differ."""

    def scalars(self, name: str) -> np.ndarray:
        """An uploaded scalar of every client [m], float64."""

    @property
    def weights(self) -> np.ndarray:
        """Every client's weight [m], float64, not normalised."""


@dataclass(frozen=True)
class ServerData:
    """Inputs that a method gives the server, in place of those that the partition sets aside, if any.

    ``dataset`` names one under `data`; ``noise`` is a number of uniform random inputs.
    """

    dataset: str | None = None
    noise: int = 0


class Passes(NamedTuple):
    """Local work in one round: how often a client goes through all its samples, by what it computes."""

    gradients: float
    losses: float = 0.0  # alone, without their gradients


@dataclass(frozen=True)
class Dissimilarity:
    """How far apart clients are to the server: ``matrix`` [n, n] in ``unit``, symmetric, of ``clients`` [n].

    ``linkage`` is how clusters of them are compared (`fedflow.heterogeneity.LINKAGES`), and ``height`` up to
    where clusters were merged, if a tree was cut. ``decomposition_error`` is the share of related pairs that
    are in different clusters, if a graph was cut into these.
    """

    matrix: np.ndarray
    clients: Sequence[int]
    unit: str
    linkage: str = "upgma"
    height: float | None = None
    decomposition_error: float | None = None


class Method(Settings):
    """Base of all methods.

    ``serves`` says what clients are given in the end: one "global" model, one per "cluster", or a
    "personal" one each. ``gathers`` asks for every client's update in `aggregate` instead of their means.
    ``newcomer`` names the kept vectors that a client which never took part is served from what it receives.
    ``serves_with`` names the kept vectors that `model_for` reads; unless a method says so, these are all of
    them where models are "personal", and none where they are not. ``clustered`` is true where personal models
    come with the number of a cluster. ``stable_cluster_ids`` is false where these numbers mean others in
    every round.
    """

    section = "method"
    name: ClassVar[str] = ""
    label: ClassVar[str] = ""
    serves: ClassVar[str] = "global"
    gathers: ClassVar[bool] = False
    newcomer: ClassVar[Mapping[str, str]] = {}
    serves_with: ClassVar[tuple[str, ...] | None] = None
    clustered: ClassVar[bool] = False
    stable_cluster_ids: ClassVar[bool] = True

    def check(self, rounds: int) -> None:
        """Raise `BadInput` where a run of ``rounds`` rounds is too short for a phase of the method."""

    def streams(self, training: LocalTraining) -> dict[str, int]:
        """The batch streams that `local` uses, with their local epochs."""
        return {"batches": training.epochs}

    def client_state(self, model: FlatModel, initial: Tensor) -> dict[str, Tensor]:
        """The first value of every vector that a client keeps; ``initial`` [D] is the common first model."""
        return {}

    def setup(self, model: FlatModel, initial: Callable[[int], Tensor]) -> Server:
        """The server's first state. ``initial(i)`` is the i-th first model [D]; 0 is common to all."""
        return {"model": initial(0)}

    def onboarding_phases(self) -> int:
        """How many times clients are asked before they take part."""
        return 0

    def onboarding_turns(
        self, rng: np.random.Generator, phase: int, server: Server, clients: Sequence[int]
    ) -> Sequence[Sequence[int]]:
        """Who is asked in an introduction, of all ``clients`` or all newcomers: by default all at once.

        The server meets the clients of one turn before those of the next are invited.
        """
        return [clients]

    def selects(self) -> bool:
        """Whether clients choose by samples that they hold out, so that the partition needs ``selection``."""
        return False

    def server_data(self) -> ServerData | None:
        """Inputs of the server by the method's own settings; None: those that the partition sets aside."""
        return None

    def pretrain_server(self, public: Examples, seed: int) -> Server:
        """What the server gets out of public data before it meets anybody, added to its first state."""
        return {}

    def onboarding_broadcast(self, phase: int, server: Server, client: int) -> dict[str, Tensor]:
        """What one client receives in an introduction; traffic down is counted from it."""
        return {}

    def onboarding_local(self, phase: int, client: Client) -> Update:
        """What one client answers, asked on its own and never vmapped; traffic up is counted from it."""
        raise NotImplementedError

    def onboarding_aggregate(self, phase: int, server: Server, cohort: Cohort) -> Server:
        """The server's state after the answers of one turn, of clients or newcomers (``ids`` from N on)."""
        return server

    def cycles(self, server: Server) -> int:
        """How often `plan` to `aggregate` are repeated within one round."""
        return 1

    def clients_in_flight(self, size: int) -> int:
        """How many clients are at work at any time, where the server takes a step with ``size`` updates.

        0: a cohort starts from the same server, which waits for all of it. Otherwise clients come when they
        are done, with an update of what they once received; `plan` is not asked then.
        """
        return 0

    def plan(self, rng: np.random.Generator, chances: np.ndarray, size: int, server: Server) -> np.ndarray:
        """The cohort: ``size`` distinct clients, each in proportion to its chance [N] (`run.sampling`).

        What is drawn here and needed later may be put into ``server``.
        """
        return draw(rng, chances, size)

    def epochs(self, rng: np.random.Generator, server: Server, client: int) -> int | None:
        """Local epochs of one client, in all its streams; nothing: those of `streams`."""
        return None

    def work(self, server: Server, epochs: float, steps: int) -> Passes:
        """What `local` computes, for simulated time: one gradient per step, unless a method says otherwise.

        ``epochs`` are those of all its streams together, ``steps`` the local steps of one epoch.
        """
        return Passes(epochs)

    def broadcast(self, server: Server, client: int) -> dict[str, Tensor]:
        """What one client receives; traffic down is counted from it."""
        return {"model": server["model"]}

    def broadcast_for_evaluation(self, server: Server, client: int) -> dict[str, Tensor]:
        """What one client receives to be served and scored with `model_for`: by default as to train."""
        return self.broadcast(server, client)

    def local(self, client: Client) -> Update:
        """The client step; traffic up is counted from the update's vectors and scalars."""
        raise NotImplementedError

    def aggregate(self, server: Server, cohort: Cohort) -> Server:
        """The server's next state."""
        raise NotImplementedError

    def dissimilarity(self, server: Server) -> Dissimilarity | None:
        """What the server groups clients by, where it compares them with one another: recorded and drawn."""
        return None

    def model_for(self, client: Client) -> Tensor | tuple[Tensor, Tensor | None]:
        """The vector [D] that a client is served and evaluated with, from what it received.

        Clustered methods return (vector, cluster number). Clients that share a model should return
        the same memory (no copies), so that it is evaluated once. (vectors [k, D], None) leaves the choice to
        the client's own test data, as some published numbers do: the least loss there.
        """
        return client.received["model"]


def draw(rng: np.random.Generator, chances: np.ndarray, size: int) -> np.ndarray:
    """``size`` distinct places, each in proportion to its chance [n], which are not normalised."""
    equal = (chances == chances[0]).all()
    return rng.choice(len(chances), size=size, replace=False, p=None if equal else chances / chances.sum())
