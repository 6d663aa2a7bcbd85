"""How many clusters: tight ones are merged, wide ones split (Zhang et al., FedAC, 2024, Algorithm 3).

G = intra / inter of a cluster is the mean squared distance of its members to their centroid, over that of the
centroid to the other ones. One cluster of everybody has none: nan.

G alone does not tell whether a cluster holds several groups: it also depends on how long and how strongly
members were pulled to their centroid. `apart` does not, since the pull moves both halves alike.
"""

import numpy as np
import torch
from torch import Tensor

from fedflow.heterogeneity.centres import k_means

APART = 5.0  # on digits halves of one group or an IID federation have 0.7 to 4, of two groups 15, of three 9
MANY = 30  # more points make any difference significant: beyond, only the share of the variance counts


def centroids(points: Tensor, clusters: Tensor) -> tuple[Tensor, Tensor]:
    """Clusters [N] without gaps in their numbers, and the mean [K, F] of the ``points`` [N, F] of each."""
    numbers, clusters = clusters.unique(return_inverse=True)
    return clusters, torch.stack([points[clusters == k].mean(0) for k in range(len(numbers))])


def spread(points: Tensor, clusters: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """intra [K] and inter [K], float64 on the CPU."""
    intra = [(points[clusters == k] - c).double().square().sum(1).mean() for k, c in enumerate(centres)]
    inter = [(centres - c).double().square().sum() for c in centres]
    return torch.stack(intra).cpu(), torch.stack(inter).cpu() / (len(centres) - 1)


def merged(clusters: Tensor, g: Tensor, centres: Tensor, below: float) -> Tensor | None:
    """Clusters [N] after that with the smallest G has joined the nearest; None if none is ``below``."""
    if not (g < below).any():
        return None
    k = int(g.nan_to_num(torch.inf).argmin())
    away = (centres - centres[k]).double().square().sum(1)
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
    """Clusters [N] after that with the largest G is split; None if none is ``above``.

    By 2-means of the ``features`` [N, q]; one whose members are all the same there leaves it to the next.
    Without ``above`` so does one whose G is 1 or more, as clusters are then no farther apart than members,
    and one whose halves are not `apart` as ``points`` [N, F] or have one member, which would be merged again.
    """
    low, high = (0.0, 1.0) if above is None else (above, np.inf)
    for k in g.argsort(descending=True).tolist():
        members = clusters == k
        sized = low < g[k] < high or g[k] == np.inf  # that of a single cluster that may be split
        if not sized or len(features[members].unique(dim=0)) < 2:
            continue
        halves, _ = k_means(features[members], 2, rng)
        if above is not None or (min(halves.bincount()) > 1 and apart(points[members], halves) > APART):
            return clusters.masked_scatter(members, torch.where(halves == 0, k, len(g)))
    return None


def apart(points: Tensor, halves: Tensor) -> float:
    """Variance of ``points`` [n, F] between two ``halves`` [n] over that within, n > 2: about 1 by chance.

    The pseudo F statistic of Calinski and Harabasz, "A dendrite method for cluster analysis", 1974; of more
    than ``MANY`` points that of as many.
    """
    parts = [points[halves == half].double() for half in (0, 1)]
    within = sum((part - part.mean(0)).square().sum() for part in parts)
    distance = (parts[0].mean(0) - parts[1].mean(0)).square().sum()
    between = distance * len(parts[0]) * len(parts[1]) / len(points)
    return float(between / within * (min(len(points), MANY) - 2))
