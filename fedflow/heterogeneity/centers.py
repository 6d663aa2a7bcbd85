"""Clustering around centers: k-means of points, k-medoids of a dissimilarity matrix."""

import numpy as np
import torch
from torch import Tensor


def k_means(
    points: Tensor, number: int, rng: np.random.Generator, restarts: int = 10, start: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Clusters [N] of ``points`` [N, F] and their means [number, F]: the best of several k-means++ starts.

    The means are sorted by their first coordinates, so that the numbers of clusters do not depend on the
    order of points; with ``start`` [number, F], these are the first means, and clusters keep their numbers.
    """
    from sklearn.cluster import KMeans  # takes seconds to import

    seed = int(rng.integers(2**31))
    if start is not None:
        solved = KMeans(number, init=start.double().cpu().numpy(), n_init=1, random_state=seed)
        solved.fit(points.double().cpu().numpy())
        return torch.from_numpy(solved.labels_).long(), torch.from_numpy(solved.cluster_centers_).to(points)
    solved = KMeans(number, n_init=restarts, random_state=seed).fit(points.double().cpu().numpy())
    order = np.lexsort(solved.cluster_centers_.T[::-1])
    means = torch.from_numpy(solved.cluster_centers_[order]).to(points)
    return torch.from_numpy(order.argsort()[solved.labels_]), means


def k_medoids(dissimilarity: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Clusters [N] of items with ``dissimilarity`` [N, N], and their medoids [number] (PAM).

    BUILD adds the item that most reduces the summed dissimilarity to the nearest medoid; SWAP makes the best
    exchange of a medoid and another item that reduces it (Kaufman and Rousseeuw 1990). Deterministic; ties go
    to the lowest index.
    """
    d = np.asarray(dissimilarity, dtype=np.float64)
    medoids, nearest = np.empty(0, np.int64), np.full(len(d), np.inf)
    for _ in range(number):
        cost = np.minimum(d, nearest[:, None]).sum(0)
        cost[medoids] = np.inf
        medoids = np.append(medoids, cost.argmin())
        nearest = np.minimum(nearest, d[:, medoids[-1]])
    while True:
        costs = np.full((number, len(d)), np.inf)
        for i in range(number):
            others = d[:, np.delete(medoids, i)].min(1, initial=np.inf)
            costs[i] = np.minimum(d, others[:, None]).sum(0)
        costs[:, medoids] = np.inf
        out, item = divmod(int(costs.argmin()), len(d))
        if not costs[out, item] < d[:, medoids].min(1).sum() * (1 - 1e-12):
            return d[:, medoids].argmin(1), medoids
        medoids[out] = item
