"""FedBuff: asynchronous clients, and a server that averages every m updates, late ones among them.

Source: Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba, "Federated Learning with Buffered Asynchronous
Aggregation", AISTATS 2022, arXiv 2106.06639, Algorithm 1.

Client: fetches x, takes K local steps to x_K, sends d_k = x - x_K. Server: with every m updates,
x <- x - eta_s / m * sum_k s(tau_k) d_k, where tau_k counts the steps that the server took while client k
was at work.
*Reduces to* FedAvg (weighting: uniform) when nobody is late.
*State*: server x, t; clients none. *Traffic*: 1 P and the step number down, 1 P and the step number up.
*Newcomer*: the global model.
*Ambiguous*: who works when; here the next client is a random idle one (`run.timing` says how fast they are).
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fedflow.local.client import Client, Update
from fedflow.methods.asynchronous._asynchronous import Asynchronous
from fedflow.methods.base import Cohort, Server
from fedflow.methods.registry import register
from fedflow.models.flat import FlatModel
from fedflow.settings import option


@register("fedbuff", "FedBuff")
class FedBuff(Asynchronous):
    gathers = True

    staleness: str = option(
        "sqrt", "s(tau): late updates count 1 / sqrt(1 + tau), or as much as others", symbol="s",
        choices=("sqrt", "none"), source="experiments: 1 / sqrt(1 + tau)",
    )  # fmt: skip

    def setup(self, model: FlatModel, initial: Callable[[int], Tensor]) -> Server:
        return {"model": initial(0), "t": torch.zeros((), dtype=model.dtype)}

    def broadcast(self, server: Server, client: int) -> dict[str, Tensor]:
        return {"model": server["model"], "t": server["t"]}

    def broadcast_for_evaluation(self, server: Server, client: int) -> dict[str, Tensor]:
        return {"model": server["model"]}

    def local(self, client: Client) -> Update:
        x = client.received["model"]
        d = x - client.fit(start=x)
        return client.update(d=d, weight=self.weight(client), scalars={"t": client.received["t"]})

    def aggregate(self, server: Server, cohort: Cohort) -> Server:
        x, t = server["model"], server["t"]
        late = float(t) - cohort.scalars("t")
        share = np.ones_like(late) if self.staleness == "none" else 1 / np.sqrt(1 + late)
        p = cohort.weights / cohort.weights.sum()
        d = float(p @ share) * cohort.mean("d", weights=p * share)
        stepped = x - self.server_lr * cohort.model.trainable(d)
        return {"model": cohort.model.with_buffers(stepped, x - cohort.mean("d")), "t": t + 1}
