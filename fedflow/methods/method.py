"""The interface of a federated method: what is sent, the client step, the server step, the model served.

A method is a `Settings` class (its hyper-parameters) and up to six core hooks, called in this order: `setup`
once; in every round `plan`, `broadcast`, `local`, `aggregate`; and `model_for` to serve and score clients.
The other hooks of `Method` have defaults that most methods keep. Optional abilities are further base classes,
which the engine checks with `isinstance`: `Onboarding`, `Asynchronous`, `Clustered`, `Cyclic`, `Pretrained`,
`Levelled`, `Generative`.

Hooks are pure functions: they do not modify the server's state or other arguments, but return new values.
A method never loops over batches, chooses a device or writes a file; the engine does.
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
from fedflow.local.local_training import LocalTraining
from fedflow.models.flat import FlatModel
from fedflow.settings import Settings

Message = dict[str, Tensor]  # what one client receives, by name
# What a method reports of one round, by name: a number, or an array [N] with one per client (NaN = none).
Diagnostics = Mapping[str, float | np.ndarray]
SAMPLERS = ("uniform", "proportional", "bernoulli", "sweep", "easy_first")  # of `run.sampling`


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
class ServerState:
    """The server's state between rounds: tensors, or None for fields that are unknown or unused.

    Methods with more state than a model subclass it.
    """

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by field, without those that are None."""
        named = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in named.items() if value is not None}

    def restored(self, tensors: Mapping[str, Tensor]) -> Any:
        """A state of this class from what `tensors` returned."""
        return type(self)(**{field.name: tensors.get(field.name) for field in dataclasses.fields(self)})


@dataclass(frozen=True)
class GlobalModel(ServerState):
    """One ``model`` [D] for all."""

    model: Tensor


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
    """Local work in one round: passes over all samples of a client, with and without gradients."""

    gradients: float
    losses: float = 0.0  # without gradients
    inputs: float = 0.0  # other inputs whose gradients are computed, not in passes but their number


