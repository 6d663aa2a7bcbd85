"""Protocols: base classes with the hooks and facts that only some methods have.

A method names its protocols in the class line: ``class SuPerFed(Mixing, FedAvg)``. The engine asks with
`isinstance`, or with `Ability.of`: a method without the protocol then answers as the defaults below do. A
method that defines a hook without its protocol is refused when its class is made.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple

import numpy as np
from torch import Tensor

from fedflow.data import Examples
from fedflow.local.client import Client, Update
from fedflow.local.local_training import LocalTraining
from fedflow.methods.method import Ability, Cohort, Message, Method, Round, S
from fedflow.models.flat import FlatModel

SAMPLERS = ("uniform", "proportional", "bernoulli", "sweep", "easy_first")  # of `run.sampling`

# Who takes part, and when.


class Onboarding(Ability, Generic[S]):
    """For methods whose server must know clients before they take part.

    In every phase, the clients answer in turns (`onboarding_broadcast`, `onboarding_local`), and the server
    processes the answers of each turn (`onboarding_aggregate`). Newcomers, numbered N and up, are onboarded
    after the last round, before they are served.
    """

    def onboarding_phases(self) -> int:
        """The number of phases; 0 if these settings need no onboarding."""
        return 1

    def onboarding_turns(
        self, now: Round, phase: int, server: S, clients: Sequence[int]
    ) -> Sequence[Sequence[int]]:
        """The clients of each turn, from all clients or all newcomers: by default one turn.

        The answers of one turn are aggregated before the next turn starts.
        """
        return [clients]

    def onboarding_broadcast(self, now: Round, phase: int, server: S, client: int) -> Message:
        """What one client receives; traffic down is counted from it."""
        return {}

    def onboarding_local(self, phase: int, client: Client) -> Update:
        """A client's answer, never vmapped; traffic up is counted from it."""
        raise NotImplementedError

    def onboarding_aggregate(self, now: Round, phase: int, server: S, cohort: Cohort) -> S:
        """The server's state after the answers of one turn."""
        return server


class Asynchronous(Ability):
    """For methods whose server takes a step as soon as some clients are done, while others still train."""

    def clients_in_flight(self, size: int) -> int:
        """The concurrency: clients that train at the same time, if a server step uses ``size`` updates.

        Each trains from the model that it received when it started; `plan` is not called. 0: synchronous.
        """
        raise NotImplementedError


class Cyclic(Ability):
    """For methods that repeat `plan` to `aggregate` within one round."""

    def cycles(self) -> int:
        """Server steps in one round."""
        raise NotImplementedError


class Sampling(Ability):
    """For methods with their own `plan` that follows other samplers than "uniform" and "proportional"."""

    def samplers(self) -> tuple[str, ...]:
        """The values of `run.sampling` that `plan` follows."""
        return SAMPLERS


class Phased(Ability, Generic[S]):
    """For methods that train in another way in some of the rounds."""

    def phase(self, now: Round) -> str:
        """The phase of this round (`Client.phase`); depends on ``now.t`` only."""
        return ""

    def without_updates(self, now: Round, server: S) -> S:
        """The state after a server step for which every client failed, so that `aggregate` is not called.

        By default, nothing changes. If a phase ends with this round, it must end here too.
        """
        return server


# The client step.


class Adapting(Ability):
    """For methods that change local training, or serve every client a model adapted to its samples."""

    def trains(self, training: LocalTraining) -> LocalTraining:
        """The local training of this method, from the one of the run; raises `BadInput` if they disagree."""
        return training

    def serves_adapted(self) -> bool:
        """Whether `model_for` adapts a global model to the client's own samples, with these settings."""
        return False


class VariableEpochs(Ability, Generic[S]):
    """For methods whose clients train for different numbers of epochs."""

    def epochs(self, now: Round, server: S, client: int) -> int | None:
        """Local epochs of one client in all its streams; None: as `streams` says.

        A method that returns a number refuses `training.steps` in `check`.
        """
        return None


class Noisy(Ability):
    """For methods whose client step draws random numbers, from batches or from `Client.noise`.

    ``alone``: `local` draws from `Client.noise`, so that clients train one by one.
    """

    alone: ClassVar[bool] = False

    def draws(self, model: FlatModel, training: LocalTraining) -> Mapping[str, int]:
        """How many uniform numbers `local` uses in every step, by stream (`Batch.draws`)."""
        return {}


class Selecting(Ability):
    """For methods whose clients select models on samples that they do not train on."""

    def selects(self) -> str:
        """How to set the method to do without held-out samples, such as "method.select_on to train".

        Empty if it does without them: else the partition needs ``selection``.
        """
        return ""

    def selects_on_test(self) -> bool:
        """Whether clients select on their own test samples instead, as some published code does."""
        return False


