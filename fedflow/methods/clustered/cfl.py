"""CFL: clients train together until their updates disagree; then the server splits them in two, recursively.

Source: Sattler, Mueller, Samek, "Clustered Federated Learning: Model-Agnostic Distributed Multi-Task
Optimization under Privacy Constraints", IEEE TNNLS 2020, arXiv 1910.01991, Algorithms 1, 3 and 4.

Client: w_k <- E epochs of SGD from its cluster's model w. Server, in each cluster, with dw_k = w_k - w: as
FedAvg; but if ||mean dw_k|| < eps_1 and max ||dw_k|| > eps_2, it splits the members so that the largest
cosine of two updates across the parts is smallest (single linkage); each part continues from its own mean.
With a bound gamma on the updates' relative noise, gamma < sqrt((1 - that cosine) / 2) is also required.
*Reduces to* uniform FedAvg before the first split, and in all rounds with eps_1 = 0.
*State*: server a tree of models, with the direction of the updates that made each part, and every client's
node; clients none. *Traffic*: 1 P down, 1 P up.
*Newcomer*: descends the tree: it trains a node's model and moves to the part whose direction is nearest to
its update, one node each time it takes part; if it is served before that, gradients replace updates.
*Ambiguous*: partial participation, which the paper does not have: a client that is absent when its cluster is
split is a newcomer to the parts. With absent: stale, the last updates of absent clients are used, also in the
mean (as in public code). A part's direction is the mean of its normalized updates (the paper compares with
every update).
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedflow.errors import BadInput
from fedflow.heterogeneity.hierarchy import cut_into, merge
from fedflow.local.client import Client
from fedflow.methods.averaging._averaging import weights
from fedflow.methods.clustered._assigned import Assigned, AssignedState
from fedflow.methods.clustered._last import replaced
from fedflow.methods.method import Cohort, Conditions, Initial, Message, Next, Round
from fedflow.methods.registry import register
from fedflow.models.flat import FlatModel
from fedflow.settings import option


@dataclass(frozen=True, kw_only=True)
class State(AssignedState):
    """A tree of numbered nodes, 0 the root, of which the leaves are the clusters.

    The clients' ``assignment`` [N] to nodes is None before the first round: they are at the root.
    """

    directions: Tensor  # [Z, P], of the updates behind each part, normalized; 0 for the root
    children: Tensor  # the first of each node's two parts [Z], 0 for a leaf
    senders: Tensor | None = None  # clients [n] with an update so far; None unless absent: stale
    updates: Tensor | None = None  # their last ones [n, D]


@register("cfl", "CFL")
class CFL(Assigned[State]):
    eps1: float = option(
        0.4, "a cluster splits if the norm of its mean update is below this", symbol="eps_1", ge=0
    )
    eps2: float = option(1.6, "and the norm of its longest update is above this", symbol="eps_2", ge=0)
    gamma: float | None = option(
        None, "bound on relative noise; null = none", symbol="gamma_max", ge=0, source="equation 31"
    )
    linkage: str = option(
        "single", "how updates are split; single is optimal", choices=("single", "complete")
    )
    warm_up: int = option(0, "rounds before the first split", ge=0, source="authors' code: 20")
    min_size: int = option(3, "smallest cluster, in updates, that may be split", ge=2, source="authors' code")
    weighting: str = weights("uniform", "authors' code: uniform")
    absent: str = option(
        "omit", "absent clients: left out, or counted with their last update", choices=("omit", "stale")
    )

    def check(self, run: Conditions) -> None:
        if self.warm_up >= run.rounds:
            raise BadInput("method.warm_up", self.warm_up, f"less than {run.rounds}, the rounds of the run")
        run.training.need_no_adaptation(self.name, "which places clients by gradients over all samples")

    def setup(self, model: FlatModel, initial: Initial) -> State:
        models = initial(0)[None]
        directions = torch.zeros_like(models)[:, : model.parameters]
        return State(models=models, directions=directions, children=torch.zeros(1, dtype=torch.int64))

    def broadcast_for_evaluation(self, now: Round, server: State, client: int) -> Message:
        message = super().broadcast_for_evaluation(now, server, client)
        if not server.children[message["cluster"]]:
            return message
        tree = {"models": server.models, "directions": server.directions, "children": server.children}
        return message | tree

    def aggregate(self, now: Round, server: State, cohort: Cohort) -> Next[State]:
        models, directions, children = list(server.models), list(server.directions), server.children.tolist()
        nodes = np.array([self.cluster(server, k) for k in range(now.clients)])  # [N]
        ids, trained = np.array(cohort.ids), now.model.parameters
        senders, last = server.senders, server.updates
        sent = cohort.stack("model")
        # Running statistics as they are: differences of absent clients would be added again in every round.
        updates = now.model.with_buffers(sent - server.models[nodes[ids]], sent)  # [m, D]
        missed = np.array([children[z] > 0 for z in nodes[ids]])  # absent when their cluster was split
        for k, update in zip(ids[missed], updates[missed]):
            nodes[k] = nearer(server.directions, server.children, nodes[k], update)
        ids, updates = ids[~missed], updates[~missed]
        if self.absent == "stale":
            senders, last = replaced(server.senders, last, ids, updates)
            ids, updates = senders.numpy(), last
        sizes = now.sizes[ids] if self.weighting == "samples" else np.ones(len(ids))
        weights = torch.from_numpy(sizes).to(updates)

        def mean(who: np.ndarray) -> Tensor:
            return weights[who] @ updates[who] / weights[who].sum()

        def moved(w: Tensor, dw: Tensor) -> Tensor:
            return now.model.with_buffers(w + self.server_lr * dw, dw)

        for z in np.unique(nodes[ids]):
            members, w = np.flatnonzero(nodes[ids] == z), models[z]
            dw, second = mean(members), None
            if now.t > self.warm_up:
                second = self.second_part(updates[members, :trained], dw[:trained])
            if second is None:
                models[z] = moved(w, dw)
                continue
            children[z] = len(models)
            for part in (members[~second], members[second]):
                nodes[ids[part]] = len(models)
                models.append(moved(w, mean(part)))
                directions.append(normalize(normalize(updates[part, :trained]).mean(0), dim=0))
                children.append(0)
        after = State(
            models=torch.stack(models),
            directions=torch.stack(directions),
            children=torch.tensor(children),
            assignment=torch.from_numpy(nodes),
            updates=last,
            senders=senders,
        )
        return after, {"splits": (len(models) - len(server.models)) // 2, "clusters": children.count(0)}

    def second_part(self, dw: Tensor, mean: Tensor) -> np.ndarray | None:
        """Mask [m] of the updates ``dw`` [m, P] in a second part, or None if the cluster stays whole."""
        if len(dw) < self.min_size or mean.norm() >= self.eps1 or dw.norm(dim=1).max() <= self.eps2:
            return None
        unit = normalize(dw.double())
        second, across = bipartition((unit @ unit.T).cpu().numpy(), self.linkage)
        return None if self.gamma is not None and self.gamma >= np.sqrt((1 - across) / 2) else second

    def model_for(self, client: Client) -> tuple[Tensor, Tensor]:
        """Descend the tree by gradients if the client's node was split in its absence."""
        z, tree = int(client.received["cluster"]), client.received
        if "children" not in tree:
            return super().model_for(client)
        while tree["children"][z]:
            update = -client.full_gradient(tree["models"][z])
            z = nearer(tree["directions"], tree["children"], z, update)
        return tree["models"][z], torch.tensor(z)


def bipartition(similarity: np.ndarray, linkage: str) -> tuple[np.ndarray, float]:
    """Mask [m] of the second of two parts, by ``similarity`` [m, m], and the largest similarity across."""
    second = cut_into(merge((1 - similarity).clip(0), linkage), 2) == 1
    return second, float(similarity[second][:, ~second].max())


def nearer(directions: Tensor, children: Tensor, z: int, update: Tensor) -> int:
    """The part below node ``z`` whose direction has the larger cosine with ``update`` [D]."""
    first = int(children[z])
    parts = directions[first : first + 2]
    return first + int((parts @ update[: parts.shape[1]]).argmax())
