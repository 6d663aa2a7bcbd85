"""Partition schemes, one file each. Importing this package registers them all."""

from fedflow.partition import (  # noqa: F401
    acid,
    attributes,
    dirichlet,
    dirichlet_clients,
    dirichlet_disjoint,
    dirichlet_exact,
    domains,
    given,
    iid,
    kway,
    label_groups,
    label_shares,
    label_skew,
    natural,
    noniid1,
    shards,
    structured,
    structured_as_published,
    super_clusters,
)
from fedflow.partition.params import PartitionParams
from fedflow.partition.partition import Partition, load_partition, make_partition
from fedflow.partition.scheme import SCHEMES, Samples, Scheme, Split

__all__ = [
    "SCHEMES",
    "Partition",
    "PartitionParams",
    "Samples",
    "Scheme",
    "Split",
    "load_partition",
    "make_partition",
]
