"""Base of methods that decide the weights of the average, and leave the rest to a host such as FedProx."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from fedflow.choice import Choice
from fedflow.errors import BadInput
from fedflow.local.client import Client, Update
from fedflow.local.local_training import LocalTraining
from fedflow.methods.method import (
    Asynchronous,
    Cohort,
    Cyclic,
    Diagnostics,
    Message,
    Method,
    Passes,
    Round,
    ServerState,
)
from fedflow.methods.registry import METHODS, method_name
from fedflow.models.flat import FlatModel
from fedflow.settings import option

# Their server uses clients' weights in means of uploaded vectors only.
HOSTS = ("fedadagrad", "fedadam", "fedavg", "fedavgm", "fedprox", "fedsgd", "fedyogi")
OWN = "weighing/"  # prefix of our tensors: those of the host keep their names


class Host(Choice):
    """A method by name, with its hyper-parameters."""

    section = "method.host"
    name: str = option(doc="one of " + ", ".join(HOSTS))
    parameters: Method = option(factory=dict, doc="the method with its hyper-parameters")

    @classmethod
    def known(cls) -> Mapping[str, type[Method]]:
        return {name: METHODS[name] for name in HOSTS}

    @classmethod
    def called(cls, name: Any) -> Any:
        return method_name(name)

    @classmethod
    def refused(cls, field: str, name: Any) -> BadInput:
        return BadInput(field, name, f"one of {', '.join(HOSTS)}{_because(name)}")

    def validate(self) -> None:
        if (weighting := getattr(self.parameters, "weighting", "samples")) != "samples":
            accepted = "samples (not used: other weights replace those of the host)"
            raise BadInput(f"{self.section}.weighting", weighting, accepted)

    def __str__(self) -> str:
        return f"{{name: {self.name}}}"


def _because(name: Any) -> str:
    """Why a method cannot be a host; nothing to say about unknown names."""
    method = METHODS.get(name) if isinstance(name, str) else None
    if method is None:
        return ""
    if issubclass(method, Asynchronous):
        return f"; {name} is asynchronous"
    if issubclass(method, Cyclic):
        return f"; {name} takes several server steps a round"
    kind = "one model per cluster" if method.serves == "cluster" else f"{method.serves} models"
    return f"; {name} " + ("relies on its own weights" if method.serves == "global" else f"serves {kind}")


@dataclass(frozen=True)
class State(ServerState):
    """The states of the ``host`` and of the decision maker (``own``)."""

    host: Any
    own: Any

    def tensors(self) -> dict[str, Tensor]:
        return self.host.tensors() | {f"{OWN}{name}": t for name, t in self.own.tensors().items()}

    def restored(self, tensors: Mapping[str, Tensor]) -> "State":
        own = {name.removeprefix(OWN): t for name, t in tensors.items() if name.startswith(OWN)}
        return State(self.host.restored(tensors), self.own.restored(own))


class Reweighted:
    """A cohort whose means have other ``weights`` [m], not normalized."""

    def __init__(self, cohort: Cohort, weights: np.ndarray) -> None:
        self.cohort, self.weights = cohort, weights

    def mean(self, name: str, group: int | None = None, weights: np.ndarray | None = None) -> Tensor:
        return self.cohort.mean(name, group, self.weights if weights is None else weights)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cohort, name)


class Weighing(Method):
    """Weights p [N] of all clients, decided in every round from their losses, for the averages of a host.

    Clients also send F_k, their loss at the received model over all their training data. In means, p is
    scaled to sum to 1 over the cohort; a cohort without weight is averaged uniformly.
    """

    gathers: ClassVar[bool] = True  # the weights depend on the losses of the whole cohort

    host: Host = option(
        factory=lambda: Host.parse({"name": "fedavg"}),
        doc=f"the method whose weights are replaced: name ({', '.join(HOSTS)}), and its hyper-parameters",
    )

    def validate(self) -> None:
        """What the engine reads as facts of a method are those of the host."""
        for name in ("masks", "newcomer", "serves_with"):
            object.__setattr__(self, name, getattr(self.host.parameters, name))

    # What a subclass decides.

    def first(self) -> ServerState:
        """The decision maker's state before the first round."""
        return ServerState()

    def decide(self, now: Round, own: Any, cohort: Cohort) -> tuple[np.ndarray, Any, Diagnostics]:
        """The weights p [N] >= 0 of this round, the decision maker's next state, and numbers to record."""
        raise NotImplementedError

    # What the host does.

    @property
    def _host(self) -> Any:
        return self.host.parameters

    def check(self, rounds: int) -> None:
        self._host.check(rounds)

    def check_clients(self, clients: int) -> None:
        self._host.check_clients(clients)

    def setup(self, model: FlatModel, initial: Callable[[int], Tensor]) -> State:
        return State(self._host.setup(model, initial), self.first())

    def trains(self, training: LocalTraining) -> LocalTraining:
        return self._host.trains(training)

    def client_state(
        self, model: FlatModel, initial: Tensor
    ) -> Mapping[str, Tensor | Callable[[int], Tensor]]:
        return self._host.client_state(model, initial)

    def draws(self, model: FlatModel, training: LocalTraining) -> Mapping[str, int]:
        return self._host.draws(model, training)

    def plan(self, now: Round, server: State, chances: np.ndarray, size: int) -> tuple[np.ndarray, State]:
        cohort, host = self._host.plan(now, server.host, chances, size)
        return cohort, replace(server, host=host)

    def samplers(self) -> tuple[str, ...]:
        return self._host.samplers()

    def weighs_samples(self) -> bool:
        return self._host.weighs_samples()

    def phase(self, now: Round) -> str:
        return self._host.phase(now)

    def check_training(self, training: LocalTraining) -> None:
        self._host.check_training(training)

    def streams(self, training: LocalTraining) -> dict[str, int]:
        return self._host.streams(training)

    def epochs(self, now: Round, server: State, client: int) -> int | None:
        return self._host.epochs(now, server.host, client)

    def work(self, now: Round, server: State, epochs: float, steps: int) -> Passes:
        passes = self._host.work(now, server.host, epochs, steps)
        return passes._replace(losses=passes.losses + 1)

    def fits(self, now: Round, training: LocalTraining) -> int:
        return self._host.fits(now, training)

    def broadcast(self, now: Round, server: State, client: int) -> Message:
        return self._host.broadcast(now, server.host, client)

    def broadcast_for_evaluation(self, now: Round, server: State, client: int) -> Message:
        return self._host.broadcast_for_evaluation(now, server.host, client)

    def local(self, client: Client) -> Update:
        update = self._host.local(client)
        loss = client.full_loss(client.received["model"])
        return replace(update, scalars={**update.scalars, "loss": loss})

    def without_updates(self, now: Round, server: State) -> State:
        return replace(server, host=self._host.without_updates(now, server.host))

    def aggregate(self, now: Round, server: State, cohort: Cohort) -> tuple[State, Diagnostics]:
        p, own, numbers = self.decide(now, server.own, cohort)
        weights = p[cohort.ids]
        if not weights.any():
            weights = np.ones(len(weights))
        reweighted: Any = Reweighted(cohort, weights)
        host, others = self._host.aggregate(now, server.host, reweighted)
        about: Diagnostics = {
            "objective": weights @ cohort.scalars("loss") / weights.sum(),
            "kl": divergence(p, now.sizes),
            "p_min": p.min(),
            "p_max": p.max(),
            "p": p,
        }
        return State(host, own), {**others, **about, **numbers}


def divergence(p: np.ndarray, q: np.ndarray) -> float:
    """KL(p || q) of weights [N], each scaled to sum to 1; q > 0."""
    p, q = p / p.sum(), q / q.sum()
    some = p > 0
    return float(p[some] @ np.log(p[some] / q[some]))
