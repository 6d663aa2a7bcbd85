"""Per-FedAvg: learns a model that serves every client well after one gradient step on its own data.

Source: Fallah, Mokhtari, Ozdaglar, "Personalized Federated Learning with Theoretical Guarantees: A
Model-Agnostic Meta-Learning Approach", NeurIPS 2020, arXiv 2002.07948, Algorithm 1.
Objective: mean_k F_k(w - alpha grad F_k(w)).

Client, with batches D, D', D'' in every local step: w' = w - alpha grad F(w; D), v = grad F(w'; D');
first order: w <- w - beta v; Hessian-free:
w <- w - beta (v - alpha (grad F(w + delta v; D'') - grad F(w - delta v; D'')) / (2 delta));
second order: w <- w - beta grad_w F(w'; D'), exact, also where ``adaptation`` steps lead from w to w'
(`training.adaptation`, maml), as PFL compares with.
Server: as uniform FedAvg. A client is served the global model after a step of size alpha on all its data.
*Reduces to* uniform FedAvg with learning rate beta when alpha = 0.
*State*: as FedAvg. *Traffic*: 1 P down, 1 P up. *Newcomer*: the global model after a step on its own data.
*Rates*: beta defaults to the client learning rate of the round, with its decay; a given beta does not decay,
nor does alpha, which belongs to the objective.
*Ambiguous*: the three batches come from separate shuffles, so that a round has as many steps as with FedAvg
(other code takes consecutive batches, and half as many steps), but with order: second, D is disjoint from D'
where there are enough samples, as in PFL; momentum applies to the meta-gradient. The step before a client is
served uses dropout and the statistics of its batch, as in training, but with order: second it does not.
"""

from typing import ClassVar

from torch import Tensor

from fedflow.errors import BadInput
from fedflow.local.client import Client, Update
from fedflow.local.extensions.adaptation import Adaptation
from fedflow.local.local_training import LocalTraining
from fedflow.local.optimizer import Moving
from fedflow.local.samples import Batch
from fedflow.local.trainer import Step
from fedflow.methods.averaging._averaging import weights
from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.methods.method import GlobalModel, Passes, Round
from fedflow.methods.personal._adapting import adapting
from fedflow.methods.protocols import Adapting
from fedflow.methods.registry import register
from fedflow.settings import option, shown


class OfMethod(Adaptation):
    """Errors name the options of the method."""

    section = "method"


@register("perfedavg", "Per-FedAvg")
class PerFedAvg(Adapting, FedAvg):
    serves = "personal"
    serves_with = ()
    delta: ClassVar[float] = 1e-3  # in the authors' code

    weighting: str = weights("uniform", "Algorithm 1: uniform")
    alpha: float = option(0.01, "step size of the adaptation", symbol="alpha", ge=0, source="section 5")
    beta: float | None = option(
        None, "step size of the meta-gradient; null = the client learning rate", symbol="beta", gt=0
    )
    order: str = option(
        "first", "second derivatives: none, differences, exact", choices=("first", "hessian_free", "second")
    )
    adaptation: int = option(
        1, "gradient steps before a client is served; with order: second also in training", ge=0, grid=(1, 5)
    )

    def trains(self, training: LocalTraining) -> LocalTraining:
        by = f"{self.name} and order: {self.order}, whose steps adapt"
        if self.order == "second":
            return adapting(training, self.maml, by)
        if training.adaptation is not None:
            raise BadInput("training.adaptation", shown(training.adaptation), f"null with {by}")
        return training

    @property
    def maml(self) -> Adaptation:
        """The adaptation that order: second differentiates."""
        return OfMethod.parse({"name": "maml", "lr": self.alpha, "steps": self.adaptation})

    def streams(self, training: LocalTraining) -> dict[str, int]:
        return dict.fromkeys(self.batches(), training.epochs)

    def batches(self) -> tuple[str, ...]:
        """The streams of D', D and, for hessian_free, D''. With order: second, D is a support batch."""
        return ("batches", "inner", "hessian")[: {"second": 1, "first": 2, "hessian_free": 3}[self.order]]

    def work(self, now: Round, server: GlobalModel, epochs: float, steps: int) -> Passes:
        """One gradient per stream; two in the last stream of hessian_free."""
        return Passes(epochs * 4 / 3 if self.order == "hessian_free" else epochs, fits=1)

    def local(self, client: Client) -> Update:
        def step(now: Moving, outer: Batch, inner: Batch, *hessian: Batch) -> tuple[Moving, Tensor]:
            w = now.w
            v, loss, buffers = client.gradient(w - self.alpha * client.gradient(w, inner).gradient, outer)
            for batch in hessian:
                ahead, (behind, loss, buffers) = (
                    client.gradient(w + d * v, batch) for d in (self.delta, -self.delta)
                )
                v = v - self.alpha * (ahead.gradient - behind) / (2 * self.delta)
            return client.descend(now, Step(v, loss, buffers), lr=self.beta), loss

        w = client.received["model"]
        if self.order == "second":
            w_k = client.fit(start=w, lr=self.beta)
        else:
            w_k = client.trained = client.run_steps(step, client.initial_state(w), self.batches()).w
        return client.update(model=w_k, weight=self.weight(client))

    def serves_adapted(self) -> bool:
        return self.adaptation > 0

    def model_for(self, client: Client) -> Tensor:
        w = client.received["model"]
        if self.order == "second":
            return self.maml.adapted(client, w)
        for _ in range(self.adaptation):
            w = w - self.alpha * client.full_gradient(w)
        return w
