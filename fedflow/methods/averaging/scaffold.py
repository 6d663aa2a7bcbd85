"""SCAFFOLD: control variates cancel the drift of clients towards their own optimum.

Source: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning", ICML 2020, arXiv 1910.06378, Algorithm 1.

Client: y <- x; tau steps y <- y - eta (g(y) - c_k + c); then option I: c_k+ = gradient of F_k at x,
option II: c_k+ = c_k - c + (x - y) / (tau eta); sends dy = y - x and dc = c_k+ - c_k.
Server: x <- x + eta_s mean(dy), c <- c + (m/N) mean(dc). All control variates start at 0. With weighting:
samples, both means have weights n_k, and m/N becomes the cohort's share of all samples.
*Reduces to* uniform FedAvg while the control variates are 0 (its first round).
*Invariant*: c is the mean of all c_k, with weights p_k.
*State*: server x, c; client c_k. *Traffic*: 2 P down, 2 P up. *Newcomer*: the global model, c_k = 0.
*Differs from the paper in*: with momentum, the correction stays outside the momentum buffer (NIID-Bench), and
gradient clipping, which the paper does not have, limits the gradient alone. With clip: whole it limits
g(y) - c_k + c, weight decay excluded, as in FedDyn's code; the correction is then inside the momentum buffer.
*Ambiguous*: if eta decays, option II divides by the eta of the round; FedDyn's code divides by the first eta,
so that its control variates shrink with eta (control_lr: initial). There, all clients take as many steps as a
client of mean size; here tau follows from n_k. If eta changes within a round (`training.lr_within`), tau eta
is the sum of the rates of all steps.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedflow.errors import BadInput
from fedflow.local.client import Client, Update
from fedflow.local.samples import Batch
from fedflow.methods.averaging._averaging import Averaging, weights
from fedflow.methods.method import Cohort, Conditions, GlobalModel, Initial, Message, Next, Passes, Round
from fedflow.methods.protocols import Serving
from fedflow.methods.registry import register
from fedflow.models.flat import FlatModel
from fedflow.settings import option


@dataclass(frozen=True)
class State(GlobalModel):
    c: Tensor


@register("scaffold", "SCAFFOLD")
class Scaffold(Serving, Averaging[State]):
    weighting: str = weights("uniform", "Algorithm 1: uniform")
    variate: str = option(
        "II", "new c_k: the gradient at x, or from the local steps", choices=("I", "II"), source="line 12"
    )
    server_lr: float = option(1.0, "server learning rate", symbol="eta_g", gt=0, source="1 in the paper")
    control_lr: str = option(
        "current", "eta in option II: of the round, or training.lr", choices=("current", "initial")
    )
    clip: str = option(
        "gradient", "clip_norm limits the gradient, or the corrected gradient", choices=("gradient", "whole")
    )

    def validate(self) -> None:
        if self.variate == "I" and self.control_lr == "initial":
            accepted = "current with variate: I, which divides by no learning rate"
            raise BadInput("method.control_lr", "initial", accepted)

    def check(self, run: Conditions) -> None:
        training = run.training
        training.need_sgd(self.name, "whose correction is part of a gradient step")
        if self.clip == "whole" and training.clip_norm is None:
            raise BadInput("method.clip", "whole", "gradient, as training.clip_norm is null")
        if self.variate == "I" and training.adaptation is not None:
            accepted = f"II: with {training.adaptation.section}, the gradient over all samples is not known"
            raise BadInput("method.variate", "I", accepted)
        if self.variate == "I" and training.objective is not None and training.objective.two_views:
            accepted = "II: over all samples, the gradient of an objective with two views is not known"
            raise BadInput("method.variate", "I", accepted)

    def client_state(self, model: FlatModel, initial: Tensor) -> dict[str, Tensor]:
        return {"c": torch.zeros_like(initial)}

    def setup(self, model: FlatModel, initial: Initial) -> State:
        x = initial(0)
        return State(x, torch.zeros_like(x))

    def broadcast(self, now: Round, server: State, client: int) -> Message:
        return {"model": server.model, "c": server.c}

    def broadcast_for_evaluation(self, now: Round, server: State, client: int) -> Message:
        return {"model": server.model}

    def work(self, now: Round, server: State, epochs: float, steps: int) -> Passes:
        return Passes(epochs + (self.variate == "I"))

    def local(self, client: Client) -> Update:
        x, c, c_k = client.received["model"], client.received["c"], client.kept["c"]
        correction = c - c_k

        def corrected(w: Tensor, batch: Batch) -> Tensor:
            return client.loss(w, batch) + (correction * w).sum()

        if self.clip == "whole":
            y = client.fit(corrected, start=x)
        else:
            y = client.fit(start=x, correction=correction)
        if self.variate == "I":
            c_new = client.full_gradient(x)
        else:
            lr = client.training.lr if self.control_lr == "initial" else client.lr
            c_new = c_k - c + client.model.trainable(x - y) / client.traveled(lr)
        return client.update(dy=y - x, dc=c_new - c_k, weight=self.weight(client), keep={"c": c_new})

    def aggregate(self, now: Round, server: State, cohort: Cohort) -> Next[State]:
        x, dy = server.model, cohort.mean("dy")
        c = server.c + self.share(now, cohort) * cohort.mean("dc")
        return State(now.model.with_buffers(x + self.server_lr * dy, x + dy), c), {}

    def share(self, now: Round, cohort: Cohort) -> float:
        """The cohort's share of all clients' weights."""
        if self.weighting == "samples":
            return float(now.sizes[cohort.ids].sum() / now.sizes.sum())
        return len(cohort.ids) / now.clients
