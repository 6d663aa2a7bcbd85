"""FLIS (HC): before the first round, clients whose models agree on the server's data are clustered.

Source: Morafah, Vahidian, Wang, Lin, "FLIS: Clustered Federated Learning via Inference Similarity for Non-IID
Data Distribution", IEEE Open Journal of the Computer Society 2023, arXiv 2208.09754; Algorithm 6 of Morafah's
thesis; code github.com/MMorafah/FLIS.

Before the first round, every client trains the initial model and sends it. Server: B_k, the predictions of
model k for the server's M inputs; A_ij = sum(B_i * B_j) / (||B_i|| ||B_j||); hierarchical clustering of 1 - A
[N, N] up to the height 1 - beta; every cluster starts from the initial model, and the trained models are
discarded. Then client: w_k <- E epochs of SGD from its cluster's model; server: the mean over each cluster's
members in the cohort.
*Reduces to* FedAvg when beta = 0; with beta > 1 each client of a cohort trains alone.
*State*: server the clusters' models, the assignment, B, 1 - A; clients none. *Traffic*: 1 P down, 1 P up.
Before the first round the same once more for all clients.
*Newcomer*: trains the initial model and joins the most similar cluster, or forms a new one if none is similar
enough; with assign: rehc, all clients are clustered again.
*Differs from the thesis in*: A, which it writes as the root of this sum's squares, so that a model is not
similar to itself; its text and the code have this one. The server's data are not test samples by default.
*Ambiguous*: the authors' code does not cluster clients: variant: neighborhood. There, a client starts from
the mean of the last models of all clients with A_ij >= beta, initial models included; clients with the same
neighbors count as a cluster. The code simulates clients one by one and already uses models of the same
round; this is not done here.
The meaning of average linkage: wpgma here, as in the authors' code of PACFL; linkage: upgma weighs clusters
by their sizes.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedflow.errors import BadInput
from fedflow.local.client import Client, Update
from fedflow.methods.clustered._flis import FLIS, similarity
from fedflow.methods.clustered._hierarchical import Hierarchical, HierarchicalState
from fedflow.methods.method import Cohort, Initial, Message, Next, Round
from fedflow.methods.protocols import Dissimilarity
from fedflow.methods.registry import register
from fedflow.models.flat import FlatModel
from fedflow.settings import option


@dataclass(frozen=True, kw_only=True)
class State(HierarchicalState):
    """``latest`` and ``neighbors`` are None unless variant: neighborhood."""

    inferences: Tensor | None = None  # B [N, .]; None before the onboarding
    latest: Tensor | None = None  # [N, D], every client's last model
    neighbors: Tensor | None = None  # [Z, N] bool, the sets of neighbors


@register("flis_hc", "FLIS (HC)")
class FLISHC(FLIS[State], Hierarchical[State]):
    unit = "1 − inference similarity"

    beta: float = option(
        0.45, "smallest similarity in a cluster", symbol="beta", ge=0, grid=(0.1, 0.3, 0.5, 0.7)
    )
    variant: str = option(
        "clusters", "disjoint clusters, or neighbors of every client", choices=("clusters", "neighborhood")
    )

    def validate(self) -> None:
        super().validate()
        if self.variant != "neighborhood":
            return
        if self.server_lr != 1:
            raise BadInput("method.server_lr", self.server_lr, "1 where variant is neighborhood")
        self.refuse_unused("with variant: neighborhood", "linkage", "assign")

    def setup(self, model: FlatModel, initial: Initial) -> State:
        first = initial(0)
        return State(models=first[None], initial=first)

    def onboarding_broadcast(self, now: Round, phase: int, server: State, client: int) -> Message:
        return {"model": server.initial}

    def onboarding_local(self, phase: int, client: Client) -> Update:
        return client.update(model=client.fit(start=client.received["model"]))

    def measure(self, now: Round, server: State, cohort: Cohort) -> State:
        sent = self.inferences(now, cohort)
        among = 1 - similarity(sent, sent)
        if not cohort.newcomers:
            return replace(server, inferences=sent, proximity=among)
        assert server.inferences is not None
        across = 1 - similarity(sent, server.inferences.cpu()).numpy()
        before = server.matrix[: now.clients, : now.clients]
        proximity = np.block([[before, across.T], [across, among.numpy()]])
        return replace(server, proximity=torch.from_numpy(proximity))

    def height(self, tree: np.ndarray) -> float:
        return 1 - self.beta

    def onboarding_aggregate(self, now: Round, phase: int, server: State, cohort: Cohort) -> State:
        if self.variant == "clusters":
            return super().onboarding_aggregate(now, phase, server, cohort)
        measured, clients = self.measure(now, server, cohort), now.clients
        proximity = measured.matrix
        near = (proximity <= 1 - self.beta) | np.eye(len(proximity), dtype=bool)
        _, first, which = np.unique(near[:, :clients], axis=0, return_index=True, return_inverse=True)
        order = np.argsort(first)  # by first member, so that newcomers do not change numbers
        neighbors, assignment = near[first[order], :clients], np.argsort(order)[which.reshape(-1)]
        after = replace(
            measured,
            assignment=torch.from_numpy(assignment),
            neighbors=torch.from_numpy(neighbors),
            latest=server.initial.expand(clients, -1) if server.latest is None else server.latest,
        )
        return replace(after, models=self.means(now, after))

    def means(self, now: Round, server: State) -> Tensor:
        """Means of the last models of each set of neighbors, [Z, D], or the initial model without any."""
        assert server.latest is not None and server.neighbors is not None
        sizes = now.sizes if self.weighting == "samples" else np.ones(now.clients)
        shares = server.neighbors.cpu() * torch.from_numpy(sizes).double()
        some = shares.any(1)
        shares = shares / shares.sum(1, keepdim=True).clamp(min=1)
        means = shares.to(server.latest) @ server.latest
        return torch.where(some[:, None].to(means.device), means, server.initial)

    def dissimilarity(self, server: State) -> Dissimilarity:
        matrix = super().dissimilarity(server)
        return matrix if self.variant == "clusters" else replace(matrix, height=None)

    def aggregate(self, now: Round, server: State, cohort: Cohort) -> Next[State]:
        if server.latest is None:
            return super().aggregate(now, server, cohort)
        latest = server.latest.clone()
        latest[cohort.ids] = cohort.stack("model")
        after = replace(server, latest=latest)
        return replace(after, models=self.means(now, after)), {}
