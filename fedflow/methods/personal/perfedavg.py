"""Per-FedAvg: learns a model that serves every client well after one gradient step on its own data.

Source: Fallah, Mokhtari, Ozdaglar, "Personalized Federated Learning with Theoretical Guarantees: A
Model-Agnostic Meta-Learning Approach", NeurIPS 2020, arXiv 2002.07948, Algorithm 1.
Objective: mean_k F_k(w - alpha grad F_k(w)).

Client, with batches D, D', D'' in every local step: w' = w - alpha grad F(w; D), v = grad F(w'; D');
first order: w <- w - beta v; Hessian-free:
w <- w - beta (v - alpha (grad F(w + delta v; D'') - grad F(w - delta v; D'')) / (2 delta)).
Server: as uniform FedAvg. A client is served the global model after a step of size alpha on all its data.
*Reduces to* uniform FedAvg with learning rate beta when alpha = 0.
*State*: as FedAvg. *Traffic*: 1 P down, 1 P up. *Newcomer*: the global model after a step on its own data.
*Rates*: beta defaults to the client learning rate of the round, with its decay; a given beta does not decay,
nor does alpha, which belongs to the objective.
*Ambiguous*: the three batches come from separate shuffles, so that a round has as many steps as with FedAvg
(other code takes consecutive batches, and half as many steps); momentum is that of the meta-gradient.
"""

from typing import ClassVar

from torch import Tensor

from fedflow.local.client import Client, Update
from fedflow.local.optimiser import Moving
from fedflow.local.samples import Batch
from fedflow.local.sgd import Step
from fedflow.local.training import LocalTraining
from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.methods.base import GlobalModel, Passes, Round
from fedflow.methods.registry import register
from fedflow.settings import option


@register("perfedavg", "Per-FedAvg")
class PerFedAvg(FedAvg):
    serves: ClassVar[str] = "personal"
    serves_with: ClassVar[tuple[str, ...] | None] = ()

    weighting: str = option(
        "uniform", "weights p_k of the average: n_k or uniform", symbol="p_k",
        choices=("samples", "uniform"), source="Algorithm 1: uniform",
    )  # fmt: skip
    alpha: float = option(0.01, "step size of the adaptation", symbol="alpha", ge=0, source="section 5")
    beta: float | None = option(
        None, "step size of the meta-gradient; null = the client learning rate", symbol="beta", gt=0,
        source="section 5: 0.001",
    )  # fmt: skip
    order: str = option(
        "first", "meta-gradient without second derivatives, or with them from differences of gradients",
        choices=("first", "hessian_free"), source="section 5: FO and HF",
    )  # fmt: skip
    delta: float = option(
        1e-3, "half the distance of the two gradients of hessian_free", symbol="delta", gt=0
    )
    adaptation: int = option(1, "gradient steps on a client's own data before it is served", ge=0)

    def streams(self, training: LocalTraining) -> dict[str, int]:
        return dict.fromkeys(self.batches(), training.epochs)

    def batches(self) -> tuple[str, ...]:
        """The streams of D', D and, for hessian_free, D''."""
        return ("batches", "inner", "hessian") if self.order == "hessian_free" else ("batches", "inner")

    def work(self, now: Round, server: GlobalModel, epochs: float, steps: int) -> Passes:
        """One gradient per stream; two in the last stream of hessian_free."""
        return Passes(epochs * 4 / 3 if self.order == "hessian_free" else epochs)

    def fits(self, now: Round, training: LocalTraining) -> int:
        return 1

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

        start = client.initial_state(client.received["model"])
        client.trained = client.run_steps(step, start, self.batches()).w
        return client.update(model=client.trained, weight=self.weight(client))

    def model_for(self, client: Client) -> Tensor:
        w = client.received["model"]
        for _ in range(self.adaptation):
            w = w - self.alpha * client.full_gradient(w)
        return w
