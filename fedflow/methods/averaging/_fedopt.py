"""Base of FedAdagrad, FedAdam and FedYogi: an adaptive optimizer on the server, applied to mean updates."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.methods.method import Cohort, GlobalModel, Initial, Next, Round
from fedflow.models.flat import FlatModel
from fedflow.settings import option


@dataclass(frozen=True)
class State(GlobalModel):
    m: Tensor
    v: Tensor


class FedOpt(FedAvg[State]):
    """m <- beta1 m + (1 - beta1) d; v <- `second`; w <- w + eta_s m / (sqrt(v) + tau)."""

    server_lr: float = option(
        0.01, "server learning rate", symbol="eta_s", gt=0, grid=(1e-3, 0.01, 0.1, 1, 10), source="Alg. 2"
    )
    beta1: float = option(
        0.9, "decay of the first moment m", symbol="beta1", ge=0, lt=1, source="experiments: 0.9"
    )
    tau: float = option(
        1e-3, "added to sqrt(v)", symbol="tau", gt=0, grid=(1e-5, 1e-4, 1e-3, 0.01, 0.1), source="experiments"
    )
    v0: float | None = option(
        None, "first value of v; null = tau^2", symbol="v_0", ge=0, source="Algorithm 2; public code: 0"
    )

    def setup(self, model: FlatModel, initial: Initial) -> State:
        w = initial(0)
        v = torch.full_like(w, self.tau**2 if self.v0 is None else self.v0)
        return State(w, torch.zeros_like(w), v)

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """The next second moment [D], from the last one and d^2."""
        raise NotImplementedError

    def aggregate(self, now: Round, server: State, cohort: Cohort) -> Next[State]:
        w, mean = server.model, self.average(cohort)
        d = now.model.trainable(mean - w)
        m = self.beta1 * server.m + (1 - self.beta1) * d
        v = self.second(server.v, d.square())
        stepped = w + self.server_lr * m / (v.sqrt() + self.tau)
        return State(now.model.with_buffers(stepped, mean), m, v), {}
