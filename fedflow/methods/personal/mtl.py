"""MTL: every client keeps a personal model that is pulled towards the mean of all (mean-regularized).

Source: Evgeniou, Pontil, "Regularized Multi-Task Learning", KDD 2004; as a federated method Smith, Chiang,
Sanjabi, Talwalkar, "Federated Multi-Task Learning" (MOCHA), NeurIPS 2017, arXiv 1705.10467, section 3.1.
Objective: sum_k F_k(w_k) + lambda (||W||_F^2 + tr(W Omega W^T)) over the clients' models W = [w_1 .. w_m],
with Omega = I - 11^T/m, which makes the second term sum_k ||w_k - mean||^2.

Client: w_k <- E epochs of SGD on F_k(w) + lambda (||w||^2 + ||w - mean||^2) from its own w_k, the received
mean held fixed; sends w_k. Server: mean of the cohort's models; it never replaces a client's model.
*Reduces to* Local when lambda = 0.
*State*: server mean; client w_k. *Traffic*: 1 P down, 1 P up. *Newcomer*: the mean.
*Ambiguous*: the weight is 10^-f, f one more than the digits of P, as in public code. Its Omega squares the
centering matrix entry by entry (and has ones for I), a slip: the matrix product, as here, is that matrix
again. The mean is over the last cohort.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedflow.local.client import Client, Update
from fedflow.local.optimizer import Pull
from fedflow.methods.averaging._averaging import Averaging, weights
from fedflow.methods.method import Cohort, Initial, Message, Next, Round, ServerState
from fedflow.methods.registry import register
from fedflow.models.flat import FlatModel
from fedflow.settings import option


@dataclass(frozen=True)
class State(ServerState):
    mean: Tensor


@register("mtl", "MTL")
class MTL(Averaging[State]):
    serves = "personal"
    newcomer: ClassVar[Mapping[str, str]] = {"model": "mean"}

    weighting: str = weights("uniform", "Omega")
    lam: float | None = option(
        None, "weight of both penalties; null = 10^-f", symbol="lambda", ge=0, source="LG-FedAvg's code"
    )

    def client_state(self, model: FlatModel, initial: Tensor) -> dict[str, Tensor]:
        return {"model": initial}

    def setup(self, model: FlatModel, initial: Initial) -> State:
        return State(initial(0))

    def broadcast(self, now: Round, server: State, client: int) -> Message:
        return {"mean": server.mean}

    def penalty(self, model: FlatModel) -> float:
        """lambda"""
        return 10.0 ** -(len(str(model.parameters)) + 1) if self.lam is None else self.lam

    def local(self, client: Client) -> Update:
        lam = self.penalty(client.model)  # both penalties are one, up to a constant
        pull = Pull(4 * lam, client.received["mean"] / 2) if lam else None
        w = client.fit(start=client.kept["model"], pull=pull)
        return client.update(model=w, weight=self.weight(client), keep={"model": w})

    def aggregate(self, now: Round, server: State, cohort: Cohort) -> Next[State]:
        return State(cohort.mean("model")), {}

    def model_for(self, client: Client) -> Tensor:
        return client.kept["model"]
