"""q-FedAvg: clients with a higher loss count more, and an estimated Lipschitz constant scales the step.

Source: Li, Sanjabi, Beirami, Smith, "Fair Resource Allocation in Federated Learning", ICLR 2020,
arXiv 1905.10497, Algorithm 2. Objective: sum_k p_k / (q + 1) F_k^(q+1).

Client: F_k is its loss at w_t over all its training data; w_k as FedAvg; dw = L (w_t - w_k), L = 1 / eta;
sends D_k = F_k^q dw and h_k = q F_k^(q-1) ||dw||^2 + L F_k^q.
Server: w_{t+1} = w_t - sum_k D_k / sum_k h_k.
*Reduces to* uniform FedAvg when q = 0; tends to min-max fairness (AFL) as q grows.
*State*: as FedAvg. *Traffic*: 1 P down, 1 P and one scalar up. *Newcomer*: the global model.
*Differs from the paper in*: uniform sampling, so that all methods have the same cohorts (the paper draws
clients in proportion to n_k and sums uniformly: `run.sampling`). With weighting: samples, D_k and
h_k are weighted by n_k. As in the authors' code, 1e-10 is added to F_k.
*Rates*: eta is the client learning rate of the round, also if steps have others (`training.lr_within`).
"""

import torch
from torch import Tensor

from fedflow.local.client import Client, Update
from fedflow.methods.averaging._averaging import weights
from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.methods.method import Cohort, Conditions, GlobalModel, Next, Passes, Round
from fedflow.methods.registry import register
from fedflow.settings import option


@register("qfedavg", "q-FedAvg")
class QFedAvg(FedAvg):
    weighting: str = weights("uniform", "Algorithm 2: uniform")
    q: float = option(
        0.1, "fairness: the power of the losses", symbol="q", ge=0, grid=(0.1, 1, 5), source="grid of AAggFF"
    )

    def check(self, run: Conditions) -> None:
        run.training.need_sgd(self.name, "which divides updates by the rate of gradient steps")

    def train(self, client: Client) -> Tensor:
        return client.fit(start=client.received["model"])

    def work(self, now: Round, server: GlobalModel, epochs: float, steps: int) -> Passes:
        return super().work(now, server, epochs, steps)._replace(losses=1)

    def local(self, client: Client) -> Update:
        w, lipschitz = client.received["model"], 1 / client.lr
        drift = w - self.train(client)
        loss = client.full_loss(w) + 1e-10
        dw = lipschitz * client.model.trainable(drift)
        h = self.q * loss ** (self.q - 1) * dw.square().sum() + lipschitz * loss**self.q
        d = client.model.with_buffers(loss**self.q * dw, drift)
        return client.update(d=d, scalars={"h": h}, weight=self.weight(client))

    def aggregate(self, now: Round, server: GlobalModel, cohort: Cohort) -> Next[GlobalModel]:
        w, d = server.model, cohort.mean("d")
        h = float(cohort.weights @ cohort.scalars("h") / cohort.weights.sum())
        step = d / max(h, torch.finfo(d.dtype).tiny)  # D_k is 0 too if all powers of losses are rounded to 0
        return GlobalModel(now.model.with_buffers(w - self.server_lr * step, w - d)), {}
