"""FedCluster: clusters of clients train in turn within a round, each from the previous cluster's model.

Source: Chen, Chen, Zhou, Kailkhura, "FedCluster: Boosting the Convergence of Federated Learning via
Cluster-Cycling", IEEE Big Data 2020, arXiv 2009.10748, Algorithm 2.

A round has M cycles. In cycle K the cluster c = sigma(K) samples clients S'. Client: w_k <- E epochs of SGD
from W. Server: W <- sum over S' of (p_k / q) w_k, q the sum of p_k over S'. The M parts of the cohort are
in proportion to the clusters' sizes, at least one client each, so that a round costs as much as FedAvg's.
*Reduces to* FedAvg when M = 1, to training one client after the other when M = N.
*State*: server W, clusters, the rest of sigma; clients none. *Traffic*: 1 P down, 1 P up.
Before the first round, with grouping: similar, also C label shares up.
*Newcomer*: the global model. *Differs from the paper in*: clusters of similar labels (grouping: similar).
*Ambiguous*: the source divides by the q of the whole cluster, so that weights do not sum to 1 over a sample;
it samples cluster K + 1 but averages sigma(K + 1), read here as the same cluster.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedflow.errors import BadInput
from fedflow.heterogeneity.hierarchy import cut_into, merge
from fedflow.local.client import Client, Update
from fedflow.local.labels import label_shares
from fedflow.methods.averaging.fedprox import FedProx
from fedflow.methods.method import Cohort, Conditions, GlobalModel, Initial, Round, draw
from fedflow.methods.protocols import Cyclic, Onboarding
from fedflow.methods.registry import register
from fedflow.models.flat import FlatModel
from fedflow.settings import option


@dataclass(frozen=True)
class State(GlobalModel):
    features: Tensor | None = None  # [N, F], by which clients are compared, or None without onboarding
    assignment: Tensor | None = None  # [N], then the newcomers; None before clients are clustered
    order: Tensor | None = None  # sigma of the last round; None before the first


@register("fedcluster", "FedCluster")
class FedCluster(Cyclic, Onboarding, FedProx[State]):
    gathers = False

    mu: float = option(
        0.0, "weight of the proximal term", symbol="mu", ge=0, grid=(0, 1e-3, 0.01, 0.1), source="abstract"
    )
    clusters: int = option(2, "clusters, and cycles per round", symbol="M", ge=1, grid=(2, 5, 10))
    grouping: str = option(
        "random", "clustering: equal parts at random, or by similar labels", choices=("random", "similar")
    )
    given: list[int] | None = option(None, "the cluster 0..M-1 of every client, instead of a grouping")
    order: str = option(
        "reshuffle", "sigma: drawn in every round, or 1..M", symbol="sigma", choices=("reshuffle", "fixed")
    )

    def validate(self) -> None:
        if self.given is None:
            return
        if set(self.given) != set(range(self.clusters)):
            raise BadInput("method.given", self.given, f"every cluster from 0 to {self.clusters - 1}")
        self.refuse_unused("with given", "grouping")

    def setup(self, model: FlatModel, initial: Initial) -> State:
        return State(initial(0))

    def onboarding_phases(self) -> int:
        return int(self.given is None and self.grouping == "similar")

    def onboarding_local(self, phase: int, client: Client) -> Update:
        return client.update(features=label_shares(client))

    def onboarding_aggregate(self, now: Round, phase: int, server: State, cohort: Cohort) -> State:
        """Cluster all clients; newcomers join the cluster whose farthest member is nearest."""
        features = cohort.stack("features")
        if server.features is None or server.assignment is None:
            assignment = complete_linkage(self.distances(features, features), features, self.clusters)
            return replace(server, features=features, assignment=assignment)
        away, assignment = self.distances(features, server.features), server.assignment.cpu()
        farthest = torch.stack([away[:, assignment == z].amax(1) for z in range(self.clusters)], 1)
        return replace(server, assignment=torch.cat([assignment, farthest.argmin(1)]))

    def distances(self, u: Tensor, v: Tensor) -> Tensor:
        """Distances [m, N] between features [m, F] and [N, F], on the CPU."""
        return torch.cdist(u.double(), v.double()).cpu()

    def cycles(self) -> int:
        return self.clusters

    def plan(self, now: Round, server: State, chances: np.ndarray, size: int) -> tuple[np.ndarray, State]:
        """This cycle's sample; random clusters are drawn once, sigma in the first cycle of a round."""
        assignment, order = self.assigned(now, server), server.order
        if order is None or now.cycle == 0:
            fixed = self.order == "fixed"
            order = torch.from_numpy(
                np.arange(self.clusters) if fixed else now.rng.permutation(self.clusters)
            )
        cohort = self.sample(now, chances, assignment, size, int(order[now.cycle]))
        return cohort, replace(server, assignment=assignment, order=order)

    def assigned(self, now: Round, server: State) -> Tensor:
        """Every client's cluster [N]: as given, or in random parts whose sizes differ by at most one."""
        if server.assignment is not None:
            return server.assignment.cpu()  # after a resumption on another device, it is there
        if self.given is not None:
            return torch.tensor(self.given)
        equal = np.arange(now.clients) % self.clusters
        return torch.from_numpy(now.rng.permutation(equal) if self.clusters > 1 else equal)

    def sample(
        self, now: Round, chances: np.ndarray, assignment: Tensor, size: int, cluster: int
    ) -> np.ndarray:
        """The cluster's share of a cohort of ``size`` clients."""
        members = (assignment == cluster).nonzero()[:, 0].numpy()
        share = shares(assignment.bincount().numpy(), size)[cluster]
        drawn: np.ndarray = members[draw(now.rng, chances[members], share)]
        return drawn

    def check(self, run: Conditions) -> None:
        run.need_clients("method.clusters", self.clusters)
        if self.given is not None and run.clients not in (None, len(self.given)):
            raise BadInput("method.given", self.given, f"the clusters of {run.clients} clients")


def complete_linkage(distances: Tensor, features: Tensor, number: int) -> Tensor:
    """Clusters [N] by complete linkage, numbered in descending order of their mean ``features`` [N, F].

    So the order of training does not depend on how the clients are numbered.
    """
    clusters = torch.from_numpy(cut_into(merge(distances.numpy(), "complete"), number))
    means = [features.cpu()[clusters == z].mean(0).tolist() for z in range(number)]
    order = sorted(range(number), key=means.__getitem__, reverse=True)
    return torch.tensor(order).argsort()[clusters]


def shares(members: np.ndarray, size: int) -> np.ndarray:
    """Each cluster's part [M] of a cohort of ``size``: in proportion to its members, at least one."""
    exact, share = size * members / members.sum(), np.ones(len(members), dtype=np.int64)
    for _ in range(size - len(members)):
        share[(exact - share).argmax()] += 1
    return share
