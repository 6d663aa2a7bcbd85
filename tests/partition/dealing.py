"""What the tests of partitions share: labels dealt to clients, and what the clients then hold."""

from collections.abc import Sequence

import numpy as np

from fedflow.partition import Partition, PartitionParams, Samples, Scheme, make_partition


def deal(scheme: Scheme, labels: np.ndarray, clients: int = 100, seed: int = 0) -> list[np.ndarray]:
    """The training samples of every client."""
    return scheme.split(Samples(labels), clients, np.random.default_rng(seed)).train


def make(samples: Samples, scheme: str, **entry: object) -> Partition:
    """The partition of an entry of ``params.yaml``."""
    return make_partition(PartitionParams.parse({"dataset": "d", "scheme": scheme, **entry}), samples)


def part_sizes(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.array([len(rows) for rows in parts])


def label_counts(labels: np.ndarray, parts: Sequence[np.ndarray]) -> np.ndarray:
    """Samples of every label that a client holds [N, K]."""
    return np.array([np.bincount(labels[rows], minlength=labels.max() + 1) for rows in parts])


def equal(parts: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> bool:
    return len(parts) == len(others) and all(map(np.array_equal, parts, others))


def disjoint(parts: Sequence[np.ndarray]) -> bool:
    everything = np.concatenate(parts)
    return np.unique(everything).size == everything.size
