"""FedDyn: a dynamic regularizer changes each client's objective so that a consensus is optimal for all.

Source: Acar, Zhao, Matas, Mattina, Whatmough, Saligrama, "Federated Learning Based on Dynamic
Regularization", ICLR 2021, arXiv 2111.04263, Algorithm 1.

Client: theta_k <- argmin F_k(theta) - <g_k, theta> + alpha/2 ||theta - theta_t||^2, approximately, by E
epochs of SGD from theta_t; g_k <- g_k - alpha (theta_k - theta_t), which an exact argmin makes the
gradient of F_k at theta_k. Server: h <- h - alpha/N sum over the cohort (theta_k - theta_t);
theta_{t+1} = mean of the cohort's m models theta_k - h / alpha. Initially g_k = h = 0.
*Reduces to* uniform FedProx with mu = alpha, in the clients' first step.
*Invariant*: h is the mean of g_k over all N clients, at any participation rate; with weighting: samples, the
mean of omega_k g_k, omega_k = n_k / mean n.
*State*: server theta, h, mean (of the last cohort's models); client g_k. *Traffic*: 1 P down, 1 P up.
*Newcomer*: the global model, g_k = 0. Clients cannot leave: h would become (N h - g_k) / (N - 1), and g_k is
on the client.
*Ambiguous*: h is a mean and moves by 1/N (the text once calls it a sum); with weighting: samples, alpha_k =
alpha / omega_k, as in the authors' code, so that the sum of n_k F_k is minimized. Gradients are clipped
together with the regularizer, before weight decay; the authors' code adds alpha to the weight decay and thus
clips grad F_k - g_k - alpha theta_t (clip: replicate). A client that fails is left out; the authors' code for
PFLDyn replaces its model by the previous cohort's mean and keeps its g_k (failed: replace). The authors
report the mean of the clients' models, not theta.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedflow.errors import BadInput
from fedflow.local.client import Client, Update
from fedflow.local.optimizer import Pull
from fedflow.local.samples import Batch
from fedflow.methods.method import Cohort, Conditions, GlobalModel, Initial, Message, Method, Next, Round
from fedflow.methods.protocols import Serving
from fedflow.methods.registry import register
from fedflow.models.flat import FlatModel
from fedflow.settings import option


@dataclass(frozen=True)
class State(GlobalModel):
    h: Tensor
    mean: Tensor


@register("feddyn", "FedDyn")
class FedDyn(Serving, Method[State]):
    alpha: float = option(
        0.1, "weight of the dynamic regularizer", symbol="alpha", gt=0, grid=(0.001, 0.01, 0.1)
    )
    weighting: str = option(
        "uniform", "the objective's client weights: equal or n_k", choices=("uniform", "samples")
    )
    served: str = option(
        "broadcast", "theta, or the mean of the last cohort's models", choices=("broadcast", "mean")
    )
    clip: str = option(
        "whole", "clip_norm limits the changed gradient, or all but alpha w", choices=("whole", "replicate")
    )
    failed: str = option(
        "exclude", "failed clients: left out, or replaced by the last mean", choices=("exclude", "replace")
    )

    def check(self, run: Conditions) -> None:
        if self.clip == "replicate" and run.training.clip_norm is None:
            raise BadInput("method.clip", "replicate", "whole, as training.clip_norm is null")

    def client_state(self, model: FlatModel, initial: Tensor) -> dict[str, Tensor]:
        return {"g": torch.zeros_like(initial)}

    def setup(self, model: FlatModel, initial: Initial) -> State:
        theta = initial(0)
        return State(theta, torch.zeros_like(theta), theta)

    def broadcast_for_evaluation(self, now: Round, server: State, client: int) -> Message:
        return {"model": server.mean if self.served == "mean" else server.model}

    def local(self, client: Client) -> Update:
        theta, g_k = client.received["model"], client.kept["g"]
        share = client.mean_samples / client.samples if self.weighting == "samples" else 1.0
        alpha = self.alpha * share

        def linear(w: Tensor, batch: Batch) -> Tensor:
            return client.loss(w, batch) - ((g_k + alpha * theta) * w).sum()

        if self.clip == "replicate":
            theta_k = client.fit(linear, start=theta, decay=alpha)
        else:  # the same penalty, up to a constant
            theta_k = client.fit(start=theta, pull=Pull(alpha, theta + g_k / alpha))
        g_new = g_k - alpha * client.model.trainable(theta_k - theta)
        return client.update(model=theta_k, weight=1.0, keep={"g": g_new})

    def aggregate(self, now: Round, server: State, cohort: Cohort) -> Next[State]:
        theta, mean = server.model, cohort.mean("model")
        share = len(cohort.ids) / now.clients
        h = server.h - self.alpha * share * now.model.trainable(mean - theta)
        if self.failed == "replace" and cohort.failed:
            updates, failures = len(cohort.ids), len(cohort.failed)
            mean = (updates * mean + failures * server.mean) / (updates + failures)
        return State(now.model.with_buffers(mean - h / self.alpha, mean), h, mean), {}
