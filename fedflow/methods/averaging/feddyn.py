"""FedDyn: a dynamic regulariser changes each client's objective so that a consensus is optimal for all.

Source: Acar, Zhao, Matas, Mattina, Whatmough, Saligrama, "Federated Learning Based on Dynamic
Regularization", ICLR 2021, arXiv 2111.04263, Algorithm 1.

Client: theta_k <- argmin F_k(theta) - <g_k, theta> + alpha/2 ||theta - theta_t||^2, approximately, by E
epochs of SGD from theta_t; g_k <- g_k - alpha (theta_k - theta_t), which an exact argmin makes the
gradient of F_k at theta_k. Server: h <- h - alpha/N sum over the cohort (theta_k - theta_t);
theta_{t+1} = mean of the cohort's m models theta_k - h / alpha. Initially g_k = h = 0.
*Reduces to* uniform FedProx with mu = alpha, in the clients' first step.
*Invariant*: h is the mean of g_k over all N clients, at any participation rate.
*State*: server theta, h; client g_k. *Traffic*: 1 P down, 1 P up. *Newcomer*: the global model, g_k = 0.
*Ambiguous*: h is a mean and moves by 1/N (the text once calls it a sum); with weighting: samples, alpha_k =
alpha (mean n) / n_k, as in the authors' code, so that the sum of n_k F_k is minimised. The authors clip
only a part of the changed gradient; here it is clipped as a whole. They report the mean of clients' models,
not theta.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedflow.local.client import Client, Update
from fedflow.local.samples import Batch
from fedflow.methods.base import Cohort, Diagnostics, GlobalModel, Message, Method, Round
from fedflow.methods.registry import register
from fedflow.models.flat import FlatModel
from fedflow.settings import option


@dataclass(frozen=True)
class State(GlobalModel):
    h: Tensor
    mean: Tensor


@register("feddyn", "FedDyn")
class FedDyn(Method):
    alpha: float = option(
        0.1, "weight of the dynamic regulariser", symbol="alpha", gt=0,
        grid=(0.001, 0.01, 0.1), source="appendix; 0.01 in the authors' example",
    )  # fmt: skip
    weighting: str = option(
        "uniform", "objective: clients count equally, or in proportion to n_k",
        choices=("uniform", "samples"), source="Algorithm 1: uniform",
    )  # fmt: skip
    served: str = option(
        "broadcast", "the model served and scored: theta, or the mean of the last cohort's models",
        choices=("broadcast", "mean"), source="Algorithm 1; authors' code: means",
    )  # fmt: skip

    def client_state(self, model: FlatModel, initial: Tensor) -> dict[str, Tensor]:
        return {"g": torch.zeros_like(initial)}

    def setup(self, model: FlatModel, initial: Callable[[int], Tensor]) -> State:
        theta = initial(0)
        return State(theta, torch.zeros_like(theta), theta)

    def broadcast(self, now: Round, server: State, client: int) -> Message:
        return {"model": server.model}

    def broadcast_for_evaluation(self, now: Round, server: State, client: int) -> Message:
        return {"model": server.mean if self.served == "mean" else server.model}

    def local(self, client: Client) -> Update:
        theta, g_k = client.received["model"], client.kept["g"]
        share = client.mean_samples / client.samples if self.weighting == "samples" else 1.0
        alpha = self.alpha * share

        def loss(w: Tensor, batch: Batch) -> Tensor:
            return client.loss(w, batch) - (g_k * w).sum() + alpha / 2 * (w - theta).square().sum()

        theta_k = client.fit(loss, start=theta)
        g_new = g_k - alpha * client.model.trainable(theta_k - theta)
        return client.update(model=theta_k, weight=1.0, keep={"g": g_new})

    def aggregate(self, now: Round, server: State, cohort: Cohort) -> tuple[State, Diagnostics]:
        theta, mean = server.model, cohort.mean("model")
        share = len(cohort.ids) / now.clients
        h = server.h - self.alpha * share * now.model.trainable(mean - theta)
        return State(now.model.with_buffers(mean - h / self.alpha, mean), h, mean), {}
