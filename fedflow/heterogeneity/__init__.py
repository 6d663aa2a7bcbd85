"""How different the data of clients are: subspace angles, distances of distributions, comparisons."""

from fedflow.heterogeneity.classes import class_proximity, class_super_clusters
from fedflow.heterogeneity.compare import MEASURES, Comparison, compare, table
from fedflow.heterogeneity.hierarchy import LINKAGES, clusters, cut, cut_into, largest_gap, merge, sweep
from fedflow.heterogeneity.subspace import MODES, extend, principal_angles, proximity, signature

__all__ = [
    "LINKAGES",
    "MEASURES",
    "MODES",
    "Comparison",
    "class_proximity",
    "class_super_clusters",
    "clusters",
    "compare",
    "cut",
    "cut_into",
    "extend",
    "largest_gap",
    "merge",
    "principal_angles",
    "proximity",
    "signature",
    "sweep",
    "table",
]
