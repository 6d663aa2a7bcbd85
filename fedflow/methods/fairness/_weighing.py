"""Base of methods that decide the weights of the average, and leave the rest to a host such as FedProx."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Self, cast

import numpy as np
from torch import Tensor
from typing_extensions import TypeVar

from fedflow.choice import Choice
from fedflow.errors import BadInput
from fedflow.local.client import Client, Update
from fedflow.methods.method import Cohort, Diagnostics, Initial, Method, Next, Passes, Round, ServerState
from fedflow.methods.protocols import Asynchronous, Cyclic, Published, Weighted
from fedflow.methods.registry import METHODS, method_name
from fedflow.methods.wrapped import HostState, Wrapped
from fedflow.models.flat import FlatModel
from fedflow.settings import option

Own = TypeVar("Own", bound=ServerState, default=ServerState)  # the decision maker's state

# Their server uses clients' weights in means of uploaded vectors only.
HOSTS = ("fedadagrad", "fedadam", "fedavg", "fedavgm", "fedprox", "fedsgd", "fedyogi")
OWN = "weighing/"  # prefix of the decision maker's tensors; the host's tensors keep their names


class Host(Choice):
    """A method by name, with its hyperparameters."""

    section = "method.host"
    nested = True
    name: str = option(doc="one of " + ", ".join(HOSTS))
    parameters: Method = option(factory=dict, doc="the method with its hyperparameters")

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
            accepted = "samples (not used: other weights replace the host's)"
            raise BadInput(f"{self.section}.weighting", weighting, accepted)

    def __str__(self) -> str:
        return f"{{name: {self.name}}}"


def _because(name: Any) -> str:
    """Reason why a method cannot be a host; empty for unknown names."""
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
class State(HostState, Generic[Own]):
    """The states of the ``host`` and of the decision maker, the ``player``."""

    player: Own

    def tensors(self) -> dict[str, Tensor]:
        host: dict[str, Tensor] = self.host.tensors()
        return host | {f"{OWN}{name}": t for name, t in self.player.tensors().items()}

    def restored(self, tensors: Mapping[str, Tensor]) -> Self:
        player = {name.removeprefix(OWN): t for name, t in tensors.items() if name.startswith(OWN)}
        return type(self)(self.host.restored(tensors), self.player.restored(player))


class Reweighted:
    """A cohort whose means have other ``weights`` [m], not normalized."""

    def __init__(self, cohort: Cohort, weights: np.ndarray) -> None:
        self.cohort, self.weights = cohort, weights

    def mean(self, name: str, group: int | None = None, weights: np.ndarray | None = None) -> Tensor:
        return self.cohort.mean(name, group, self.weights if weights is None else weights)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cohort, name)


class Weighing(Published, Weighted, Wrapped[State[Own]], Generic[Own]):
    """Weights p [N] of all clients, decided in every round from their losses, for the averages of a host.

    Clients also send F_k, their loss at the received model over all their training data. In means, p is
    scaled to sum to 1 over the cohort; a cohort without weight is averaged uniformly.
    """

    gathers = True  # the weights depend on the losses of the whole cohort

    host: Host = option(
        factory=lambda: Host.parse({"name": "fedavg"}),
        doc=f"the method whose weights are replaced: name ({', '.join(HOSTS)}), and its hyperparameters",
    )

    @property
    def wrapped(self) -> Method[Any]:
        return self.host.parameters

    def first(self) -> Own:
        """The decision maker's state before the first round."""
        return cast("Own", ServerState())

    def decide(self, now: Round, player: Own, cohort: Cohort) -> tuple[np.ndarray, Own, Diagnostics]:
        """Return the weights p [N] >= 0 of this round, the decision maker's next state, and diagnostics."""
        raise NotImplementedError

    def setup(self, model: FlatModel, initial: Initial) -> State[Own]:
        return State(self.wrapped.setup(model, initial), self.first())

    def local(self, client: Client) -> Update:
        update = self.wrapped.local(client)
        loss = client.full_loss(client.received["model"])
        return replace(update, scalars={**update.scalars, "loss": loss})

    def work(self, now: Round, server: State[Own], epochs: float, steps: int) -> Passes:
        passes = self.wrapped.work(now, server.host, epochs, steps)
        return passes._replace(losses=passes.losses + 1)

    def aggregate(self, now: Round, server: State[Own], cohort: Cohort) -> Next[State[Own]]:
        p, player, numbers = self.decide(now, server.player, cohort)
        weights = p[cohort.ids]
        if not weights.any():
            weights = np.ones(len(weights))
        reweighted: Any = Reweighted(cohort, weights)
        host, others = self.wrapped.aggregate(now, server.host, reweighted)
        weighing: Diagnostics = {
            "objective": weights @ cohort.scalars("loss") / weights.sum(),
            "kl": divergence(p, now.sizes),
            "p_min": p.min(),
            "p_max": p.max(),
            "p": p,
        }
        return State(host, player), {**others, **weighing, **numbers}

    def published_bytes(self, model: FlatModel, rounds: int, cohort: int) -> None:
        """None, as the formula belongs to the host's source."""


def divergence(p: np.ndarray, q: np.ndarray) -> float:
    """KL(p || q) of weights [N], each scaled to sum to 1; q > 0."""
    p, q = p / p.sum(), q / q.sum()
    some = p > 0
    return float(p[some] @ np.log(p[some] / q[some]))
