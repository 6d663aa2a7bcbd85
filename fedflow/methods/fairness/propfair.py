"""PropFair: clients maximize log(M - loss), so that no one gains at a greater relative cost to others.

Source: Zhang, Kang, Chen, Poupart, "Proportional Fairness in Federated Learning", 2022, arXiv 2202.01666.
Objective: maximize sum_k p_k log(M - F_k).

Client: SGD from w_t on -log(1 - l/M) in place of the loss l of each batch; where M - l < eps, a line
replaces it: plain has slope 1/M, as in the authors' code; huber has slope 1/eps, the paper's log_[eps].
Server: as FedAvg. With applied: weights, clients train as in FedAvg and have weights n_k / (M - F_k), the
slope at their loss F_k over all their data at w_t (1/M or 1/eps where M - F_k < eps).
*Reduces to* FedAvg when M -> infinity with eta M fixed (applied: weights: with eta fixed).
*State*: as FedAvg. *Traffic*: 1 P down, 1 P up. With applied: weights, also one scalar up.
*Newcomer*: the global model.
*Ambiguous*: the slope beyond M - eps, where paper and code differ; the default follows the code. Gradients
are about M times shorter than FedAvg's, so the learning rate needs tuning.
"""

import torch
from torch import Tensor

from fedflow.errors import BadInput
from fedflow.local.client import Client, Update
from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.methods.method import GlobalModel, Passes, Round
from fedflow.methods.registry import register
from fedflow.settings import option


@register("propfair", "PropFair")
class PropFair(FedAvg):
    baseline: float = option(
        5.0, "the loss with utility 0", symbol="M", gt=0, grid=(2, 3, 5), source="experiments"
    )
    eps: float = option(
        0.2, "distance to M below which the log becomes a line", symbol="eps", gt=0, source="experiments"
    )
    beyond: str = option(
        "plain", "slope of the line: 1/M or 1/eps", choices=("plain", "huber"), source="the paper: huber"
    )
    applied: str = option(
        "loss", "fairness acts on the clients' loss, or the weights", choices=("loss", "weights")
    )

    def validate(self) -> None:
        if self.eps >= self.baseline:
            raise BadInput("method.eps", self.eps, f"a number below method.baseline = {self.baseline:g}")

    def work(self, now: Round, server: GlobalModel, epochs: float, steps: int) -> Passes:
        return Passes(epochs, losses=self.applied == "weights")

    def local(self, client: Client) -> Update:
        w, weight = client.received["model"], self.weight(client)
        if self.applied == "weights":
            loss = client.full_loss(w)
            return client.update(
                model=client.fit(start=w), weight=weight * self.slope(loss), scalars={"loss": loss}
            )
        return client.update(model=client.fit(start=w, cost=self.cost), weight=weight)

    def cost(self, loss: Tensor) -> Tensor:
        """The objective of a batch with this loss; its value jumps at M - eps, but only its slope matters."""
        left = (self.baseline - loss).clamp(min=self.eps)
        return torch.where(self.baseline - loss < self.eps, loss * self.line, -(left / self.baseline).log())

    def slope(self, loss: Tensor) -> Tensor:
        """The derivative of `cost`."""
        left = (self.baseline - loss).clamp(min=self.eps)
        return torch.where(self.baseline - loss < self.eps, self.line, 1 / left)

    @property
    def line(self) -> float:
        """Slope of `cost` above M - eps."""
        return 1 / (self.baseline if self.beyond == "plain" else self.eps)
