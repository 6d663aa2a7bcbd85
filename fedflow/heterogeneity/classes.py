"""Super clusters: groups of classes with images in similar subspaces.

Morafah et al., "Rethinking Data Heterogeneity in Federated Learning", 2022.
"""

import numpy as np

from fedflow.errors import BadInput
from fedflow.heterogeneity.hierarchy import cut, cut_into, largest_gap, merge
from fedflow.heterogeneity.subspace import proximity, signature


def class_proximity(x: np.ndarray, y: np.ndarray, p: int = 3, mode: str = "entry_min_abs") -> np.ndarray:
    """Angles in degrees [K, K] between the classes of samples ``x`` [n, ...] with labels ``y`` [n] = 0..K-1.

    Pixels are used unscaled, 0..255, and not centered, as in the released code.
    """
    counts = np.bincount(y)
    if not counts.all():
        raise BadInput("y", f"no sample of class {int(np.argmin(counts))}", "samples of every class")
    return proximity([signature(x[y == c], p) for c in range(len(counts))], mode=mode)


def class_super_clusters(
    x: np.ndarray,
    y: np.ndarray,
    p: int = 3,
    threshold: float | None = None,
    number: int | None = None,
    linkage: str = "wpgma",
) -> list[list[int]]:
    """Groups of classes, each sorted, in the order of their first class.

    These are the clusters at ``threshold`` degrees (smaller: more groups, a harder partition), or ``number``
    clusters; without either, the clusters at the largest gap of the merge heights.
    """
    if threshold is not None and number is not None:
        raise BadInput("number", number, "null, because a threshold is given")
    tree = merge(class_proximity(x, y, p), linkage)
    if number is not None:
        member = cut_into(tree, number)
    else:
        member = cut(tree, largest_gap(tree) if threshold is None else threshold)
    return [np.flatnonzero(member == group).tolist() for group in range(member.max() + 1)]
