"""FeSEM: the server keeps several centers; clients whose models are close to each other share one.

Source: Xie, Long, Shen, Zhou, Wang, Jiang, Zhang, "Multi-Center Federated Learning", 2020, arXiv 2005.01026,
Algorithm 1. Objective: min over centers C_j and assignments r_k of (1/N) sum_k ||W_k - C_{r_k}||^2.

Client: W_k <- E epochs of SGD from the center that it received. Server: r_k = argmin_j ||W_k - C_j|| (lowest
index on ties), then C_j = mean of the W_k with r_k = j; client k receives C_{r_k} next. In the first round,
when all clients started from the same model, the first center is the model farthest from the mean, each
further one the model farthest from earlier centers, and both steps are repeated five times.
*Reduces to* uniform FedAvg when M = 1.
*State*: server C_1..C_M, r_k; clients none. *Traffic*: 1 P down, 1 P up.
*Newcomer*: trains from the mean of all clients' centers and gets the center nearest to the result; if it is
served before that, it chooses by one gradient step on all its data.
*Ambiguous*: partial participation, which the paper does not have. Here a center is the mean of the cohort's
models that are assigned to it; absent clients keep their assignment. The authors' code starts with random
assignments and reassigns every 150 rounds, which is never in its 60 rounds.
cluster_over: all is FedSEM as the authors of FLT ran it (github.com/hjraad/FLT, with weighting: samples):
absent clients count with their last model, at first the common model. k-means clusters the models of all N
clients, in the first round from the best of 20 k-means++ starts, later from the previous means. Each center
is the mean of all its members' models, so it moves by about the cohort's share of a step.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedflow.errors import BadInput
from fedflow.heterogeneity.centers import k_means
from fedflow.local.client import Client
from fedflow.methods.averaging._averaging import weights
from fedflow.methods.clustered._assigned import Assigned, AssignedState
from fedflow.methods.method import Cohort, Conditions, Initial, Message, Next, Round
from fedflow.methods.registry import register
from fedflow.models.flat import FlatModel
from fedflow.settings import option


@dataclass(frozen=True)
class State(AssignedState):
    """``models`` [M + 1, D] are the centers, and last their mean, for clients without a center.

    The ``assignment`` [N] is M for clients that never took part, and None before the first round.
    """

    means: Tensor | None = None  # of k-means [M, F]; None before the first round, or unless cluster_over: all


@register("fesem", "FeSEM")
class FeSEM(Assigned[State]):
    first_iterations: ClassVar[int] = 5  # as in the authors' code

    centers: int = option(2, "number of centers", symbol="M", ge=1, grid=(2, 3, 4), source="section 5")
    weighting: str = weights("uniform", "equation 6: uniform")
    cluster_over: str = option(
        "cohort", "models that are clustered: the cohort's or all clients'", choices=("cohort", "all")
    )
    compared: list[str] | None = option(
        None, "names of the compared parameters; null = all", source="authors' code: the last dense layer"
    )
    empty: str = option(
        "farthest", "an empty center moves to the farthest model, or stays", choices=("farthest", "keep")
    )

    def validate(self) -> None:
        if self.cluster_over == "all":
            for name in ("server_lr", "empty"):
                default = type(self).__dataclass_fields__[name].default
                if getattr(self, name) != default:
                    accepted = f"{default} where cluster_over is all"
                    raise BadInput(f"method.{name}", getattr(self, name), accepted)

    def check(self, run: Conditions) -> None:
        if self.cluster_over == "all":
            run.need_clients("method.centers", self.centers)
        run.training.need_no_adaptation(self.name, "which places new clients by a step on all samples")

    def setup(self, model: FlatModel, initial: Initial) -> State:
        first = initial(0)
        if not self.counted(model, first).any():  # all clients would be in cluster 0
            accepted = "null or names of parameters: buffers are not compared"
            raise BadInput("method.compared", self.compared, accepted)
        return State(first.repeat(self.centers + 1, 1))

    def cluster(self, server: State, client: int) -> int:
        """r_k, or M for a client that never took part."""
        new = server.assignment is None or client >= len(server.assignment)
        return self.centers if new else super().cluster(server, client)

    def broadcast_for_evaluation(self, now: Round, server: State, client: int) -> Message:
        if self.cluster(server, client) < self.centers:
            return super().broadcast_for_evaluation(now, server, client)
        return {"models": server.models}

    def aggregate(self, now: Round, server: State, cohort: Cohort) -> Next[State]:
        if self.cluster_over == "all":
            models, r, means = self.cluster_all(now, server, cohort)
            after = State(models, r, means)
        else:
            models, r = self.assign(now, server, cohort)
            after, _ = super().aggregate(now, State(models, r), cohort)
        centers = after.models[:-1].double()
        members = torch.bincount(r, minlength=self.centers + 1)[:-1].to(centers)
        mean = (members @ centers / members.sum()).to(after.models)
        after = replace(after, models=torch.cat([after.models[:-1], mean[None]]))
        moved, used = (r != self.assignment(now, server)).sum(), (members > 0).sum()
        return after, {"reassigned": int(moved), "empty_clusters": self.centers - int(used)}

    def assignment(self, now: Round, server: State) -> Tensor:
        """A copy of r [N] on the CPU."""
        if server.assignment is None:
            return torch.full((now.clients,), self.centers)
        return server.assignment.cpu().clone()

    def cluster_all(self, now: Round, server: State, cohort: Cohort) -> tuple[Tensor, Tensor, Tensor]:
        """k-means of all clients' models: each cluster's center [M + 1, D], r [N] and the means [M, F]."""
        models = server.models.clone()
        w = models[self.assignment(now, server)]  # [N, D]
        w[cohort.ids] = cohort.stack("model")
        points = w[:, self.counted(now.model, w)]
        r, means = k_means(points, self.centers, now.rng, restarts=20, start=server.means)
        sizes = now.sizes if self.weighting == "samples" else np.ones(now.clients)
        p = torch.from_numpy(sizes).double()
        for z in r.unique().tolist():
            share = torch.where(r == z, p, 0)
            models[z] = ((share / share.sum()).to(w.device) @ w.double()).to(w)
        return models, r, means

    def assign(self, now: Round, server: State, cohort: Cohort) -> tuple[Tensor, Tensor]:
        """Centers [M + 1, D], initialized or moved where empty, and r [N] updated for the cohort."""
        w, models = cohort.stack("model"), server.models.clone()  # [m, D]
        r = self.assignment(now, server)
        self.fill(models, r, w, now.model, first=server.assignment is None)
        r[cohort.ids] = self.nearest(w, models, now.model).cpu()
        return models, r

    def fill(self, models: Tensor, r: Tensor, w: Tensor, model: FlatModel, first: bool) -> None:
        """Move the ``models`` [M + 1, D] without clients in ``r`` [N] to models ``w`` [m, D]."""
        used = [j for j in range(self.centers) if (r == j).any()]
        if first or self.empty == "farthest":
            for j in sorted({*range(self.centers)} - {*used}):
                others = models[used] if used else w.mean(0, keepdim=True)
                models[j] = w[self.distances(w, others, model).amin(1).argmax()]
                used.append(j)
        for _ in range(self.first_iterations - 1 if first else 0):
            nearest = self.nearest(w, models, model)
            for j in nearest.unique().tolist():
                models[j] = w[nearest == j].mean(0)

    def model_for(self, client: Client) -> tuple[Tensor, Tensor]:
        if "model" in client.received:
            return super().model_for(client)
        models = client.received["models"]
        (j,) = self.nearest(client.full_step(models[-1])[None], models, client.model)
        return models[j], j

    def nearest(self, w: Tensor, models: Tensor, model: FlatModel) -> Tensor:
        """r [m] of models ``w`` [m, D], given the centers and their mean ``models`` [M + 1, D]."""
        return self.distances(w, models[:-1], model).argmin(1)  # the lowest index on ties

    def distances(self, w: Tensor, centers: Tensor, model: FlatModel) -> Tensor:
        """Squared distances [m, c] of models [m, D] to ``centers`` [c, D] in the compared entries."""
        mask = self.counted(model, w)
        return torch.stack([((w - center) * mask).square().sum(1) for center in centers], 1)

    def counted(self, model: FlatModel, w: Tensor) -> Tensor:
        """Mask [D] of the entries of models ``w`` that are compared: never buffers."""
        mask = torch.arange(model.size, device=w.device) < model.parameters
        return mask if self.compared is None else mask & model.part(*self.compared).mask
