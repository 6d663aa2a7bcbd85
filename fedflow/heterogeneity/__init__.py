"""Differences between the data of clients: subspace angles and distances of distributions."""

from fedflow.heterogeneity.classes import class_proximity, class_super_clusters
from fedflow.heterogeneity.distances import (
    bhattacharyya,
    gaussian_kl,
    gradient_diversity,
    gradient_spread,
    linear_cka,
    mmd,
    sliced_wasserstein,
    weight_divergence,
)
from fedflow.heterogeneity.hierarchy import LINKAGES, clusters, cut, cut_into, largest_gap, merge, sweep
from fedflow.heterogeneity.subspace import MODES, extend, principal_angles, proximity, signature

__all__ = [
    "LINKAGES",
    "MODES",
    "bhattacharyya",
    "class_proximity",
    "class_super_clusters",
    "clusters",
    "cut",
    "cut_into",
    "extend",
    "gaussian_kl",
    "gradient_diversity",
    "gradient_spread",
    "largest_gap",
    "linear_cka",
    "merge",
    "mmd",
    "principal_angles",
    "proximity",
    "signature",
    "sliced_wasserstein",
    "sweep",
    "weight_divergence",
]
