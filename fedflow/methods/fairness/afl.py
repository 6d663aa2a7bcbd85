"""AFL: the server learns adversarial weights, which grow for clients with high losses.

Source: Mohri, Sivek, Suresh, "Agnostic Federated Learning", ICML 2019, arXiv 1902.00146, section 4.
Objective: min over w, max over lambda in the simplex, of sum_k lambda_k F_k(w).

Client: as FedAvg; also sends F_k, its loss at w_t over all its training data.
Server: lambda <- projection of lambda + eta_l F onto the simplex; w_{t+1} = sum_k lambda_k w_k.
The paper's own form steps both from (w_t, lambda_t) and outputs the mean of w_1..w_T: lambda_used: old,
served: average, and training with one full batch. The default is the form that fairness papers compare with.
*Reduces to* FedAvg when eta_l = 0 and prior: samples.
*State*: server w, its mean over rounds, lambda [N]. *Traffic*: 1 P down, 1 P and one scalar up.
*Newcomer*: the global model.
*Ambiguous*: partial participation, which the paper does not have. Here the cohort's part of lambda is scaled
to sum to 1, stepped, projected, used, and scaled back; the total weight of absent clients stays the same.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedflow.local.client import Client, Update
from fedflow.methods.fairness._simplex import project
from fedflow.methods.method import Cohort, GlobalModel, Initial, Message, Method, Next, Passes, Round
from fedflow.methods.protocols import Serving
from fedflow.methods.registry import register
from fedflow.models.flat import FlatModel
from fedflow.settings import option


@dataclass(frozen=True)
class State(GlobalModel):
    average: Tensor  # of w_1 .. w_t
    lam: Tensor | None = None  # [N]; None before the first round


@register("afl", "AFL")
class AFL(Serving, Method[State]):
    gathers = True  # the weights depend on the losses of the whole cohort

    lambda_lr: float = option(
        0.1, "step size of lambda", symbol="eta_l", ge=0, grid=(0.01, 0.1, 1), source="grid of AAggFF"
    )
    prior: str = option(
        "uniform", "initial lambda: uniform, or in proportion to n_k", choices=("uniform", "samples")
    )
    lambda_used: str = option(
        "new", "the models' weights: lambda after or before this round's step", choices=("new", "old")
    )
    served: str = option(
        "last", "the model served: w, or its mean over all rounds so far", choices=("last", "average")
    )

    def setup(self, model: FlatModel, initial: Initial) -> State:
        w = initial(0)
        return State(w, average=w)

    def broadcast_for_evaluation(self, now: Round, server: State, client: int) -> Message:
        return {"model": server.average if self.served == "average" else server.model}

    def work(self, now: Round, server: State, epochs: float, steps: int) -> Passes:
        return Passes(epochs, losses=1)

    def local(self, client: Client) -> Update:
        w = client.received["model"]
        return client.update(model=client.fit(start=w), scalars={"loss": client.full_loss(w)})

    def aggregate(self, now: Round, server: State, cohort: Cohort) -> Next[State]:
        lam = self.first(now.sizes) if server.lam is None else server.lam.cpu().numpy().copy()
        mass = lam[cohort.ids].sum()
        old = lam[cohort.ids] / mass if mass else np.full(len(cohort.ids), 1 / len(cohort.ids))
        new = project(old + self.lambda_lr * cohort.scalars("loss"))
        lam[cohort.ids] = mass * new
        w = cohort.mean("model", weights=new if self.lambda_used == "new" else old)
        average = server.average + (w - server.average) / now.t
        return State(w, average, torch.from_numpy(lam)), {"lambda_max": lam.max()}

    def first(self, sizes: np.ndarray) -> np.ndarray:
        """lambda [N] before the first round."""
        return sizes / sizes.sum() if self.prior == "samples" else np.full(len(sizes), 1 / len(sizes))
