"""Base of methods that relate clients once, before the first round, by k-means signatures of their data.

Clients with the same relatives share a model; with averaging: in_place, each client has a separate model.
Newcomers are added to the models and to the assignment only.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from typing_extensions import TypeVar

from fedflow.errors import BadInput
from fedflow.heterogeneity.relatedness import (
    DISTANCES,
    REDUCERS,
    decomposition_error,
    disjoint,
    distances,
    equal_rows,
    graph,
    largest_gap,
    reduce,
    signature,
)
from fedflow.local.client import Client, Update
from fedflow.local.labels import labels
from fedflow.methods.clustered._assigned import Assigned, AssignedState
from fedflow.methods.method import Cohort, Conditions, Next, Round
from fedflow.methods.protocols import Dissimilarity, Onboarding
from fedflow.seeding import generator
from fedflow.settings import option


@dataclass(frozen=True, kw_only=True)
class RelatedState(AssignedState):
    """Optional fields are None before the onboarding."""

    initial: Tensor  # [D], the common initial model
    signatures: Tensor | None = None  # [N, k, e], padded
    means: Tensor | None = None  # [N], the number of means in each signature
    apart: Tensor | None = None  # [N, N], distances of the signatures
    related: Tensor | None = None  # [N, N] bool, which clients are averaged together


R = TypeVar("R", bound=RelatedState, default=RelatedState)


class Related(Onboarding, Assigned[R]):
    """Subclasses define a client's points, which are clustered into means (`points`)."""

    case: str = option(
        "graph", "averaged: a client and its relatives, or disjoint clusters", choices=("graph", "clusters")
    )
    clusters: int | None = option(
        None, "clusters of Ward's clustering; null = the graph's components", symbol="C", ge=1
    )
    k: int | None = option(
        5, "means in a signature; null = one per label of the client", symbol="k", ge=1, source="section 4"
    )
    reducer: str = option(
        "none", "embedding of all means before the comparison", choices=REDUCERS, source="FLT: umap"
    )
    dimensions: int = option(
        2, "dimensions of that embedding", symbol="u", ge=1, grid=(2, 3), source="FLT: 2 or 3"
    )
    distance: str = option(
        "matching",
        "between signatures: of matched means, its square, or of the closest pair",
        symbol="A",
        choices=DISTANCES,
        source="authors' code; min_pair: as printed",
    )
    gamma: float | None = option(
        None, "largest distance of relatives; null = 1 after umap, else the largest gap", symbol="gamma", gt=0
    )
    absent: str = option(
        "omit", "absent clients: left out, or counted with their last model", choices=("omit", "stale")
    )
    members: str = option(
        "right", "leaf_order repeats the code's bug of the leaves' order", choices=("right", "leaf_order")
    )
    averaging: str = option(
        "at_once", "in_place repeats the code's bug: client after client", choices=("at_once", "in_place")
    )
    assign: str = option(
        "attach", "newcomers join the relations, or all clients are related again", choices=("attach", "all")
    )

    def validate(self) -> None:
        if self.clusters is not None and self.case == "graph":
            raise BadInput("method.clusters", self.clusters, "null where case is graph")
        if self.members == "leaf_order" and self.clusters is None:
            raise BadInput("method.members", self.members, "right, unless clusters is given")
        if self.averaging == "in_place" and (self.absent, self.server_lr) != ("stale", 1):
            accepted = "at_once, unless absent is stale and server_lr 1"
            raise BadInput("method.averaging", self.averaging, accepted)
        if self.reducer == "none":
            self.refuse_unused("with reducer: none", "dimensions")

    def check(self, run: Conditions) -> None:
        run.need_clients("method.clusters", self.clusters)

    def points(self, client: Client) -> Tensor:
        """The client's points [n_k, e], which are clustered into means."""
        raise NotImplementedError

    def onboarding_local(self, phase: int, client: Client) -> Update:
        k = len(labels(client)[0].unique()) if self.k is None else self.k
        return client.update(signature=signature(self.points(client), k, generator(0, "signature")))

    def onboarding_aggregate(self, now: Round, phase: int, server: R, cohort: Cohort) -> R:
        sent = [u.cpu() for u in cohort.vectors("signature")]
        if cohort.newcomers:
            return self.join(now, server, sent)
        matrix, related = self.relate(sent, now.rng)
        assignment = equal_rows(related) if self.averaging == "at_once" else np.arange(now.clients)
        return replace(
            server,
            signatures=pad_sequence(sent, batch_first=True),
            means=torch.tensor([len(u) for u in sent]),
            apart=torch.from_numpy(matrix),
            related=torch.from_numpy(related),
            assignment=torch.from_numpy(assignment),
            models=server.initial.repeat(assignment.max() + 1, 1),
        )

    def relate(
        self, signatures: list[Tensor], rng: np.random.Generator, among: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Distances of clients [N, N], and the pairs that are averaged together [N, N], bool.

        A gamma that is not given follows from the first ``among`` clients, by default from all.
        """
        ends = np.cumsum([len(u) for u in signatures])[:-1]
        means = reduce(torch.cat(signatures).double().numpy(), self.reducer, self.dimensions, rng)
        matrix = distances(np.split(means, ends), self.distance)
        related = graph(matrix, self.threshold(matrix[:among, :among]))
        if self.case == "clusters":
            cluster = disjoint(related, self.clusters, self.members == "leaf_order")
            related = cluster[:, None] == cluster
        return matrix, related

    def threshold(self, matrix: np.ndarray) -> float:
        if self.gamma is not None:
            return self.gamma
        if self.reducer == "umap":
            return 1.0
        if len(matrix) == 2:
            raise BadInput("method.gamma", None, "a number where there are 2 clients: they leave no gap")
        return largest_gap(matrix)

    def dissimilarity(self, server: R) -> Dissimilarity:
        """Single linkage, cut at gamma, gives the components of the graph."""
        assert server.apart is not None and server.related is not None
        matrix, error = server.apart.cpu().numpy(), None
        gamma = self.threshold(matrix)
        height = gamma if np.isfinite(gamma) else None
        if self.case == "clusters":
            clusters = equal_rows(server.related.cpu().numpy())
            error = decomposition_error(graph(matrix, gamma), clusters)
        return Dissimilarity(matrix, range(len(matrix)), "distance of signatures", "single", height, error)

    def join(self, now: Round, server: R, newcomers: list[Tensor]) -> R:
        """Add the models of newcomers; replace all models if all clients are related again."""
        assert server.assignment is not None and server.signatures is not None and server.means is not None
        n, before = now.clients, server.assignment[: now.clients].cpu().numpy()
        sent = [u[:k] for u, k in zip(server.signatures.cpu(), server.means)] + newcomers
        if self.assign == "attach" and self.case == "clusters":
            matrix = distances([u.double().numpy() for u in sent], self.distance)[n:, :n]
            member = before == np.arange(before.max() + 1)[:, None]
            nearest = (matrix @ member.T / member.sum(1)).argmin(1)
            return replace(server, assignment=torch.from_numpy(np.concatenate([before, nearest])))
        related = self.relate(sent, now.rng, n if self.assign == "attach" else None)[1]
        if self.assign == "attach":
            rows, kept = related[n:, :n], server.models
            assignment = np.concatenate([before, len(kept) + np.arange(len(rows))])
        else:
            assignment, kept = equal_rows(related), server.models[:0]
            rows = related[np.unique(assignment, return_index=True)[1], :n]
        shares = self.shares(rows * self.sizes(now), before)
        means = (shares / shares.sum(1, keepdims=True).clip(1)) @ server.models.cpu().double().numpy()
        models = torch.from_numpy(means).to(server.models)
        models[torch.from_numpy(~rows.any(1))] = server.initial
        return replace(server, assignment=torch.from_numpy(assignment), models=torch.cat([kept, models]))

    def aggregate(self, now: Round, server: R, cohort: Cohort) -> Next[R]:
        """Means over relatives: of the cohort and, with absent: stale, of the others' last models."""
        assert server.assignment is not None and server.related is not None
        if self.averaging == "in_place":
            return replace(server, models=self.averaged_in_place(now, server, cohort)), {}
        before, old = server.assignment.cpu().numpy(), server.models
        rows = server.related.cpu().numpy()[np.unique(before, return_index=True)[1]]
        away = np.full(now.clients, self.absent == "stale")
        away[cohort.ids] = False
        stale = self.shares(rows * away * self.sizes(now), before)
        models = old.clone()
        for z, row in enumerate(rows):
            weights = cohort.weights * row[cohort.ids]
            total = weights.sum() + stale[z].sum()
            if not total:
                continue
            mean = torch.from_numpy(stale[z] / total).to(old) @ old
            if weights.any():
                mean = mean + weights.sum() / total * cohort.mean("model", weights=weights)
            models[z] = self.stepped(now, old[z], mean)
        return replace(server, models=models), {}

    def averaged_in_place(self, now: Round, server: R, cohort: Cohort) -> Tensor:
        """Every client's mean over its relatives [N, D], where earlier clients count with their means."""
        assert server.related is not None
        models = server.models.clone()  # [N, D]
        models[cohort.ids] = cohort.stack("model")
        shares = torch.from_numpy(self.sizes(now)) * server.related.cpu().double()
        for k, share in enumerate((shares / shares.sum(1, keepdim=True)).to(models.device)):
            models[k] = (share @ models.double()).to(models)
        return models

    def sizes(self, now: Round) -> np.ndarray:
        """Weights [N] of all clients, in the cohort or not."""
        return now.sizes if self.weighting == "samples" else np.ones(now.clients)

    def shares(self, weights: np.ndarray, assignment: np.ndarray) -> np.ndarray:
        """Weights [R, N] of clients, summed by model [R, Z]."""
        members = assignment[:, None] == np.arange(assignment.max() + 1)
        summed: np.ndarray = weights.astype(np.float64) @ members
        return summed
