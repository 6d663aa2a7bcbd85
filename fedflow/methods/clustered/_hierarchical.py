"""Methods that cluster clients once, before the first round, by hierarchical clustering of a matrix.

Server state: that of `Assigned`, the matrix ``proximity`` [N, N] of dissimilarities, and the common first
model ``initial`` [D], from which every cluster starts. Newcomers extend the matrix; the first N numbers of
what is stored stay those of the clients that took part.
"""

import warnings
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedflow.heterogeneity import LINKAGES, clusters, cut, merge
from fedflow.methods.base import Cohort, Dissimilarity, Server
from fedflow.methods.clustered._assigned import Assigned
from fedflow.models.flat import FlatModel
from fedflow.settings import option


class Hierarchical(Assigned):
    """Base of these methods: they measure how far clients are apart, and say at which height to cut."""

    unit: ClassVar[str] = "dissimilarity"

    linkage: str = option(
        "wpgma", "distance of two clusters; wpgma = the mean of two rows, whatever their sizes",
        choices=tuple(LINKAGES), source="authors' code of PACFL",
    )  # fmt: skip
    assign: str = option(
        "attach",
        "newcomers: join the closest cluster within the threshold, else open their own; or all anew",
        choices=("attach", "rehc"), source="rehc: PACFL, Algorithm 9",
    )  # fmt: skip

    def setup(self, model: FlatModel, initial: Callable[[int], Tensor]) -> State:
        return super().setup(model, initial) | {"initial": initial(0)}

    def onboarding_phases(self) -> int:
        return 1

    def measure(self, server: Server, cohort: Cohort) -> tuple[Server, np.ndarray]:
        """What is remembered of the cohort, and the dissimilarities of all clients met so far and it."""
        raise NotImplementedError

    def height(self, tree: np.ndarray) -> float:
        """Up to where clusters are merged."""
        raise NotImplementedError

    def cut(self, tree: np.ndarray, height: float) -> np.ndarray:
        """Cluster of every client, numbered by first member."""
        return cut(tree, height)

    def onboarding_aggregate(self, now: Round, phase: int, server: State, cohort: Cohort) -> State:
        known, proximity = self.measure(server, cohort)
        late = cohort.newcomers
        assignment, models = (self.join if late else self.form)(server, proximity, now.clients)
        return server | known | {
            "proximity": torch.from_numpy(proximity), "assignment": torch.from_numpy(assignment),
            "models": models,
        }  # fmt: skip

    def form(self, server: Server, proximity: np.ndarray, clients: int) -> tuple[np.ndarray, Tensor]:
        """Clusters of the clients [N], and their models [Z, D]: all the common first model."""
        tree = merge(proximity, self.linkage)
        assignment = self.cut(tree, self.height(tree))
        return assignment, server.initial.repeat(assignment.max() + 1, 1)

    def join(self, server: Server, proximity: np.ndarray, clients: int) -> tuple[np.ndarray, Tensor]:
        """Clusters [N + B] of clients and newcomers, whose matrix is ``proximity``, and their models [Z', D].

        A cluster of newcomers only starts from the common first model.
        """
        before = server.assignment[:clients].cpu().numpy()
        tree = merge(proximity[:clients, :clients], self.linkage)
        if self.assign == "attach":
            after = np.concatenate([before, self.attach(proximity, before, tree)])
            overlap = np.zeros((after.max() + 1, before.max() + 1))
        else:
            after, overlap = self.recluster(proximity, before, self.height(tree))
        models = list(server.models)
        for z in range(len(models), after.max() + 1):
            origin = models[overlap[z].argmax()] if overlap[z].any() else server.initial
            models.append(origin)
        return after, torch.stack(models)

    def dissimilarity(self, server: Server) -> Dissimilarity:
        matrix = server.proximity.cpu().numpy()
        height = self.height(merge(matrix, self.linkage))
        cut_at = height if np.isfinite(height) else None
        return Dissimilarity(matrix, range(len(matrix)), self.unit, self.linkage, cut_at)

    def attach(self, proximity: np.ndarray, assignment: np.ndarray, tree: np.ndarray) -> np.ndarray:
        """Clusters of the newcomers [B]; those of the clients ``assignment`` [N] stay."""
        clients, height = len(assignment), self.height(tree)
        distances = linkage_distances(proximity[clients:, :clients], assignment, tree, self.linkage)
        joined = distances.argmin(1)
        alone = np.flatnonzero(distances.min(1) > height)
        if len(alone):
            among = proximity[clients + alone][:, clients + alone]
            joined[alone] = distances.shape[1] + clusters(among, height, self.linkage)
        return joined

    def recluster(
        self, proximity: np.ndarray, before: np.ndarray, height: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Clusters of everybody [N + B] at the old ``height``, named as the old ones that they overlap most.

        Also how many members [Z', Z] of every old cluster each has. Warns if clients ``before`` [N] moved.
        """
        after = self.cut(merge(proximity, self.linkage), height)
        clients, old = len(before), before.max() + 1
        overlap = np.zeros((after.max() + 1, old), dtype=np.int64)
        np.add.at(overlap, (after[:clients], before), 1)
        names = np.full(len(overlap), -1)
        for z, name in zip(*linear_sum_assignment(overlap, maximize=True)):
            names[z] = name if overlap[z, name] else -1
        names[names < 0] = old + np.arange((names < 0).sum())
        after = names[after]
        moved = int((after[:clients] != before).sum())
        if moved:
            warnings.warn(
                f"{self.name}: {moved} clients changed their cluster as newcomers joined", stacklevel=2
            )
        members = np.zeros((names.max() + 1, old), dtype=np.int64)
        members[names] = overlap
        return after, members


def linkage_distances(d: np.ndarray, assignment: np.ndarray, tree: np.ndarray, linkage: str) -> np.ndarray:
    """Distances [B, Z] of newcomers to the clusters ``assignment`` [N] that ``tree`` was cut into.

    ``d`` [B, N] are their distances to the clients. Clusters are put together as the tree did, because
    wpgma depends on the order.
    """
    join: dict[str, Callable[[np.ndarray, int, np.ndarray, int], np.ndarray]] = {
        "single": lambda x, m, y, n: np.minimum(x, y),
        "complete": lambda x, m, y, n: np.maximum(x, y),
        "upgma": lambda x, m, y, n: (m * x + n * y) / (m + n),
        "wpgma": lambda x, m, y, n: (x + y) / 2,
    }
    nodes = [(d[:, k], 1, int(z)) for k, z in enumerate(assignment)]
    found = {z: distance for distance, _, z in nodes}
    for a, b in tree[:, :2].astype(int):
        (x, m, z), (y, n, other) = nodes[a], nodes[b]
        z = z if z == other else -1  # parts of two clusters
        nodes.append((join[linkage](x, m, y, n), m + n, z))
        found[z] = nodes[-1][0]
    return np.stack([found[z] for z in range(assignment.max() + 1)], 1)
