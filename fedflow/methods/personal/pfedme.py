"""pFedMe: each client's model stays near the global one, which moves along gradients of Moreau envelopes.

Source: Dinh, Tran, Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020,
arXiv 2006.08848, Algorithm 1. Objective: sum_k p_k min_theta (F_k(theta) + lambda/2 ||theta - w||^2).

Client, from w_k = theta_k = w_t, on every batch: theta_k <- K steps of size eta_p on this batch towards
argmin F_k(theta) + lambda/2 ||theta - w_k||^2; w_k <- w_k - eta lambda (w_k - theta_k). Sends w_k.
Server: w_{t+1} = (1 - beta) w_t + beta sum_k p_k w_k. Clients are served theta_k.
*Reduces to* FedAvg with learning rate eta_p when K = 1 and eta lambda = 1; theta_k = w_k as lambda grows.
*State*: server w; client theta_k (to be served). *Traffic*: 1 P down, 1 P up. *Newcomer*: theta = w_t.
*Differs from the paper in*: E epochs of batches (the authors take R = 20 batches). As in Algorithm 1, only
the cohort trains; the authors' code trains all clients and averages the cohort's models. Its decay of 0.001
theta is `training.weight_decay`, which applies to inner steps only; neither step uses momentum. SuPerFed's
code pulls by norms and scores a copy of the global model, and its pFedMe on CIFAR-10 is probably APFL: there
is no preset.
*Rates*: eta decays with `training.lr_decay` and `training.lr_within`; a given eta_p does not decay.
"""

from torch import Tensor

from fedflow.local.client import Client, Update
from fedflow.local.optimizer import Pull, SGDState
from fedflow.local.samples import Batch
from fedflow.methods.method import Conditions, GlobalModel, Passes, Round
from fedflow.methods.personal._personal import WithFedAvg
from fedflow.methods.registry import register
from fedflow.settings import option


@register("pfedme", "pFedMe")
class PFedMe(WithFedAvg):
    lam: float = option(
        15.0, "pull to the global model", symbol="lambda", ge=0, grid=(5, 10, 15, 20, 30), source="section 5"
    )
    inner_steps: int = option(
        5, "steps of the personal model on every batch", symbol="K", ge=1, grid=(1, 3, 5, 7)
    )
    personal_lr: float | None = option(
        0.09, "personal learning rate; null = the global one", symbol="eta_p", gt=0, source="authors' code"
    )
    server_lr: float = option(
        1.0, "weight of the mean in the next model", symbol="beta", gt=0, grid=(1, 2), source="section 5"
    )

    def check(self, run: Conditions) -> None:
        run.training.need_sgd(self.name, "both of whose steps are gradient steps")

    def work(self, now: Round, server: GlobalModel, epochs: float, steps: int) -> Passes:
        return Passes(self.inner_steps * epochs)

    def local(self, client: Client) -> Update:
        def step(now: tuple[Tensor, Tensor], batch: Batch) -> tuple[tuple[Tensor, Tensor], Tensor]:
            w, theta = now
            for _ in range(self.inner_steps):
                inner = client.pulled(client.gradient(theta, batch), theta, Pull(self.lam, w))
                theta = client.descend(SGDState(theta, None), inner, lr=self.personal_lr).w
            w_next = client.model.with_buffers(w - client.lr * self.lam * (w - theta), theta)
            return (w_next, theta), inner.loss

        start = client.received["model"]
        w_k, theta = client.run_steps(step, (start, start))
        client.trained = self.trained_model(theta, w_k)
        return client.update(model=w_k, weight=self.weight(client), keep={"personal": theta})
