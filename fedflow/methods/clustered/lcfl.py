"""LCFL: clients evaluate each other's models on their data; clients with similar losses share a model.

Source: Gu, Chen, Wen, Cai, Han, "Novel clustered federated learning based on local loss", 2024, arXiv
2407.09360; code github.com/wenh06/LCFL.

Before the first round: a warm-up of a few rounds of FedAvg with all clients, after which the server keeps
every client's last w_k; then every client receives all of them and sends its losses F_k(w_1) .. F_k(w_N).
Server: D_ij = |F_i(w_i) - F_i(w_j)| + |F_j(w_j) - F_j(w_i)|, k-medoids on D. Then as FedAvg within every
cluster, from the model of the warm-up.
*Reduces to* FedAvg after its warm-up when k = 1.
*State*: server the clusters' models, the assignment, the medoids' w_k; clients none.
*Traffic*: 1 P down, 1 P up. Before the first round also 1 P down and up in every round of the warm-up, then
N P down (its own included) and N losses up.
*Newcomer*: trains as in the warm-up's last round, and joins the medoid with the least |F(w) - F(w_medoid)|.
*Differs from the code in*: a cluster's mean is over its members in the cohort (there: divided by their
expected number); all clients take part in the warm-up (there: 60 % with CIFAR and FEMNIST).
*Ambiguous*: the treatment of DBSCAN's noise; here such clients stay alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedflow.heterogeneity.centers import k_medoids
from fedflow.local.client import Client, Update
from fedflow.methods.clustered._assigned import Assigned, AssignedState
from fedflow.methods.method import Cohort, Conditions, Initial, Message, Round
from fedflow.methods.protocols import Dissimilarity, Onboarding
from fedflow.methods.registry import register
from fedflow.models.flat import FlatModel
from fedflow.settings import option


@dataclass(frozen=True)
class State(AssignedState):
    """Tensors of the onboarding, each None until it is known."""

    start: Tensor | None = None  # [D], the model at the start of the warm-up's last round
    trained: Tensor | None = None  # [., D], the models of the clients that are being onboarded
    medoids: Tensor | None = None  # [k, D]
    proximity: Tensor | None = None  # D [N, N]


@register("lcfl", "LCFL")
class LCFL(Onboarding, Assigned[State]):
    clusters: int = option(
        2, "number of clusters", symbol="k", ge=1, grid=(2, 4, 5, 10), source="authors' code"
    )
    warmup: int = option(5, "warm-up rounds", ge=1, source="authors' code: 5")
    distance: str = option(
        "loss", "what D compares; the others are baselines", symbol="D", choices=("loss", "model", "update")
    )
    eps: float | None = option(
        None, "radius of DBSCAN, instead of k-medoids", gt=0, source="authors' code: an alternative"
    )
    min_samples: int = option(2, "neighbors, including itself, of a core client (DBSCAN)", ge=1)

    def validate(self) -> None:
        if self.eps is None:
            self.refuse_unused("without eps", "min_samples")
        else:
            self.refuse_unused("with eps", "clusters")

    def check(self, run: Conditions) -> None:
        if self.eps is None:
            run.need_clients("method.clusters", self.clusters)

    def onboarding_phases(self) -> int:
        return self.warmup + (self.distance == "loss")

    def onboarding_turns(
        self, now: Round, phase: int, server: State, clients: Sequence[int]
    ) -> Sequence[Sequence[int]]:
        """Newcomers (after which there are medoids) train once, as in the last round of the warm-up."""
        return [] if server.medoids is not None and phase < self.warmup - 1 else [clients]

    def setup(self, model: FlatModel, initial: Initial) -> State:
        return State(initial(0)[None])

    def onboarding_broadcast(self, now: Round, phase: int, server: State, client: int) -> Message:
        newcomer = client - now.clients
        if phase < self.warmup:
            w = server.models[0] if newcomer < 0 else server.start
            assert w is not None
            return {"model": w}
        assert server.trained is not None
        if newcomer < 0:
            return {"models": server.trained}
        assert server.medoids is not None
        return {"models": torch.cat([server.medoids, server.trained[newcomer, None]])}

    def onboarding_local(self, phase: int, client: Client) -> Update:
        if phase < self.warmup:
            return super().local(client)
        return client.update(losses=torch.stack([client.full_loss(w) for w in client.received["models"]]))

    def onboarding_aggregate(self, now: Round, phase: int, server: State, cohort: Cohort) -> State:
        if phase < self.warmup:
            server = replace(server, trained=cohort.stack("model"))
            if not cohort.newcomers:
                server = replace(
                    server,
                    start=server.models[0],
                    models=self.stepped(now, server.models[0], cohort.mean("model"))[None],
                )
        if phase < self.onboarding_phases() - 1:
            return server
        losses = cohort.stack("losses") if self.distance == "loss" else None
        return self.join(now, server, losses) if cohort.newcomers else self.form(now, server, losses)

    def form(self, now: Round, server: State, losses: Tensor | None) -> State:
        """Form the clusters, all with the model of the warm-up."""
        assert server.trained is not None
        d = self.gaps(now, server, server.trained) if losses is None else loss_distances(losses)
        assignment, medoids = map(torch.from_numpy, self.group(d.cpu().numpy()))
        models = server.models.repeat(len(medoids), 1)
        return State(models, assignment, server.start, medoids=server.trained[medoids], proximity=d)

    def join(self, now: Round, server: State, losses: Tensor | None) -> State:
        """Add newcomers to the clusters of the nearest medoids."""
        assert server.assignment is not None and server.medoids is not None
        before = server.assignment[: now.clients].cpu()
        if losses is None:
            d = self.gaps(now, server, server.medoids)
        else:
            d = (losses[:, -1:] - losses[:, :-1]).abs()
        return replace(server, assignment=torch.cat([before, d.argmin(1).cpu()]))

    def dissimilarity(self, server: State) -> Dissimilarity:
        assert server.proximity is not None
        matrix = server.proximity.cpu().numpy()
        unit = {"loss": "difference of losses", "model": "distance of models", "update": "1 − cosine"}
        return Dissimilarity(matrix, range(len(matrix)), unit[self.distance])

    def gaps(self, now: Round, server: State, models: Tensor) -> Tensor:
        """Distances [m, k] of the trained models [m, D] to ``models`` [k, D], or of their updates."""
        assert server.trained is not None and server.start is not None
        u, v, start = (w[..., : now.model.parameters] for w in (server.trained, models, server.start))
        u, v = u.double(), v.double()
        if self.distance == "model":
            return torch.cdist(u, v)
        u, v = (torch.nn.functional.normalize(w - start, dim=1) for w in (u, v))
        return (1 - u @ v.T).clamp(min=0)

    def group(self, d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Clusters [N] of a matrix of distances [N, N], and their medoids [k]."""
        if self.eps is None:
            return k_medoids(d, self.clusters)
        from sklearn.cluster import DBSCAN  # takes seconds to import

        clusters = DBSCAN(eps=self.eps, min_samples=self.min_samples, metric="precomputed").fit_predict(d)
        noise = clusters < 0
        clusters[noise] = clusters.max() + 1 + np.arange(noise.sum())
        within = np.where(clusters[:, None] == clusters, d, 0).sum(0)
        members = [np.flatnonzero(clusters == z) for z in range(clusters.max() + 1)]
        return clusters, np.array([ids[within[ids].argmin()] for ids in members])


def loss_distances(losses: Tensor) -> Tensor:
    """D [N, N] from every client's losses of every client's model [N, N], in float64."""
    losses = losses.double()
    worse = (losses.diagonal()[:, None] - losses).abs()
    return worse + worse.T
