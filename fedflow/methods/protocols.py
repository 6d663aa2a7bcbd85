"""Protocols: base classes with the hooks and facts that only some methods have.

A method lists its protocols as base classes: ``class SuPerFed(Mixing, FedAvg)``. The engine tests them with
`isinstance`, or with `Ability.of`, which returns the defaults below for a method without the protocol. A
class that defines a hook without its protocol raises `TypeError`.
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

# Participation.


class Onboarding(Ability, Generic[S]):
    """For methods whose server needs data from clients before they take part.

    In every phase, the clients answer in turns (`onboarding_broadcast`, `onboarding_local`), and the server
    processes the answers of each turn (`onboarding_aggregate`). Newcomers, numbered N and up, are onboarded
    after the last round, before they are served.
    """

    def onboarding_phases(self) -> int:
        """Return the number of phases; 0 if these settings need no onboarding."""
        return 1

    def onboarding_turns(
        self, now: Round, phase: int, server: S, clients: Sequence[int]
    ) -> Sequence[Sequence[int]]:
        """Return the clients of each turn, from all clients or all newcomers: by default one turn.

        The answers of one turn are aggregated before the next turn starts.
        """
        return [clients]

    def onboarding_broadcast(self, now: Round, phase: int, server: S, client: int) -> Message:
        """Return the message for one client; traffic down is counted from it."""
        return {}

    def onboarding_local(self, phase: int, client: Client) -> Update:
        """Return a client's answer, never vmapped; traffic up is counted from it."""
        raise NotImplementedError

    def onboarding_aggregate(self, now: Round, phase: int, server: S, cohort: Cohort) -> S:
        """Return the server's state after the answers of one turn."""
        return server


class Asynchronous(Ability):
    """For methods whose server takes a step as soon as some clients are done, while others still train."""

    def clients_in_flight(self, size: int) -> int:
        """Return the number of clients that train at any time, if a server step uses ``size`` updates.

        Each trains from the model that it received when it started; `plan` is not called. 0 = synchronous.
        """
        raise NotImplementedError


class Cyclic(Ability):
    """For methods that repeat `plan` to `aggregate` within one round.

    A client in several cycles of a round draws the same batches in each. Numbers of clients are recorded
    over all cycles; numbers of the server and of update steps are from the last cycle.
    """

    def cycles(self) -> int:
        """Return the number of server steps in one round."""
        raise NotImplementedError


class Sampling(Ability):
    """For methods whose `plan` supports more samplers than "uniform" and "proportional"."""

    def samplers(self) -> tuple[str, ...]:
        """Return the values of `run.sampling` that `plan` supports."""
        return SAMPLERS


class Phased(Ability, Generic[S]):
    """For methods that train differently in some rounds."""

    def phase(self, now: Round) -> str:
        """Return the phase of this round (`Client.phase`); it depends on ``now.t`` only."""
        return ""

    def without_updates(self, now: Round, server: S) -> S:
        """Return the state after a server step in which every client failed; `aggregate` is not called.

        If a phase ends with this round, it must end here too.
        """
        return server


# The client step.


class Adapting(Ability):
    """For methods that change local training, or serve each client a model adapted to its samples."""

    def trains(self, training: LocalTraining) -> LocalTraining:
        """Return this method's local training, given the run's; raise `BadInput` if they conflict."""
        return training

    def serves_adapted(self) -> bool:
        """Return True if `model_for` adapts a global model to the client's samples with these settings."""
        return False


class VariableEpochs(Ability, Generic[S]):
    """For methods whose clients train for different numbers of epochs."""

    def epochs(self, now: Round, server: S, client: int) -> int | None:
        """Return the local epochs of one client in all its streams, or None for the epochs of `streams`.

        A method that returns a number must refuse `training.steps` in `check`.
        """
        return None


class Noisy(Ability):
    """For methods whose client step draws random numbers.

    With ``alone``, `local` draws from `Client.noise`, so clients train one by one.
    """

    alone: ClassVar[bool] = False

    def draws(self, model: FlatModel, training: LocalTraining) -> Mapping[str, int]:
        """Return the number of uniform draws that `local` uses in each step, by stream (`Batch.draws`)."""
        return {}


class Selecting(Ability):
    """For methods whose clients select models on samples that they do not train on."""

    def selects(self) -> str:
        """Return a setting that avoids held-out samples, such as "method.select_on to train".

        Empty if none are needed; otherwise the partition needs ``selection``.
        """
        return ""

    def selects_on_test(self) -> bool:
        """Return True if clients select on their own test samples, as some published code does."""
        return False


class Pruning(Ability):
    """For methods whose clients prune their networks.

    ``masks`` maps a message's vectors to masks or positions in it: only these entries are sent.
    """

    masks: ClassVar[Mapping[str, str]] = {}


class Recording(Ability):
    """For methods that record values of each client.

    ``series`` names diagnostics that are recorded by client and round, ``records`` names kept vectors that
    are recorded for every client at the end of a run.
    """

    series: ClassVar[tuple[str, ...]] = ()
    records: ClassVar[tuple[str, ...]] = ()