class Method(Settings):
    """Base of all methods.

    ``serves``: the kind of model that clients are served, "global", one per "cluster", one per "level", or
    "personal".
    ``gathers``: `aggregate` needs every client's update, not only means. ``newcomer`` maps kept vectors to
    received ones, which replace them for a client that never took part. ``serves_with`` names the kept
    vectors that `model_for` reads (default: all where models are "personal", else none). ``masks`` maps
    vectors of a message to masks or positions in it: only these entries are sent. ``example`` is a network
    that it can train, for which its page counts the traffic. ``alone``: `local` draws from `Client.noise`, so
    that clients train one by one. ``series`` names diagnostics of clients that
    are recorded by client and round, ``records`` kept vectors that are recorded of every client at the end of
    a run.
    """

    section = "method"
    name: ClassVar[str] = ""
    label: ClassVar[str] = ""
    serves: ClassVar[str] = "global"
    gathers: ClassVar[bool] = False
    newcomer: ClassVar[Mapping[str, str]] = {}
    serves_with: ClassVar[tuple[str, ...] | None] = None
    masks: ClassVar[Mapping[str, str]] = {}
    example: ClassVar[str] = "lenet5"
    alone: ClassVar[bool] = False
    series: ClassVar[tuple[str, ...]] = ()
    records: ClassVar[tuple[str, ...]] = ()

    # The core.

    def setup(self, model: FlatModel, initial: Callable[[int], Tensor]) -> Any:
        """The server's initial state, a `ServerState`. ``initial(i)`` [D] is the i-th initial model."""
        return GlobalModel(initial(0))

    def plan(self, now: Round, server: Any, chances: np.ndarray, size: int) -> tuple[np.ndarray, Any]:
        """The cohort, ``size`` distinct clients, drawn in proportion to their chances [N] (`run.sampling`).

        Also the server's state, with random choices that are needed later.
        """
        return draw(now.rng, chances, size), server

    def broadcast(self, now: Round, server: Any, client: int) -> Message:
        """What one client receives; traffic down is counted from it."""
        return {"model": server.model}

    def local(self, client: Client) -> Update:
        """The client step; traffic up is counted from the update's vectors and scalars."""
        raise NotImplementedError

    def aggregate(self, now: Round, server: Any, cohort: Cohort) -> tuple[Any, Diagnostics]:
        """The server's next state, and what to record of this round."""
        raise NotImplementedError

    def without_updates(self, now: Round, server: Any) -> Any:
        """The state after a server step for which every client failed, so that `aggregate` is not called.

        By default, nothing changes. A phase that ends with this round must end here too.
        """
        return server

    def model_for(self, client: Client) -> Tensor | tuple[Tensor, Tensor | None]:
        """The vector [D] that a client is served and scored with, from `broadcast_for_evaluation`.

        Clustered methods return (vector, cluster number). Clients that share a model should return
        the same memory, so that it is evaluated once. (vectors [k, D], None) leaves the choice to
        the client's own test data, as some published numbers do: the model with the lowest loss there.
        """
        return client.received["model"]

    # Hooks with defaults that most methods keep.

    def check(self, rounds: int) -> None:
        """Raise `BadInput` if a run of ``rounds`` rounds is too short for a phase of the method."""

    def check_clients(self, clients: int) -> None:
        """Raise `BadInput` unless a run of this number N of clients, without newcomers, is possible."""

    def check_training(self, training: LocalTraining) -> None:
        """Raise `BadInput` unless the client step is right with these settings of local training."""

    def trains(self, training: LocalTraining) -> LocalTraining:
        """The local training of this method, from the one of the run; raises `BadInput` if they disagree."""
        return training

    def client_state(
        self, model: FlatModel, initial: Tensor
    ) -> Mapping[str, Tensor | Callable[[int], Tensor]]:
        """Initial values of the vectors that a client keeps; ``initial`` [D] is the common model.

        A function makes another vector for every client, from a seed.
        """
        return {}

    def draws(self, model: FlatModel, training: LocalTraining) -> Mapping[str, int]:
        """How many uniform numbers `local` uses in every step, by stream (`Batch.draws`)."""
        return {}

    def phase(self, now: Round) -> str:
        """The phase of the method in this round (`Client.phase`); depends on ``now.t`` only."""
        return ""

    def streams(self, training: LocalTraining) -> dict[str, int]:
        """The batch streams that `local` uses, with their local epochs."""
        return {"batches": training.epochs}

    def epochs(self, now: Round, server: Any, client: int) -> int | None:
        """Local epochs of one client in all its streams; None: those of `streams`.

        A method that returns a number refuses `training.steps` in `check_training`.
        """
        return None

    def work(self, now: Round, server: Any, epochs: float, steps: int) -> Passes:
        """The work of `local`, for simulated time and the count of gradients: by default one per step.

        ``epochs`` is the sum over all streams, ``steps`` the number of batches in one epoch.
        """
        return Passes(epochs)

    def fits(self, now: Round, training: LocalTraining) -> int:
        """Calls of `Client.fit` and `Client.run_steps` in `local`, by default one per stream.

        A curriculum scores the samples at the start of each, which counts in simulated time.
        """
        return len(self.streams(training))

    def broadcast_for_evaluation(self, now: Round, server: Any, client: int) -> Message:
        """What one client receives to be served and scored: by default the same as for training."""
        return self.broadcast(now, server, client)

    def samplers(self) -> tuple[str, ...]:
        """The values of `run.sampling` that `plan` follows: all, unless the method has its own `plan`."""
        return SAMPLERS if type(self).plan is Method.plan else SAMPLERS[:2]

    def weighs_samples(self) -> bool:
        """Whether means of trained models (`run.reports`) weigh clients by n_k instead of equally."""
        return False

    def trains_one_model(self) -> bool:
        """Whether clients train the model that is broadcast: then a mean of trained models is a model."""
        return not isinstance(self, Clustered) and (self.serves == "global" or self.serves_with == ())

    def serves_adapted(self) -> bool:
        """Whether `model_for` adapts a global model to the client's own samples."""
        return False

    def sweep(self, client: Client) -> tuple[Sequence[float], Tensor] | None:
        """The mixtures [k, D] of a client's global and personal model, and the share k of the latter in each.

        At the end, all are scored on the client's own test samples (`run.sweep`). None: the method has none.
        """
        return None

    def published_bytes(self, model: FlatModel, rounds: int, cohort: int) -> float | None:
        """Bytes down and up of a whole run by the formula of the source; None if it has none.

        It follows from the settings: ``cohort`` clients take part in each of the ``rounds``. Sources leave
        out norms, and count networks as pruned from round 1 on; what really crosses is counted from messages.
        """
        return None

    def selects(self) -> str:
        """Whether clients select models on held-out samples, so that the partition needs ``selection``.

        If so, how to set the method to do without, such as "method.select_on to train"; else empty.
        """
        return ""

    def selects_on_test(self) -> bool:
        """Whether clients select on their own test samples instead, as some published code does."""
        return False


