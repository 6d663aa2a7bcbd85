"""LCFL: clients try the others' models on their data; who does well by each other shares a model.

Source: Gu, Chen, Wen, Cai, Han, "Novel clustered federated learning based on local loss", 2024, arXiv
2407.09360; code github.com/wenh06/LCFL.

Before the first round: a few rounds of FedAvg with all clients, the last of which leaves every client's own
w_k at the server; then every client receives all of them and sends its losses F_k(w_1) .. F_k(w_N). Server:
D_ij = |F_i(w_i) - F_i(w_j)| + |F_j(w_j) - F_j(w_i)|, k-medoids on D. Then as FedAvg within every cluster,
from the warmed-up model.
*Reduces to* FedAvg from its warm-up on when k = 1.
*State*: server the clusters' models, who belongs where, the medoids' w_k; clients none.
*Traffic*: 1 P down, 1 P up. Before the first round also 1 P down and up in every round of the warm-up, then
N P down (its own too) and N losses up.
*Newcomer*: trains as in the warm-up's last round, joins the medoid where |F(w) - F(w_medoid)| is least.
*Differs from the code in*: a cluster's mean is over who takes part (there: over how many are expected to);
everybody takes part in the warm-up (there: 60 % with CIFAR and FEMNIST).
*Ambiguous*: what DBSCAN does with noise; here such clients stay alone.
"""

import numpy as np
import torch
from torch import Tensor

from fedflow.errors import BadInput
from fedflow.heterogeneity.centres import k_medoids
from fedflow.local.client import Client, Update
from fedflow.methods.base import Cohort, Dissimilarity, Server
from fedflow.methods.clustered._assigned import Assigned
from fedflow.methods.registry import register
from fedflow.settings import option


@register("lcfl", "LCFL")
class LCFL(Assigned):
    clusters: int = option(
        2, "number of clusters", symbol="k", ge=1, grid=(2, 4, 5, 10), source="authors' code"
    )
    warmup: int = option(5, "rounds of the warm-up", ge=1, source="authors' code: 5")
    distance: str = option(
        "loss", "what D compares: losses, models (L2), or the warm-up's last updates (1 - cosine)",
        symbol="D", choices=("loss", "model", "update"), source="authors' code: the last two are baselines",
    )  # fmt: skip
    eps: float | None = option(
        None, "radius of DBSCAN, in place of k-medoids", gt=0, source="authors' code: an alternative"
    )
    min_samples: int = option(2, "neighbours, itself among them, that make a client dense (DBSCAN)", ge=1)

    def onboarding_phases(self) -> int:
        return self.warmup + (self.distance == "loss")

    def onboarding_broadcast(self, now: Round, phase: int, server: State, client: int) -> Message:
        late = "assignment" in server
        if phase < self.warmup:
            return {"model": server.start if late else server.models[0]}
        if not late:
            return {"models": server.trained}
        own = server.trained[client - len(server.assignment)]
        return {"models": torch.cat([server.medoids, own[None]])}

    def onboarding_local(self, phase: int, client: Client) -> Update:
        if phase < self.warmup:
            return super().local(client)
        return client.update(losses=torch.stack([client.full_loss(w) for w in client.received["models"]]))

    def onboarding_aggregate(self, now: Round, phase: int, server: State, cohort: Cohort) -> State:
        late = cohort.newcomers
        if phase < self.warmup:
            server = server | {"trained": cohort.stack("model")}
            if not late:
                server |= {"start": server.models[0], "models": cohort.mean("model")[None]}
        if phase < self.onboarding_phases() - 1:
            return server
        losses = cohort.stack("losses") if self.distance == "loss" else None
        return (self.join if late else self.form)(server, losses)

    def form(self, server: Server, losses: Tensor | None) -> Server:
        """The clusters, all with the warmed-up model."""
        w = server.trained
        d = self.apart(w, w, server.start) if losses is None else between(losses)
        if self.eps is None and self.clusters > len(d):
            raise BadInput("method.clusters", self.clusters, f"at most {len(d)}, the clients")
        assignment, medoids = map(torch.from_numpy, self.group(d.cpu().numpy()))
        return {
            "models": server.models.repeat(len(medoids), 1), "assignment": assignment,
            "medoids": w[medoids], "start": server.start, "proximity": d,
        }  # fmt: skip

    def join(self, server: Server, losses: Tensor | None) -> Server:
        """Newcomers go to the nearest medoid."""
        if losses is None:
            d = self.apart(server.trained, server.medoids, server.start)
        else:
            d = (losses[:, -1:] - losses[:, :-1]).abs()
        return server | {"assignment": torch.cat([server.assignment, d.argmin(1).cpu()])}

    def dissimilarity(self, server: Server) -> Dissimilarity:
        matrix = server.proximity.cpu().numpy()
        unit = {"loss": "difference of losses", "model": "distance of models", "update": "1 − cosine"}
        return Dissimilarity(matrix, range(len(matrix)), unit[self.distance])

    def apart(self, one: Tensor, other: Tensor, start: Tensor) -> Tensor:
        """Distances [m, N] between models [m, D] and [N, D], or their updates from ``start`` [D]."""
        one, other = one.double(), other.double()
        if self.distance == "model":
            return torch.cdist(one, other)
        one, other = (torch.nn.functional.normalize(w - start, dim=1) for w in (one, other))
        return (1 - one @ other.T).clamp(min=0)

    def group(self, d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Clusters [N] of a matrix of distances [N, N], and their medoids [k]."""
        if self.eps is None:
            return k_medoids(d, self.clusters)
        from sklearn.cluster import DBSCAN  # takes seconds to import

        found = DBSCAN(eps=self.eps, min_samples=self.min_samples, metric="precomputed").fit_predict(d)
        noise = found < 0
        found[noise] = found.max() + 1 + np.arange(noise.sum())
        within = np.where(found[:, None] == found, d, 0).sum(0)
        members = [np.flatnonzero(found == z) for z in range(found.max() + 1)]
        return found, np.array([own[within[own].argmin()] for own in members])


def between(losses: Tensor) -> Tensor:
    """D [N, N] from every client's losses of every client's model [N, N], in float64."""
    losses = losses.double()
    worse = (losses.diagonal()[:, None] - losses).abs()
    return worse + worse.T
