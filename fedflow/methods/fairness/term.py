"""TERM: weights grow exponentially with the loss: the tilt t leads from the mean loss to the maximum.

Source: Li, Beirami, Sanjabi, Smith, "Tilted Empirical Risk Minimization", ICLR 2021, arXiv 2007.01162.
Objective: 1/t log sum_k p_k exp(t F_k), which is the mean for t -> 0 and the maximum for t -> infinity.

Client: as FedAvg; also sends F_k, its loss at w_t over all its training data.
Server: w_{t+1} = sum_k s_k w_k, s_k in proportion to p_k exp(t F_k). t < 0 favors the best clients.
*Reduces to* FedAvg when t = 0.
*State*: as FedAvg. *Traffic*: 1 P down, 1 P and one scalar up. *Newcomer*: the global model.
*Differs from the authors' code in*: s_k sums to 1 (there, a running estimate replaces the normalizer and the
sum is divided by m once more) and includes p_k (weighting: uniform leaves it out).
"""

import numpy as np
from torch import Tensor

from fedflow.local.client import Client, Update
from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.methods.method import Cohort, GlobalModel, Passes, Round
from fedflow.methods.registry import register
from fedflow.settings import option


@register("term", "TERM")
class TERM(FedAvg):
    gathers = True  # the weights depend on the losses of the whole cohort

    t: float = option(0.1, "tilt", symbol="t", grid=(0.1, 1, 10), source="grid of AAggFF")

    def work(self, now: Round, server: GlobalModel, epochs: float, steps: int) -> Passes:
        return Passes(epochs, losses=1)

    def local(self, client: Client) -> Update:
        update = super().local(client)
        update.scalars["loss"] = client.full_loss(client.received["model"])
        return update

    def average(self, cohort: Cohort) -> Tensor:
        tilted = self.t * cohort.scalars("loss")
        return cohort.mean("model", weights=cohort.weights * np.exp(tilted - tilted.max()))
