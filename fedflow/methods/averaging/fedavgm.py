"""FedAvgM: the server treats the mean update as a gradient and descends with momentum.

Source: Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification", 2019, arXiv 1909.06335.

Client: as FedAvg. Server: Delta = w_t - sum_k p_k w_k; v <- beta v + Delta, initially v = 0; then
polyak: w_{t+1} = w_t - eta_s v; nesterov: w_{t+1} = w_t - eta_s (Delta + beta v);
damped: as polyak, with v <- beta v + (1 - beta) Delta.
*Reduces to* FedAvg when beta = 0, in all three forms.
*State*: server w, v; clients none. *Traffic*: 1 P down, 1 P up. *Newcomer*: the global model.
*Ambiguous*: the paper's equation is polyak, its experiments ran nesterov; the default here is polyak.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.methods.method import Cohort, GlobalModel, Initial, Next, Round
from fedflow.methods.registry import register
from fedflow.models.flat import FlatModel
from fedflow.settings import option


@dataclass(frozen=True)
class State(GlobalModel):
    v: Tensor


@register("fedavgm", "FedAvgM")
class FedAvgM(FedAvg[State]):
    beta: float = option(
        0.9, "server momentum", symbol="beta", ge=0, lt=1, grid=(0, 0.7, 0.9, 0.97, 0.99, 0.997)
    )
    form: str = option("polyak", "form of momentum", choices=("polyak", "nesterov", "damped"))

    def setup(self, model: FlatModel, initial: Initial) -> State:
        w = initial(0)
        return State(w, torch.zeros_like(w))

    def aggregate(self, now: Round, server: State, cohort: Cohort) -> Next[State]:
        w, mean = server.model, self.average(cohort)
        delta = now.model.trainable(w - mean)
        v = self.beta * server.v + (1 - self.beta if self.form == "damped" else 1) * delta
        step = delta + self.beta * v if self.form == "nesterov" else v
        return State(now.model.with_buffers(w - self.server_lr * step, mean), v), {}
