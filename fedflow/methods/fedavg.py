"""FedAvg: clients train the global model on their own data, the server averages what comes back.

Source: McMahan, Moore, Ramage, Hampson, Aguera y Arcas, "Communication-Efficient Learning of Deep
Networks from Decentralized Data", AISTATS 2017, arXiv 1602.05629, Algorithm 1.

Client: w_k <- E epochs of SGD from w_t. Server: w_{t+1} = w_t - eta_s * (w_t - sum_k p_k w_k).
*Reduces to* FedSGD with one full-gradient step a round, to Local with a single client.
*State*: server w; clients none. *Traffic*: 1 P down, 1 P up. *Newcomer*: the global model.
*Differs from the paper in*: the server learning rate eta_s (1 in the paper), and in offering uniform
weights and sampling in proportion to n_k (without replacement, so that a cohort is m distinct clients).
"""

import numpy as np
from torch import Tensor

from fedflow.local.client import Client, Update
from fedflow.methods.base import Cohort, Method, Server, register
from fedflow.settings import option


@register("fedavg", "FedAvg")
class FedAvg(Method):
    weighting: str = option(
        "samples", "weights p_k of the average: n_k, or the same for all", symbol="p_k",
        choices=("samples", "uniform"), source="Algorithm 1 uses n_k",
    )  # fmt: skip
    sampling: str = option(
        "uniform", "how the cohort is drawn: uniformly, or in proportion to n_k",
        choices=("uniform", "proportional"), source="proportional goes with weighting=uniform",
    )  # fmt: skip
    server_lr: float = option(1.0, "server learning rate", symbol="eta_s", gt=0, source="1 in the paper")

    def plan(self, rng: np.random.Generator, sizes: np.ndarray, size: int, server: Server) -> np.ndarray:
        if self.sampling == "uniform":
            return super().plan(rng, sizes, size, server)
        return rng.choice(len(sizes), size=size, replace=False, p=sizes / sizes.sum())

    def local(self, client: Client) -> Update:
        return client.update(model=client.fit(start=client.received["model"]), weight=self.weight(client))

    def weight(self, client: Client) -> Tensor | float:
        return client.samples if self.weighting == "samples" else 1.0

    def average(self, cohort: Cohort) -> Tensor:
        """sum_k p_k w_k, [D]"""
        return cohort.mean("model")

    def aggregate(self, server: Server, cohort: Cohort) -> Server:
        w, mean = server["model"], self.average(cohort)
        if self.server_lr == 1:
            return {"model": mean}
        return {"model": cohort.model.with_buffers(w - self.server_lr * (w - mean), mean)}
