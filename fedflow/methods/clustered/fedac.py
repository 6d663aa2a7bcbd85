"""FedAC: personal models are pulled towards their cluster's centroid, embeddings towards the mean of all.

Source: Zhang, Chen, Lin, Chen, Zhao, "FedAC: An Adaptive Clustered Federated Learning Framework for
Heterogeneous Data", 2024, arXiv 2403.16460, Eq. 3, Algorithms 1 to 3.

A model omega_k = (phi_k, h_k) is an embedding and a decision (the classifier here). Client: local SGD on
F_k(omega) + mu/2 ||omega - Omega||^2 + lambda/2 ||phi - Phi||^2 from its own omega_k, with Omega the centroid
of its cluster. Server: Phi = mean of the cohort's phi_k; every client is assigned to the centroid with the
largest LrCos, the cosine of projections on D principal directions M of the cohort's models (E-step);
Omega_j = mean of its members' last omega_k, in the cohort or not (M-step). Every few rounds it merges the
tightest cluster into the nearest one or splits the widest, by G = intra / inter: the mean squared distance of
members to their centroid, divided by the mean squared distance of the centroid to the others.
*Reduces to* Local when mu = lambda = 0, to mean-regularized models when lambda = 0 and K = 1.
*State*: server all omega_k, Omega_1..Omega_K, Phi, M, the assignment; client omega_k.
*Traffic*: 1 P and P_body down, 1 P up.
*Newcomer*: takes one step on all its data from the mean of all Omega, and gets the centroid with the largest
LrCos; so does a client that has not taken part yet.
*Ambiguous*: Eq. 4 prints argmin over a similarity: read as argmax. Algorithm 1 sums the phi_k: read as a
mean, since a sum is m times too long. k-means on the cohort's projections makes the first clusters. A client
that never took part has no model to compare; it starts from the common initial model, pulled towards the mean
of all Omega. At most one cluster is merged or split at a time, the one with the smallest or the largest G;
merging has priority; 2-means on projections makes a split. The paper has no values for a and b, and no two
numbers suit all runs: the pull to centroids lowers G from round to round, even if clusters are right (in 30
rounds on digits from 0.05 to 0.01 with mu = 0.1, to 0.003 with mu = 1), and G is 0.08 to 5 for clusters of an
IID federation, 0.1 to 0.5 for clusters of two or three groups. So by default neither is a number: only a
cluster with G = 0, a single client, joins the nearest, and a cluster is split if its G is below 1 and its
halves are farther apart than by chance (`fedflow.heterogeneity.number.separation`).
"""

import math
import warnings
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedflow.errors import BadInput
from fedflow.heterogeneity.centers import k_means
from fedflow.heterogeneity.number import centroids, merged, split, spread
from fedflow.heterogeneity.subspace import signature
from fedflow.local.client import Client, Update
from fedflow.local.optimizer import Pull
from fedflow.methods.clustered._last import replaced
from fedflow.methods.method import Cohort, Conditions, Initial, Message, Method, Next, Round, ServerState
from fedflow.methods.protocols import Clustered, Serving
from fedflow.methods.registry import register
from fedflow.models.flat import FlatModel, Part
from fedflow.settings import option


class Space(NamedTuple):
    """The space in which models are compared: the span of ``axes`` [P, q], q <= D, from ``origin`` [P].

    Without axes (all models were equal), models are not projected; the default origin is 0.
    """

    axes: Tensor | None = None
    origin: Tensor | None = None

    def projected(self, w: Tensor) -> Tensor:
        """M ``w`` [n, q], float64 on the CPU, of models [n, P]."""
        w = w if self.origin is None else w - self.origin
        return (w if self.axes is None else w @ self.axes).double().cpu()


@dataclass(frozen=True)
class State(ServerState):
    models: Tensor  # Omega [K, D]
    mean: Tensor  # of all Omega [D]
    embedding: Tensor  # Phi
    omega: Tensor | None = None  # [n, D] of the n clients that took part, in their order
    assignment: Tensor | None = None  # [N], -1 of clients that never took part; None before the first round
    axes: Tensor | None = None  # M [P, q]; None as in `Space`
    origin: Tensor | None = None  # [P]; None as in `Space`

    @property
    def space(self) -> Space:
        return Space(self.axes, self.origin)


