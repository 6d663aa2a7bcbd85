"""FedNova: each update is divided by its client's amount of local work before the average.

Source: Wang, Liu, Liang, Joshi, Poor, "Tackling the Objective Inconsistency Problem in Heterogeneous
Federated Optimization", NeurIPS 2020, arXiv 2007.07481, equations (8) and (10).

Client: tau_k steps from w_t to w_k; d_k = (w_t - w_k) / a_k. The amount of work a_k is
tau_k for SGD; [tau_k - rho (1 - rho^tau_k) / (1 - rho)] / (1 - rho) with momentum rho;
[1 - (1 - eta mu)^tau_k] / (eta mu) with the proximal term mu/2 ||w - w_t||^2 of FedProx;
sum_j eta_j / eta_0 * (1 - rho^(j+1)) / (1 - rho) if the rate eta_j of step j changes (`training.lr_within`).
Server: v <- gmf v + tau_eff * sum_k p_k d_k; w_{t+1} = w_t - eta_s v. tau_eff = sum_k p_k a_k, but
sum_k p_k tau_k with a proximal term, as in the authors' code. (The paper's eta cancels.)
*Reduces to* FedAvg when all a_k are equal, without proximal term and server momentum.
*State*: server w, and v when gmf > 0. *Traffic*: 1 P down, 1 P and one scalar up.
*Newcomer*: the global model.
The experiments draw E_k from 2 to 5 in every round: `training.stragglers: 1`, least_epochs: 2, epochs: 5.
*Ambiguous*: the paper has no a_k for a proximal term with momentum or changing rates, so this is refused.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedflow.errors import BadInput
from fedflow.local.client import Client, Update
from fedflow.local.optimizer import Pull
from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.methods.method import Cohort, Conditions, GlobalModel, Initial, Next, Round
from fedflow.methods.registry import register
from fedflow.models.flat import FlatModel
from fedflow.settings import option


@dataclass(frozen=True)
class State(GlobalModel):
    v: Tensor | None  # None without server momentum


@register("fednova", "FedNova")
class FedNova(FedAvg[State]):
    mu: float = option(
        0.0, "weight of a proximal term in local training", symbol="mu", ge=0, source="as in FedProx"
    )
    gmf: float = option(
        0.0, "server momentum (global momentum factor)", symbol="gmf", ge=0, lt=1, source="authors' code"
    )

    def check(self, run: Conditions) -> None:
        training = run.training
        training.need_sgd(self.name, "which counts gradient steps")
        if self.mu and training.momentum:
            raise BadInput("method.mu", self.mu, "0 where training.momentum is not 0")
        if self.mu and training.lr_within is not None:
            raise BadInput("method.mu", self.mu, "0 where training.lr_within is not null")

    def setup(self, model: FlatModel, initial: Initial) -> State:
        w = initial(0)
        return State(w, torch.zeros_like(w) if self.gmf else None)

    def local(self, client: Client) -> Update:
        w, tau = client.received["model"], client.steps()
        drift = w - client.fit(start=w, pull=Pull(self.mu, w) if self.mu else None)
        rho = client.training.momentum
        if client.training.lr_within is None:
            a = work(tau, rho, client.lr * self.mu if self.mu else None)
        else:
            a = work_at(client.rates(), rho)
        d = client.model.with_buffers(drift / a, drift)
        return client.update(d=d, scalars={"tau": tau if self.mu else a}, weight=self.weight(client))

    def aggregate(self, now: Round, server: State, cohort: Cohort) -> Next[State]:
        w, d = server.model, cohort.mean("d")
        weights = cohort.weights / cohort.weights.sum()
        step = float(weights @ cohort.scalars("tau")) * d
        if server.v is not None:
            step = self.gmf * server.v + now.model.trainable(step)
        stepped = now.model.with_buffers(w - self.server_lr * step, w - d)
        return State(stepped, None if server.v is None else step), {}


def work(tau: Tensor, rho: float, pull: Tensor | float | None = None) -> Tensor:
    """||a_k||_1 of tau steps of SGD with momentum rho, or with a proximal ``pull`` eta mu."""
    if pull is not None:
        # For small pulls, float32 would lose all digits.
        return ((1 - (1 - pull) ** tau.double()) / pull).to(tau.dtype)
    return tau if rho == 0 else (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)


def work_at(rates: Tensor, rho: float) -> Tensor:
    """||a_k||_1 of SGD with momentum rho, whose step j has the rate ``rates[j]`` times eta_0; [S]."""
    number = torch.arange(1, len(rates) + 1, dtype=rates.dtype, device=rates.device)
    return (rates * (1 - rho**number)).sum() / (1 - rho)
