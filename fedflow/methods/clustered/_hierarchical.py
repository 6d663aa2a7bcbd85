"""Base of methods that cluster clients once, before the first round, by hierarchical clustering of a matrix.

Every cluster starts from the common initial model. Newcomers are appended to the matrix.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import scipy
import torch
from torch import Tensor
from typing_extensions import TypeVar

from fedflow.heterogeneity import LINKAGES, clusters, cut, merge
from fedflow.methods.clustered._assigned import Assigned, AssignedState
from fedflow.methods.method import Cohort, Round
from fedflow.methods.protocols import Dissimilarity, Onboarding
from fedflow.settings import option


@dataclass(frozen=True, kw_only=True)
class HierarchicalState(AssignedState):
    initial: Tensor  # [D], the common initial model
    proximity: Tensor | None = None  # [N, N], the dissimilarities; None before the onboarding

    @property
    def matrix(self) -> np.ndarray:
        """The dissimilarities, after the onboarding."""
        assert self.proximity is not None
        return self.proximity.cpu().numpy()


H = TypeVar("H", bound=HierarchicalState, default=HierarchicalState)


class Hierarchical(Onboarding, Assigned[H]):
    """Subclasses define the dissimilarity of clients and the height of the cut."""

    unit: ClassVar[str] = "dissimilarity"

    linkage: str = option(
        "wpgma", "distance between clusters", choices=tuple(LINKAGES), source="authors' code of PACFL"
    )
    assign: str = option(
        "attach",
        "newcomers join the closest cluster within the threshold or form one; or all are clustered again",
        choices=("attach", "rehc"),
    )

    def measure(self, now: Round, server: H, cohort: Cohort) -> H:
        """The state with the ``proximity`` of earlier clients and the cohort, and the data behind it."""
        raise NotImplementedError

    def height(self, tree: np.ndarray) -> float:
        """The height up to which clusters are merged."""
        raise NotImplementedError

    def cut(self, tree: np.ndarray, height: float) -> np.ndarray:
        """Clusters of all clients, numbered by first member."""
        return cut(tree, height)

    def onboarding_aggregate(self, now: Round, phase: int, server: H, cohort: Cohort) -> H:
        measured = self.measure(now, server, cohort)
        return self.join(measured, now.clients) if cohort.newcomers else self.form(measured)

    def form(self, server: H) -> H:
        """The clusters of all clients, each with the common initial model."""
        tree = merge(server.matrix, self.linkage)
        assignment = self.cut(tree, self.height(tree))
        models = server.initial.repeat(assignment.max() + 1, 1)
        return replace(server, models=models, assignment=torch.from_numpy(assignment))

    def join(self, server: H, clients: int) -> H:
        """Add the newcomers, whose rows follow the first ``clients`` (N) rows of the matrix.

        A cluster of newcomers alone starts from the common initial model.
        """
        assert server.assignment is not None
        proximity, before = server.matrix, server.assignment[:clients].cpu().numpy()
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
        return replace(server, models=torch.stack(models), assignment=torch.from_numpy(after))

    def dissimilarity(self, server: H) -> Dissimilarity:
        matrix = server.matrix
        height = self.height(merge(matrix, self.linkage))
        cut = height if np.isfinite(height) else None
        return Dissimilarity(matrix, range(len(matrix)), self.unit, self.linkage, cut)

    def attach(self, proximity: np.ndarray, assignment: np.ndarray, tree: np.ndarray) -> np.ndarray:
        """Clusters of the newcomers [B]; the ``assignment`` [N] of the clients does not change."""
        clients, height = len(assignment), self.height(tree)
        distances = linkage_distances(proximity[clients:, :clients], assignment, tree, self.linkage)
        joined: np.ndarray = distances.argmin(1)
        alone = np.flatnonzero(distances.min(1) > height)
        if len(alone):
            among = proximity[clients + alone][:, clients + alone]
            joined[alone] = distances.shape[1] + clusters(among, height, self.linkage)
        return joined

    def recluster(
        self, proximity: np.ndarray, before: np.ndarray, height: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Clusters of all [N + B] at the old ``height``, with the numbers of the old ones they overlap most.

        Also the overlaps [Z', Z] with the old clusters. Warns if clients ``before`` [N] moved.
        """
        after = self.cut(merge(proximity, self.linkage), height)
        clients, old = len(before), before.max() + 1
        overlap = np.zeros((after.max() + 1, old), dtype=np.int64)
        np.add.at(overlap, (after[:clients], before), 1)
        names = np.full(len(overlap), -1)
        for z, name in zip(*scipy.optimize.linear_sum_assignment(overlap, maximize=True)):
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
    """Distances [B, Z] of newcomers to clusters, the ``assignment`` [N] that ``tree`` was cut into.

    ``d`` [B, N] are their distances to the clients. Clusters are merged in the order of the tree, which
    matters for wpgma.
    """
    join: dict[str, Callable[[np.ndarray, int, np.ndarray, int], np.ndarray]] = {
        "single": lambda x, m, y, n: np.minimum(x, y),
        "complete": lambda x, m, y, n: np.maximum(x, y),
        "upgma": lambda x, m, y, n: (m * x + n * y) / (m + n),
        "wpgma": lambda x, m, y, n: (x + y) / 2,
    }
    nodes = [(d[:, k], 1, int(z)) for k, z in enumerate(assignment)]
    distances = {z: distance for distance, _, z in nodes}
    for a, b in tree[:, :2].astype(int):
        (x, m, z), (y, n, other) = nodes[a], nodes[b]
        z = z if z == other else -1  # parts of two clusters
        nodes.append((join[linkage](x, m, y, n), m + n, z))
        distances[z] = nodes[-1][0]
    return np.stack([distances[z] for z in range(assignment.max() + 1)], 1)
