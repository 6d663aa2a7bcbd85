"""FedBuff: asynchronous clients, and a server that averages every m updates, stale ones included.

Source: Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba, "Federated Learning with Buffered Asynchronous
Aggregation", AISTATS 2022, arXiv 2106.06639, Algorithm 1.

Client: fetches x, takes K local steps to x_K, sends d_k = x - x_K. Server: after every m updates,
x <- x - eta_s / m * sum_k s(tau_k) d_k, where the staleness tau_k counts the server steps taken while client
k was training. Running statistics are sent as they are, and averaged.
*Reduces to* FedAvg (weighting: uniform) when no update is stale.
*State*: server x, t; clients none. *Traffic*: 1 P and the step number down, 1 P and the step number up.
*Newcomer*: the global model.
*Ambiguous*: which client trains next: here a random idle one (`run.timing` sets how fast clients are).
"""

import numpy as np

from fedflow.local.client import Client, Update
from fedflow.methods.asynchronous._asynchronous import Buffered
from fedflow.methods.method import Cohort, GlobalModel, Message, Next, Round
from fedflow.methods.protocols import Serving
from fedflow.methods.registry import register
from fedflow.settings import option


@register("fedbuff", "FedBuff")
class FedBuff(Serving, Buffered):
    gathers = True

    staleness: str = option(
        "sqrt", "s(tau): 1 / sqrt(1 + tau), or 1", symbol="s", choices=("sqrt", "none"), source="experiments"
    )

    def broadcast(self, now: Round, server: GlobalModel, client: int) -> Message:
        return {"model": server.model, "t": server.model.new_tensor(now.t - 1)}

    def broadcast_for_evaluation(self, now: Round, server: GlobalModel, client: int) -> Message:
        return {"model": server.model}

    def local(self, client: Client) -> Update:
        x = client.received["model"]
        x_k = client.fit(start=x)
        d = client.model.with_buffers(x - x_k, x_k)
        return client.update(d=d, weight=self.weight(client), scalars={"t": client.received["t"]})

    def aggregate(self, now: Round, server: GlobalModel, cohort: Cohort) -> Next[GlobalModel]:
        x = server.model
        tau = now.t - 1 - cohort.scalars("t")
        share = np.ones_like(tau) if self.staleness == "none" else 1 / np.sqrt(1 + tau)
        p = cohort.weights / cohort.weights.sum()
        d = float(p @ share) * cohort.mean("d", weights=p * share)
        stepped = x - self.server_lr * now.model.trainable(d)
        return GlobalModel(now.model.with_buffers(stepped, cohort.mean("d"))), {}
