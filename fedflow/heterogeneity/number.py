"""The number of clusters: tight clusters merge, wide ones split (Zhang et al., FedAC, 2024, Algorithm 3).

G = intra / inter of a cluster is the mean squared distance of its members to their centroid, divided by the
mean squared distance of the centroid to the other centroids. It is nan for a single cluster.

G alone does not show whether a cluster holds several groups: it also depends on how long and how strongly
members were pulled to their centroid. `separation` does not, because the pull moves both halves equally.
"""

import numpy as np
import torch
from torch import Tensor

from fedflow.heterogeneity.centers import k_means

SEPARATED = 5.0  # on digits: halves of one group (or of IID clients) have 0.7 to 4, of two 15, of three 9
MANY = 30  # with more points any difference is significant: then only the share of the variance counts


def centroids(points: Tensor, clusters: Tensor) -> tuple[Tensor, Tensor]:
    """Clusters [N] without gaps in their numbers, and the mean [K, F] of the ``points`` [N, F] of each."""
    numbers, clusters = clusters.unique(return_inverse=True)
    return clusters, torch.stack([points[clusters == k].mean(0) for k in range(len(numbers))])


def spread(points: Tensor, clusters: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
    """intra [K] and inter [K], float64 on the CPU."""
    intra = [(points[clusters == k] - c).double().square().sum(1).mean() for k, c in enumerate(centers)]
    inter = [(centers - c).double().square().sum() for c in centers]
    return torch.stack(intra).cpu(), torch.stack(inter).cpu() / (len(centers) - 1)


def merged(clusters: Tensor, g: Tensor, centers: Tensor, below: float) -> Tensor | None:
    """Clusters [N] after the one with the smallest G has joined the nearest, or None if no G is ``below``."""
    if not (g < below).any():
        return None
    k = int(g.nan_to_num(torch.inf).argmin())
    away = (centers - centers[k]).double().square().sum(1)
    away[k] = torch.inf
    return clusters.where(clusters != k, away.argmin().cpu())


def split(
    clusters: Tensor,
    g: Tensor,
    points: Tensor,
    features: Tensor,
    above: float | None,
    rng: np.random.Generator,
) -> Tensor | None:
    """Clusters [N] after the one with the largest G is split by 2-means of ``features`` [N, q], or None.

    A cluster qualifies if its G is ``above`` and it has two distinct feature vectors. If ``above`` is None, G
    must be below 1 (otherwise clusters are no farther apart than members), both halves need two members (a
    single one would be merged again), and their `separation` as ``points`` [N, F] must be large.
    """
    low, high = (0.0, 1.0) if above is None else (above, np.inf)
    for k in g.argsort(descending=True).tolist():
        members = clusters == k
        sized = low < g[k] < high or g[k] == np.inf  # inf: a single cluster that may be split
        if not sized or len(features[members].unique(dim=0)) < 2:
            continue
        halves, _ = k_means(features[members], 2, rng)
        if above is not None or (
            min(halves.bincount()) > 1 and separation(points[members], halves) > SEPARATED
        ):
            return clusters.masked_scatter(members, torch.where(halves == 0, k, len(g)))
    return None


def separation(points: Tensor, halves: Tensor) -> float:
    """Variance of ``points`` [n, F] between two ``halves`` [n] over the variance within; about 1 by chance.

    The pseudo F statistic of Calinski and Harabasz, "A dendrite method for cluster analysis", 1974, with n at
    most ``MANY``. n > 2.
    """
    parts = [points[halves == half].double() for half in (0, 1)]
    within = sum((part - part.mean(0)).square().sum() for part in parts)
    distance = (parts[0].mean(0) - parts[1].mean(0)).square().sum()
    between = distance * len(parts[0]) * len(parts[1]) / len(points)
    return float(between / within * (min(len(points), MANY) - 2))
