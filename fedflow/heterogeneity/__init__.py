"""How much the data of clients differ: subspace angles and distances of distributions."""

from fedflow.heterogeneity.classes import class_proximity, class_super_clusters
from fedflow.heterogeneity.hierarchy import LINKAGES, clusters, cut, cut_into, largest_gap, merge, sweep
from fedflow.heterogeneity.subspace import MODES, extend, principal_angles, proximity, signature

__all__ = [
    "LINKAGES",
    "MODES",
    "class_proximity",
    "class_super_clusters",
    "clusters",
    "cut",
    "cut_into",
    "extend",
    "largest_gap",
    "merge",
    "principal_angles",
    "proximity",
    "signature",
    "sweep",
]
