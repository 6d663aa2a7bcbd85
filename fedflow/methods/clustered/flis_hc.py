"""FLIS (HC): before the first round, clients whose models say the same of the server's data are clustered.

Source: Morafah, Vahidian, Wang, Lin, "FLIS: Clustered Federated Learning via Inference Similarity for Non-IID
Data Distribution", IEEE Open Journal of the Computer Society 2023, arXiv 2208.09754; Algorithm 6 of Morafah's
thesis; code github.com/MMorafah/FLIS.

Before the first round every client trains the first model and sends it. Server: B_k, what model k says of M
inputs of its own; A_ij = sum(B_i * B_j) / (||B_i|| ||B_j||); hierarchical clustering of 1 - A [N, N] up to
the height 1 - beta; every cluster starts from the first model, and what was trained is forgotten. Then
client: w_k <- E epochs of SGD from its cluster's model; server: the mean of each cluster's participants.
*Reduces to* FedAvg when beta = 0; with beta > 1 everybody trains alone, when it takes part.
*State*: server the clusters' models, who belongs where, B, 1 - A; clients none. *Traffic*: 1 P down, 1 P up.
Before the first round the same once more for all clients.
*Newcomer*: trains the first model and joins the most similar cluster, or opens one where none is similar
enough; with assign: rehc everybody is clustered anew.
*Differs from the thesis in*: A, which it writes as the root of this sum's squares, so that a model is not
similar to itself; its text and the code have this one. The server's data are no test samples by default.
*Ambiguous*: the authors' code clusters nobody: variant: neighbourhood. There a client starts from the mean of
the last models of all those with A_ij >= beta, first models included; clients with the same such neighbours
count as a cluster. Code takes up models of the same round as clients are simulated one by one; not so here.
Which average linkage is meant: wpgma here, as in the authors' code of PACFL; linkage: upgma weighs clusters
by their sizes.
"""

from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedflow.errors import BadInput
from fedflow.local.client import Client, Update
from fedflow.methods.base import Cohort, Dissimilarity, Server
from fedflow.methods.clustered._flis import FLIS, similarity
from fedflow.methods.clustered._hierarchical import Hierarchical
from fedflow.methods.registry import register
from fedflow.settings import option


@register("flis_hc", "FLIS (HC)")
class FLISHC(FLIS, Hierarchical):
    unit: ClassVar[str] = "1 − inference similarity"

    beta: float = option(
        0.45, "similarity from which on clients belong together", symbol="beta", ge=0,
        grid=(0.1, 0.3, 0.5, 0.7), source="authors' code",
    )  # fmt: skip
    variant: str = option(
        "clusters", "disjoint clusters, or every client has neighbours of its own",
        choices=("clusters", "neighbourhood"), source="neighbourhood: authors' code",
    )  # fmt: skip

    def validate(self) -> None:
        super().validate()
        if self.variant == "neighbourhood" and self.server_lr != 1:
            raise BadInput("method.server_lr", self.server_lr, "1 where variant is neighbourhood")

    def onboarding_broadcast(self, now: Round, phase: int, server: State, client: int) -> Message:
        self.need_public(server)
        return {"model": server.initial}

    def onboarding_local(self, phase: int, client: Client) -> Update:
        return client.update(model=client.fit(start=client.received["model"]))

    def measure(self, server: Server, cohort: Cohort) -> tuple[Server, np.ndarray]:
        own = self.inferences(cohort)
        if not cohort.newcomers:
            return {"inferences": own}, 1 - similarity(own, own).numpy()
        known = server.inferences.cpu()
        cross = similarity(own, known).numpy()
        before = server.proximity[: now.clients, : now.clients].cpu().numpy()
        return {}, np.block([[before, 1 - cross.T], [1 - cross, 1 - similarity(own, own).numpy()]])

    def height(self, tree: np.ndarray) -> float:
        return 1 - self.beta

    def onboarding_aggregate(self, now: Round, phase: int, server: State, cohort: Cohort) -> State:
        if self.variant == "clusters":
            return super().onboarding_aggregate(phase, server, cohort)
        known, proximity = self.measure(server, cohort)
        clients = now.clients
        near = (proximity <= 1 - self.beta) | np.eye(len(proximity), dtype=bool)
        _, first, which = np.unique(near[:, :clients], axis=0, return_index=True, return_inverse=True)
        order = np.argsort(first)  # of their first members, so that newcomers change no number
        neighbours, assignment = near[first[order], :clients], np.argsort(order)[which.reshape(-1)]
        latest = server.get("latest", server.initial.expand(clients, -1))
        found = server | known | {
            "proximity": torch.from_numpy(proximity), "assignment": torch.from_numpy(assignment),
            "latest": latest, "neighbours": torch.from_numpy(neighbours),
        }  # fmt: skip
        return found | {"models": self.means(found, cohort)}

    def means(self, server: Server, cohort: Cohort) -> Tensor:
        """Mean of the last models of each set of neighbours, [Z, D]; the first model without any."""
        sizes = now.sizes if self.weighting == "samples" else np.ones(now.clients)
        shares = server.neighbours.cpu() * torch.from_numpy(sizes).double()
        some = shares.any(1)
        shares = shares / shares.sum(1, keepdim=True).clamp(min=1)
        latest = server.latest
        means = shares.to(latest) @ latest
        return torch.where(some[:, None].to(means.device), means, server.initial)

    def dissimilarity(self, server: Server) -> Dissimilarity:
        found = super().dissimilarity(server)
        return found if self.variant == "clusters" else replace(found, height=None)

    def aggregate(self, now: Round, server: State, cohort: Cohort) -> tuple[State, Diagnostics]:
        if self.variant == "clusters":
            return super().aggregate(server, cohort)
        latest = server.latest.clone()
        latest[cohort.ids] = cohort.stack("model")
        server = server | {"latest": latest}
        return server | {"models": self.means(server, cohort)}