# Serving and scoring.


class Serving(Ability, Generic[S]):
    """For methods that send clients a different message for evaluation than for training."""

    def broadcast_for_evaluation(self, now: Round, server: S, client: int) -> Message:
        """Return the message with which one client is served and scored."""
        raise NotImplementedError


class Mixing(Ability):
    """For methods that can serve mixtures of a global and a personal model."""

    def sweep(self, client: Client) -> tuple[Sequence[float], Tensor]:
        """Return mixtures [k, D] of a client's global and personal model, after the latter's k shares.

        At the end, all are scored on the client's own test samples (`run.sweep`).
        """
        raise NotImplementedError


class Weighted(Ability):
    """For methods that can weight clients by their numbers of samples."""

    def weighs_samples(self) -> bool:
        """Return True if means of trained models (`run.reports`) weight clients by n_k."""
        return False


class Published(Ability):
    """For methods whose source has a formula for its traffic."""

    def published_bytes(self, model: FlatModel, rounds: int, cohort: int) -> float | None:
        """Return bytes down and up of a whole run by the source's formula, or None if it has none.

        ``cohort`` clients take part in each of the ``rounds``. Sources leave out norms and count networks as
        pruned from round 1 on; actual traffic is counted from messages.
        """
        return None


class Specialized(Ability):
    """For methods that cannot train every network: `setup` raises `BadInput` for `model.name`.

    ``example`` is a network that the method can train; its page counts the traffic of this network.
    """

    example: ClassVar[str] = "lenet5"


@dataclass(frozen=True)
class Dissimilarity:
    """The server's dissimilarities of ``clients`` [n]: ``matrix`` [n, n] in ``unit``, symmetric.

    ``linkage`` defines the distance between clusters (`fedflow.heterogeneity.LINKAGES`); ``height`` is the
    height at which the tree was cut, if it was. ``decomposition_error`` is the share of adjacent pairs in
    different clusters, if a graph was cut into clusters.
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
        """Return the matrix by which the server clusters clients, if any; it is recorded and drawn."""
        return None


class Leveled(Ability):
    """For methods whose clients hold networks of different sizes, all parts of the run's network.

    Vectors that a client sends, receives or keeps have the size of its network; such a `Method` ``serves``
    one model per "level". Clients whose networks differ upload in different groups.
    """

    def networks(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the levels, small to large, each with the options of its network (`FlatModel.variant`)."""
        raise NotImplementedError

    def level(self, client: int, clients: int) -> str:
        """Return the level of one client of ``clients`` (N); newcomers are numbered from N."""
        raise NotImplementedError


class Images(NamedTuple):
    """Labeled images: ``x`` [N, C, H, W] with pixels in [0, 1], and labels ``y`` [N], int64."""

    x: Tensor
    y: Tensor


class Generative(Ability, Generic[S]):
    """For methods whose server makes labeled images instead of a model.

    Clients are served a model that is trained on these images, once per evaluation. Clients' images come from
    a dataset with ``normalize: none``, with pixels in [0, 1].
    """

    def begin(self, now: Round, server: S) -> S:
        """Return the server's state before the first round, drawn with ``now.rng``."""
        return server

    def images(self, now: Round, server: S) -> Images:
        """Return the server's images before round ``now.t``, some of every class."""
        raise NotImplementedError

    def classify(self, now: Round, images: Images) -> Tensor:
        """Return the model [D] that clients are served, newly trained on ``images``."""
        raise NotImplementedError


@dataclass(frozen=True)
class ServerData:
    """Inputs for the server that replace those that the partition sets aside.

    ``dataset`` names a dataset under `data`; ``noise`` is a number of uniform random inputs.
    """

    dataset: str | None = None
    noise: int = 0


class Pretrained(Ability, Generic[S]):
    """For methods whose server has its own inputs and may train on them before the first round."""

    def server_data(self) -> ServerData:
        """Return the server's inputs; by default those that the partition sets aside."""
        return ServerData()

    def needs_data(self) -> str:
        """Return a setting that avoids the server's inputs, such as "method.noise to a number".

        Empty if none are needed; otherwise they are checked before the run starts.
        """
        return ""

    def pretrain_server(self, server: S, public: Examples, seed: int) -> S:
        """Return the server's initial state after training on these inputs."""
        return server


def server_data(method: Method) -> ServerData:
    """Return the server's inputs as the method declares them."""
    return Pretrained.of(method).server_data()


def samplers(method: Method) -> tuple[str, ...]:
    """Return the values of `run.sampling` that the method supports: all, unless it has its own `plan`."""
    if isinstance(method, Sampling):
        return method.samplers()
    return SAMPLERS if type(method).plan is Method.plan else SAMPLERS[:2]


def trains_one_model(method: Method) -> bool:
    """Return True if clients train the broadcast model, so that the mean of trained models is a model."""
    several = isinstance(method, Clustered | Generative)
    return not several and (method.serves == "global" or method.serves_with == ())