class Onboarding:
    """For methods whose server must know clients before they take part.

    In every phase, the clients answer in turns (`onboarding_broadcast`, `onboarding_local`), and the server
    processes the answers of each turn (`onboarding_aggregate`). Newcomers, numbered N and up, are onboarded
    after the last round, before they are served.
    """

    def onboarding_phases(self) -> int:
        """The number of phases; 0 if these settings need no onboarding."""
        return 1

    def onboarding_turns(
        self, now: Round, phase: int, server: Any, clients: Sequence[int]
    ) -> Sequence[Sequence[int]]:
        """The clients of each turn, from all clients or all newcomers: by default one turn.

        The answers of one turn are aggregated before the next turn starts.
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
    """For methods whose server takes a step as soon as some clients are done, while others still train."""

    def clients_in_flight(self, size: int) -> int:
        """The concurrency: clients that train at the same time, if a server step uses ``size`` updates.

        Each trains from the model that it received when it started; `plan` is not called. 0: synchronous.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Dissimilarity:
    """The server's dissimilarities of ``clients`` [n]: ``matrix`` [n, n] in ``unit``, symmetric.

    ``linkage`` compares clusters of them (`fedflow.heterogeneity.LINKAGES`); ``height`` is where the tree of
    clusters was cut, if it was. ``decomposition_error`` is the share of adjacent pairs in different clusters,
    if a graph was cut into clusters.
    """

    matrix: np.ndarray
    clients: Sequence[int]
    unit: str
    linkage: str = "upgma"
    height: float | None = None
    decomposition_error: float | None = None


class Clustered:
    """For methods whose `model_for` returns a cluster number: assignments are recorded and compared.

    ``stable_cluster_ids`` is false if clusters are renumbered in every round.
    """

    stable_cluster_ids: ClassVar[bool] = True

    def dissimilarity(self, server: Any) -> Dissimilarity | None:
        """The matrix by which the server clusters clients, if any: it is recorded and drawn."""
        return None


class Levelled:
    """For methods whose clients hold networks of different sizes, parts of the network of the run.

    Vectors to and from a client, and those that it keeps, have the size of its network; such a `Method`
    ``serves`` one model per "level". Uploads of clients whose networks differ need different groups.
    """

    def networks(self) -> Mapping[str, Mapping[str, Any]]:
        """The levels, small to large, each with the options of its network (`FlatModel.variant`)."""
        raise NotImplementedError

    def level(self, client: int, clients: int) -> str:
        """The level of one client of ``clients`` (N); newcomers have the numbers from N."""
        raise NotImplementedError


class Cyclic:
    """For methods that repeat `plan` to `aggregate` within one round."""

    def cycles(self) -> int:
        """Server steps in one round."""
        raise NotImplementedError


class Images(NamedTuple):
    """Labeled images: ``x`` [N, C, H, W] with pixels in [0, 1], and labels ``y`` [N], int64."""

    x: Tensor
    y: Tensor


class Generative:
    """For methods whose server makes labeled images instead of a model.

    The model that clients are served is trained on these images, once per evaluation. Images of clients are
    those of a data set with ``normalize: none``, pixels in [0, 1].
    """

    def begin(self, now: Round, server: Any) -> Any:
        """The server's state before the first round, from that of `setup`; ``now.rng`` draws it."""
        return server

    def images(self, now: Round, server: Any) -> Images:
        """The images that the server has before round ``now.t``; every class has some."""
        raise NotImplementedError

    def classify(self, now: Round, images: Images) -> Tensor:
        """The model [D] that clients are served: a fresh one, trained on ``images``."""
        raise NotImplementedError


@dataclass(frozen=True)
class ServerData:
    """Inputs for the server, instead of those that the partition sets aside, if any.

    ``dataset`` names a data set under `data`; ``noise`` is a number of uniform random inputs.
    """

    dataset: str | None = None
    noise: int = 0


class Pretrained:
    """For methods whose server has its own inputs, and may train on them before the first round."""

    def server_data(self) -> ServerData | None:
        """The server's inputs; None: those that the partition sets aside."""
        return None

    def needs_data(self) -> str:
        """Whether the method needs inputs of the server, which is checked before the run starts.

        If so, how else to set the method, such as "method.noise to a number"; else empty.
        """
        return ""

    def pretrain_server(self, server: Any, public: Examples, seed: int) -> Any:
        """The server's initial state after training on these inputs, or any other use of them."""
        return server


def server_data(method: Method) -> ServerData:
    """The server's inputs as the method declares them; none by default."""
    declared = method.server_data() if isinstance(method, Pretrained) else None
    return declared or ServerData()


def draw(rng: np.random.Generator, chances: np.ndarray, size: int) -> np.ndarray:
    """``size`` distinct indices, drawn in proportion to ``chances`` [n], which need not sum to 1."""
    equal = (chances == chances[0]).all()
    return rng.choice(len(chances), size=size, replace=False, p=None if equal else chances / chances.sum())
