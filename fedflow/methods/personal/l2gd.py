"""L2GD: a coin decides between a local step (0) and a step towards the mean of all models (1).

Source: Hanzely, Richtarik, "Federated Learning of a Mixture of Global and Local Models", 2020,
arXiv 2002.05516, Algorithm 1. Objective: 1/n sum_k F_k(x_k) + lambda/(2n) sum_k ||x_k - xbar||^2.

A coin shows 1 with probability p. 0: x_k <- x_k - eta grad F_k(x_k), with eta = alpha / (n (1 - p));
1: x_k <- x_k - theta (x_k - xbar), with theta = alpha lambda / (n p) = eta lambda (1 - p) / p.
Steps towards xbar do not change it, so only a 1 that follows a 0 needs an exchange. A round is the time
between two exchanges. Client: the last 1s, with the received xbar, then the next 0s; sends x_k. Server: xbar
= mean of the x_k; it draws the next numbers of 1s and of 0s, which are geometric.
*Reduces to* Local when lambda = 0, to uniform FedAvg when theta = 1 (larger values count as 1).
*State*: server xbar and both numbers; client x_k. *Traffic*: 1 P and the ones and the zeros down, 1 P up.
*Newcomer*: xbar.
*Work*: gradients of all batches of E epochs are computed, of which on average 1/p become steps; the rest, and
0s beyond the last batch, are lost. With p = 1 / (E n_k / B), a round has about as many local steps as with
other methods; theta changes with p, so choose lambda accordingly.
*Rates*: theta uses the eta of the round, in which the 1s precede the first local step.
*Differs from the paper in*: stochastic gradients; the cohort's mean replaces the mean of all clients, and a
client that was absent applies only the last 1s; 1/p zeros in the first round. The recorded training loss is
the mean over the steps taken.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedflow.local.client import Client, Update
from fedflow.local.optimizer import Moving
from fedflow.local.samples import Batch
from fedflow.methods.method import Cohort, Conditions, Initial, Message, Next, Passes, Round, ServerState
from fedflow.methods.personal._personal import Personal
from fedflow.methods.registry import register
from fedflow.models.flat import FlatModel
from fedflow.settings import option


@dataclass(frozen=True)
class State(ServerState):
    mean: Tensor
    ones: Tensor  # coin tosses of the next round
    zeros: Tensor


@register("l2gd", "L2GD")
class L2GD(Personal[State]):
    newcomer: ClassVar[Mapping[str, str]] = {"model": "mean"}

    lam: float = option(
        0.5, "pull towards the mean", symbol="lambda", ge=0, grid=(0.1, 0.5, 1, 10), source="FedRep code: 0.5"
    )
    p: float = option(0.1, "probability of a step to the mean", symbol="p", gt=0, lt=1, grid=(0.1, 0.4, 0.9))

    def check(self, run: Conditions) -> None:
        run.training.need_sgd(self.name, "whose theta follows from the rate of gradient steps")

    def client_state(self, model: FlatModel, initial: Tensor) -> dict[str, Tensor]:
        return {"model": initial}

    def setup(self, model: FlatModel, initial: Initial) -> State:
        x = initial(0)
        return State(x, x.new_tensor(0), x.new_tensor(round(1 / self.p)))

    def toss(self, rng: np.random.Generator) -> tuple[int, int]:
        """The ones and the zeros of the next round."""
        return int(rng.geometric(1 - self.p)), int(rng.geometric(self.p))

    def broadcast(self, now: Round, server: State, client: int) -> Message:
        return server.tensors()

    def work(self, now: Round, server: State, epochs: float, steps: int) -> Passes:
        return Passes(min(epochs, float(server.zeros) / steps))

    def local(self, client: Client) -> Update:
        def step(now: tuple[Moving, Tensor], batch: Batch) -> tuple[tuple[Moving, Tensor], Tensor]:
            x, zeros = now
            gradient = client.gradient(x.w, batch)
            moved = client.descend(x, gradient)
            moved = moved._replace(w=torch.where(zeros > 0, moved.w, x.w))
            return (moved, zeros - 1), gradient.loss * (zeros > 0)

        zeros, steps = client.received["zeros"], client.steps()
        x = client.trained = client.run_steps(step, (client.initial_state(self.pulled(client)), zeros))[0].w
        client.train_loss = client.train_loss * steps / torch.minimum(steps, zeros).clamp(min=1)
        return client.update(model=x, weight=1.0, keep={"model": x})

    def aggregate(self, now: Round, server: State, cohort: Cohort) -> Next[State]:
        mean = cohort.mean("model")
        ones, zeros = self.toss(now.rng)
        return State(mean, mean.new_tensor(ones), mean.new_tensor(zeros)), {"ones": ones, "zeros": zeros}

    def model_for(self, client: Client) -> Tensor:
        return client.received["mean"] if self.served == "global" else self.pulled(client)

    def pulled(self, client: Client) -> Tensor:
        """x_k after the ones of the round."""
        ones = client.received["ones"]
        theta = torch.ones_like(ones, dtype=torch.float64) * (client.lr * self.lam * (1 - self.p) / self.p)
        pull = 1 - (1 - theta.clamp(max=1)).to(ones) ** ones
        return torch.lerp(client.kept["model"], client.received["mean"], pull)
