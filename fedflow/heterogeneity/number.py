"""How many clusters: tight ones are merged, wide ones split (Zhang et al., FedAC, 2024, Algorithm 3).

G = intra / inter of a cluster is the mean squared distance of its members to their centroid, over that of the
centroid to the other ones. One cluster of everybody has none: nan.
"""

import numpy as np
import torch
from torch import Tensor

from fedflow.heterogeneity.centres import k_means


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
    clusters: Tensor, g: Tensor, features: Tensor, above: float, rng: np.random.Generator
) -> Tensor | None:
    """Clusters [N] after that with the largest G is split; None if none is ``above``.

    By 2-means of the ``features`` [N, q]; one whose members are all the same there leaves it to the next.
    """
    for k in g.argsort(descending=True).tolist():
        members = clusters == k
        if g[k] > above and len(features[members].unique(dim=0)) > 1:
            halves, _ = k_means(features[members], 2, rng)
            return clusters.masked_scatter(members, torch.where(halves == 0, k, len(g)))
    return None