class Pruning(Ability):
    """For methods whose clients prune their networks.

    ``masks`` maps vectors of a message to masks or positions in it: only these entries are sent.
    """

    masks: ClassVar[Mapping[str, str]] = {}


class Recording(Ability):
    """For methods that record more of every client than means over the cohort.

    ``series`` names diagnostics that are recorded by client and round, ``records`` kept vectors that are
    recorded of every client at the end of a run.
    """

    series: ClassVar[tuple[str, ...]] = ()
    records: ClassVar[tuple[str, ...]] = ()


# What is served and scored.


class Serving(Ability, Generic[S]):
    """For methods that send clients other messages to serve and score them than to train them."""

    def broadcast_for_evaluation(self, now: Round, server: S, client: int) -> Message:
        """What one client receives to be served and scored."""
        raise NotImplementedError


class Mixing(Ability):
    """For methods that can serve mixtures of a global and a personal model."""

    def sweep(self, client: Client) -> tuple[Sequence[float], Tensor]:
        """The mixtures [k, D] of a client's global and personal model, and the share k of the latter in each.

        At the end, all are scored on the client's own test samples (`run.sweep`).
        """
        raise NotImplementedError


class Weighted(Ability):
    """For methods that may weigh clients by their numbers of samples."""

    def weighs_samples(self) -> bool:
        """Whether means of trained models (`run.reports`) weigh clients by n_k instead of equally."""
        return False


class Published(Ability):
    """For methods whose source gives a formula of its traffic."""

    def published_bytes(self, model: FlatModel, rounds: int, cohort: int) -> float | None:
        """Bytes down and up of a whole run by the formula of the source; None if it has none.

        It follows from the settings: ``cohort`` clients take part in each of the ``rounds``. Sources leave
        out norms, and count networks as pruned from round 1 on; what really crosses is counted from messages.
        """
        return None


class Specialized(Ability):
    """For methods that cannot train every network: `setup` refuses others with a `BadInput` of `model.name`.

    ``example`` is a network that the method can train, for which its page counts the traffic.
    """

    example: ClassVar[str] = "lenet5"


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


class Clustered(Ability, Generic[S]):
    """For methods whose `model_for` returns a cluster number: assignments are recorded and compared.

    ``stable_cluster_ids`` is false if clusters are renumbered in every round.
    """

    stable_cluster_ids: ClassVar[bool] = True

    def dissimilarity(self, server: S) -> Dissimilarity | None:
        """The matrix by which the server clusters clients, if any: it is recorded and drawn."""
        return None


class Leveled(Ability):
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


class Images(NamedTuple):
    """Labeled images: ``x`` [N, C, H, W] with pixels in [0, 1], and labels ``y`` [N], int64."""

    x: Tensor
    y: Tensor


class Generative(Ability, Generic[S]):
    """For methods whose server makes labeled images instead of a model.

    The model that clients are served is trained on these images, once per evaluation. Images of clients are
    those of a data set with ``normalize: none``, pixels in [0, 1].
    """

    def begin(self, now: Round, server: S) -> S:
        """The server's state before the first round, from that of `setup`; ``now.rng`` draws it."""
        return server

    def images(self, now: Round, server: S) -> Images:
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


class Pretrained(Ability, Generic[S]):
    """For methods whose server has its own inputs, and may train on them before the first round."""

    def server_data(self) -> ServerData | None:
        """The server's inputs; None: those that the partition sets aside."""
        return None

    def needs_data(self) -> str:
        """How to set the method to do without inputs of the server, such as "method.noise to a number".

        Empty if it needs none: else the server's inputs are checked before the run starts.
        """
        return ""

    def pretrain_server(self, server: S, public: Examples, seed: int) -> S:
        """The server's initial state after training on these inputs, or any other use of them."""
        return server


def server_data(method: Method) -> ServerData:
    """The server's inputs as the method declares them; none by default."""
    return Pretrained.of(method).server_data() or ServerData()


def samplers(method: Method) -> tuple[str, ...]:
    """The values of `run.sampling` that the method follows: all, unless it has its own `plan`."""
    if isinstance(method, Sampling):
        return method.samplers()
    return SAMPLERS if type(method).plan is Method.plan else SAMPLERS[:2]


def trains_one_model(method: Method) -> bool:
    """Whether clients train the model that is broadcast: then a mean of trained models is a model."""
    own = isinstance(method, Clustered | Generative)
    return not own and (method.serves == "global" or method.serves_with == ())
