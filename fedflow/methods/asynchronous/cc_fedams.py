"""CC-FedAMS: CC-FedAdam that divides by the largest second moment so far, as AMSGrad does.

Source: Sun, Wu, Huang, Zhang, "Client-Centric Federated Adaptive Optimization", 2025, arXiv 2501.09946,
Algorithms 2 (server) and 3 (client).

Client: fetches x, takes K local steps to x_K, sends d_k = (x - x_K) / K. Server: after every m updates, stale
ones included, d = mean of d_k; m <- beta m + (1 - beta) d; u <- gamma u + (1 - gamma) d^2; v <- max(v, u);
x <- x - eta m / (sqrt(v) + eps), entry by entry; initially m = u = v = 0.
*Reduces to* CC-FedAdam as long as u does not shrink.
*State*: server x, m, u, v; clients none. *Traffic*: 1 P down, 1 P up. *Newcomer*: the global model.
*Ambiguous*: which client trains next: here a random idle one (`run.timing` sets how fast clients are).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedflow.methods.asynchronous._client_centric import State
from fedflow.methods.asynchronous.cc_fedadam import CCFedAdam
from fedflow.methods.method import Initial
from fedflow.methods.registry import register
from fedflow.models.flat import FlatModel


@dataclass(frozen=True)
class MaxState(State):
    u: Tensor


@register("cc_fedams", "CC-FedAMS")
class CCFedAMS(CCFedAdam[MaxState]):
    def setup(self, model: FlatModel, initial: Initial) -> MaxState:
        return MaxState(**vars(super().setup(model, initial)), u=torch.zeros_like(initial(0)))

    def second(self, server: MaxState, square: Tensor) -> dict[str, Tensor]:
        u = self.gamma * server.u + (1 - self.gamma) * square
        return {"u": u, "v": torch.maximum(server.v, u)}