@register("fedac", "FedAC")
class FedAC(Clustered, Serving, Method[State]):
    serves = "personal"
    gathers = True
    stable_cluster_ids = False

    clusters: int = option(2, "initial number of clusters", symbol="K", ge=1, grid=(2, 3, 4))
    mu: float = option(
        0.1, "pull of a model towards its centroid", symbol="mu", ge=0, grid=(0, 0.01, 0.1, 1), source="Eq. 3"
    )
    lam: float = option(
        0.1, "pull of embeddings to their mean", symbol="lambda", ge=0, grid=(0, 0.01, 0.1, 1), source="Eq. 3"
    )
    decision: list[str] | None = option(
        None, "names of the parameters of h; null = the architecture's classifier"
    )
    rank: int = option(
        2, "number of principal directions", symbol="D", ge=1, grid=(2, 5, 10), source="Algorithm 2"
    )
    center: bool = option(False, "subtract the cohort's mean model before projecting models")
    refresh_every: int = option(5, "rounds between refreshes of M", ge=1, source="Algorithm 2: sparsely")
    tune_every: int = option(10, "rounds between merges or splits; 0 = never", ge=0, source="Algorithm 3")
    merge_below: float | None = option(
        None, "clusters below this G merge; null = if G is 0", symbol="a", ge=0, grid=(0, 1e-3, 0.01, 0.1)
    )
    split_above: float | None = option(
        None, "clusters above this G split; null = if halves are separate", symbol="b", gt=0, grid=(0.1, 1)
    )
    protect_singletons: bool = option(False, "do not merge clusters of one client, whose G is 0")
    allow_split_from_one: bool = option(False, "allow splitting a cluster of all clients, which has no G")

    def validate(self) -> None:
        a, b = self.merge_below, self.split_above
        if a is not None and b is not None and a >= b:
            raise BadInput("method.merge_below", a, f"less than split_above, {b}")
        if not self.tune_every:
            unused = "merge_below", "split_above", "protect_singletons", "allow_split_from_one"
            self.refuse_unused("with tune_every: 0", *unused)

    def check(self, run: Conditions) -> None:
        if run.rounds < self.tune_every:
            what = f"clusters are neither merged nor split in {run.rounds} rounds"
            warnings.warn(f"fedac: {what}, as tune_every is {self.tune_every}", stacklevel=2)
        merges = 0 < self.tune_every <= run.rounds and not self.protect_singletons and self.merge_below != 0
        needed = self.clusters * (2 if merges else 1)  # clusters of one client merge
        if run.clients and run.participation * run.clients < needed:
            few = f"the first cohort forms the clusters, and has fewer than {needed} clients"
            warnings.warn(f"fedac: fewer than {self.clusters} clusters may be left: {few}", stacklevel=2)
        run.need_means(self.name, "which averages single models in clusters itself")
        run.training.need_no_adaptation(self.name, "which places newcomers by a step on all samples")

    def decides(self, model: FlatModel) -> Part:
        """The decision part h; the rest is the embedding phi."""
        return model.part(*(model.head_patterns if self.decision is None else self.decision))

    def client_state(self, model: FlatModel, initial: Tensor) -> dict[str, Tensor]:
        return {"model": initial}

    def setup(self, model: FlatModel, initial: Initial) -> State:
        """One cluster around the common initial model, until the first round."""
        w = initial(0)
        return State(w[None], w, self.decides(model).outside(w))

    def cluster(self, server: State, client: int) -> int:
        """Number of the client's cluster, or -1 if it never took part."""
        r = () if server.assignment is None else server.assignment
        return int(r[client]) if client < len(r) else -1

    def broadcast(self, now: Round, server: State, client: int) -> Message:
        number = self.cluster(server, client)
        centroid = server.mean if number < 0 else server.models[number]
        return {"centroid": centroid, "embedding": server.embedding}

    def broadcast_for_evaluation(self, now: Round, server: State, client: int) -> Message:
        """Clients that hold a model receive only their cluster number."""
        number = self.cluster(server, client)
        if number >= 0:
            return {"cluster": torch.tensor(number)}
        space = {name: value for name, value in server.space._asdict().items() if value is not None}
        return {"centroid": server.mean, "models": server.models} | space

    def local(self, client: Client) -> Update:
        w = client.fit(start=client.kept["model"], pull=self.pull(client))
        return client.update(model=w, weight=1.0, keep={"model": w})

    def pull(self, client: Client) -> Pull | None:
        """Both penalties as one, up to a constant."""
        total = self.mu + self.lam
        if not total:
            return None
        centroid, h = client.received["centroid"], self.decides(client.model)
        phi = (self.mu * h.outside(centroid) + self.lam * client.received["embedding"]) / total
        # Not `where` with a number, which a captured graph would have to copy to the GPU.
        weight = self.mu + self.lam * (~h.mask).to(centroid)
        return Pull(weight, h.join(h.of(centroid), phi))

    def aggregate(self, now: Round, server: State, cohort: Cohort) -> Next[State]:
        sent, trained = cohort.stack("model"), now.model.parameters
        before, assignment = None, torch.full((now.clients,), -1)
        if server.assignment is not None:
            before = (server.assignment >= 0).nonzero()[:, 0]
        trained_once, w = replaced(before, server.omega, cohort.ids, sent)  # [n], [n, D]
        space = server.space
        if space.axes is None or now.t % self.refresh_every == 0:
            refreshed = self.space(sent[:, :trained])
            space = space if refreshed.axes is None else refreshed
        z = space.projected(w[:, :trained])
        if server.assignment is None:
            r, _ = k_means(z, min(self.clusters, len(z.unique(dim=0))), now.rng)
        else:
            r = cosines(z, space.projected(server.models[:, :trained])).argmax(1)  # E-step
        r, models = centroids(w, r)  # M-step
        number = len(models)
        if self.tune_every and now.t % self.tune_every == 0:
            r, models = centroids(w, self.tune(w[:, :trained], r, models[:, :trained], z, now.rng))
        assignment[trained_once] = r
        phi, more = self.decides(now.model).outside(cohort.mean("model")), len(models) - number
        after = State(models, models.mean(0), phi, w, assignment, *space)
        return after, {"clusters": len(models), "merges": max(0, -more), "splits": max(0, more)}

    def space(self, w: Tensor) -> Space:
        """The principal directions of models ``w`` [m, P], from their mean with ``center``."""
        mean = w.double().mean(0)
        axes = torch.from_numpy(signature((w.double() - mean).cpu().numpy(), self.rank)).to(w)
        return Space(axes, mean.to(w) if self.center else None) if axes.any() else Space()

    def tune(self, w: Tensor, r: Tensor, models: Tensor, z: Tensor, rng: np.random.Generator) -> Tensor:
        """Clusters [n] of models ``w`` [n, P], projected ``z`` [n, q], after at most one merge or split."""
        intra, inter = spread(w, r, models)
        g = intra / inter
        if len(models) == 1:
            g[0] = torch.inf if self.allow_split_from_one else torch.nan
        tight = g.where((r.bincount() > 1) | (not self.protect_singletons), torch.nan)
        below = math.ulp(0) if self.merge_below is None else self.merge_below
        after = merged(r, tight, models, below)
        after = split(r, g, w, z, self.split_above, rng) if after is None else after
        return r if after is None else after

    def model_for(self, client: Client) -> tuple[Tensor, Tensor]:
        if "cluster" in client.received:
            return client.kept["model"], client.received["cluster"]
        received, trained = client.received, client.model.parameters
        models, space = received["models"], Space(received.get("axes"), received.get("origin"))
        omega = client.full_step(received["centroid"])[None]
        number = cosines(*(space.projected(v[:, :trained]) for v in (omega, models))).argmax()
        return models[int(number)], number


def cosines(z: Tensor, centers: Tensor) -> Tensor:
    """LrCos [n, K] of projected models [n, q] and centroids [K, q]."""
    return normalize(z) @ normalize(centers).T
