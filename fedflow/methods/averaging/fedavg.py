"""FedAvg: clients train the global model on their own data; the server averages the results.

Source: McMahan, Moore, Ramage, Hampson, Aguera y Arcas, "Communication-Efficient Learning of Deep
Networks from Decentralized Data", AISTATS 2017, arXiv 1602.05629, Algorithm 1.

Client: w_k <- E epochs of SGD from w_t. Server: w_{t+1} = w_t - eta_s * (w_t - sum_k p_k w_k).
*Reduces to* FedSGD with one full-gradient step per round, to Local with a single client.
*State*: server w; clients none. *Traffic*: 1 P down, 1 P up. *Newcomer*: the global model.
*Differs from the paper in*: the server learning rate eta_s (1 in the paper), and in offering uniform
weights, which suit cohorts drawn in proportion to n_k (`run.sampling`).
"""

from dataclasses import replace

from torch import Tensor

from fedflow.methods.averaging._averaging import ModelAveraging
from fedflow.methods.method import Cohort, M, Next, Round
from fedflow.methods.protocols import Published
from fedflow.methods.registry import register
from fedflow.metrics.cost import exchanged_bytes
from fedflow.models.flat import FlatModel


@register("fedavg", "FedAvg")
class FedAvg(Published, ModelAveraging[M]):
    def average(self, cohort: Cohort) -> Tensor:
        """sum_k p_k w_k, [D]"""
        return cohort.mean("model")

    def aggregate(self, now: Round, server: M, cohort: Cohort) -> Next[M]:
        return replace(server, model=self.stepped(now, server.model, self.average(cohort))), {}

    def published_bytes(self, model: FlatModel, rounds: int, cohort: int) -> float | None:
        if type(self) is not FedAvg:  # subclasses have other sources
            return None
        size = int(model.outside_norms.sum())
        return exchanged_bytes(rounds * cohort, down=size, up=size)
