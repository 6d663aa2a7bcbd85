"""FedSC: clients with similar labels are clustered, and every round of a global model uses all clusters.

Source: the method named FedSC in a lecture on client-side clustering, which does not cite its paper;
Algorithm 1 and section 3.3. Clusters: complete linkage on the distances ||I_i - I_j|| of label shares I_k
[C], merged down to N.

Client: E epochs of SGD from the received model. Server, ``cycle``: as FedCluster with fixed order, with
one average per cluster in turn; ``stratified``: one average w <- w - eta_s sum_k p_k (w - w_k) over clients
drawn from every cluster, in proportion to its size.
*Reduces to* FedAvg when N = 1, in both modes. *State*: server w, label shares, clusters; clients none.
*Traffic*: 1 P down, 1 P up. Before the first round also C label shares up; with feature: update, 1 P down and
1 P up instead. *Newcomer*: the global model; joins the cluster whose farthest member is nearest.
*Ambiguous*: Algorithm 1 is stratified, the text cycles (the default, described in detail); eta_s is
printed as the local step eta (here 1); one bullet compares updates by their cosine (``feature``, ``metric``).
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedflow.local.client import Client, Update
from fedflow.methods.clustered.fedcluster import FedCluster, State
from fedflow.methods.method import Message, Round
from fedflow.methods.registry import register
from fedflow.settings import option


@register("fedsc", "FedSC")
class FedSC(FedCluster):
    clusters: int = option(2, "clusters", symbol="N", ge=1, grid=(2, 4, 8))
    mode: str = option(
        "cycle", "clusters train in turn, or together in one cohort", choices=("cycle", "stratified")
    )
    grouping: str = option(
        "similar", "clustering: by ``feature`` and ``metric``, or at random", choices=("similar", "random")
    )
    order: str = option(
        "fixed", "order of the clusters: fixed, or drawn in every round", choices=("fixed", "reshuffle")
    )
    feature: str = option(
        "labels", "clients are compared by label shares or updates", symbol="I", choices=("labels", "update")
    )
    metric: str = option(
        "l2", "distance: Euclidean, or 1 - cosine", choices=("l2", "cosine"), source="Eq. 3.1"
    )

    def validate(self) -> None:
        super().validate()
        if self.given is not None or self.grouping == "random":
            self.refuse_unused("as no clients are compared", "feature", "metric")
        if self.mode == "stratified":
            self.refuse_unused("as all clusters train together", "order")

    def onboarding_broadcast(self, now: Round, phase: int, server: State, client: int) -> Message:
        return {"model": server.model} if self.feature == "update" else {}

    def onboarding_local(self, phase: int, client: Client) -> Update:
        if self.feature == "labels":
            return super().onboarding_local(phase, client)
        w = client.received["model"]
        return client.update(features=client.model.trainable(client.fit(start=w) - w))

    def distances(self, u: Tensor, v: Tensor) -> Tensor:
        if self.metric == "l2":
            return super().distances(u, v)
        u, v = (torch.nn.functional.normalize(x.double(), dim=1) for x in (u, v))
        return (1 - u @ v.T).clamp(min=0).cpu()

    def cycles(self) -> int:
        return self.clusters if self.mode == "cycle" else 1

    def plan(self, now: Round, server: State, chances: np.ndarray, size: int) -> tuple[np.ndarray, State]:
        if self.mode == "cycle":
            return super().plan(now, server, chances, size)
        assignment = self.assigned(now, server)
        parts = [self.sample(now, chances, assignment, size, z) for z in range(self.clusters)]
        return np.concatenate(parts), replace(server, assignment=assignment)
