"""Graph coresets (SCGIGA): few nodes that represent a graph, and procedures that evaluate them."""

from fedflow.procedures.coresets.baselines import BASELINES, Problem
from fedflow.procedures.coresets.gcn import CoresetGCN
from fedflow.procedures.coresets.graph import (
    Operator,
    block_model,
    gaussian_mixture,
    knn_graph,
    power_law_tree,
    random_graph,
    read_adjacency,
    read_cora,
    read_edges,
)
from fedflow.procedures.coresets.mean import Coreset
from fedflow.procedures.coresets.select import Selection, begin, pick, select
from fedflow.procedures.coresets.table import Choice, choose, read_table

__all__ = [
    "BASELINES",
    "Choice",
    "Coreset",
    "CoresetGCN",
    "Operator",
    "Problem",
    "Selection",
    "begin",
    "block_model",
    "choose",
    "gaussian_mixture",
    "knn_graph",
    "pick",
    "power_law_tree",
    "random_graph",
    "read_adjacency",
    "read_cora",
    "read_edges",
    "read_table",
    "select",
]
