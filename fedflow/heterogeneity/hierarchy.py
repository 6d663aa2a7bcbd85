"""Agglomerative clustering of a matrix of dissimilarities, cut at a threshold.

Every item starts as a cluster; the closest two clusters merge while their distance is at most ``beta``. The
distance of two clusters is the smallest (``single``), the largest (``complete``) or the mean (``upgma``) over
all pairs of members, or the unweighted mean of the two rows that were merged (``wpgma``, the "average" of the
released PACFL). The algorithm and its order of ties are SciPy's.
"""

from collections.abc import Sequence

import numpy as np
import scipy

from fedflow.errors import BadInput, unknown_name

LINKAGES = {"single": "single", "complete": "complete", "upgma": "average", "wpgma": "weighted"}


def merge(dissimilarity: np.ndarray, method: str = "wpgma") -> np.ndarray:
    """The tree of all merges of the symmetric ``dissimilarity`` [N, N], as SciPy's linkage matrix [N - 1, 4].

    Column 2 holds the merge heights, never decreasing. ``method`` is one of `LINKAGES`.
    """
    if method not in LINKAGES:
        raise unknown_name("linkage", method, LINKAGES)
    matrix = np.asarray(dissimilarity, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not np.allclose(matrix, matrix.T):
        raise BadInput("dissimilarity", matrix.shape, "a symmetric matrix [N, N]")
    if not np.isfinite(matrix).all():
        raise BadInput("dissimilarity", "nan or inf", "finite numbers")
    if len(matrix) == 1:
        return np.empty((0, 4))
    pairs = scipy.spatial.distance.squareform(matrix, checks=False)
    return scipy.cluster.hierarchy.linkage(pairs, LINKAGES[method])


def cut(tree: np.ndarray, beta: float) -> np.ndarray:
    """Cluster of every item [N] after all merges up to height ``beta``, numbered by first member."""
    if not len(tree):
        return np.zeros(1, dtype=np.int64)
    return renumbered(scipy.cluster.hierarchy.fcluster(tree, beta, "distance"))


def cut_into(tree: np.ndarray, number: int) -> np.ndarray:
    """Cluster of every item [N] after the merges that leave ``number`` clusters, numbered by first member.

    Merges of equal height are made one after the other, in the order of the tree.
    """
    items = len(tree) + 1
    if not 1 <= number <= items:
        raise BadInput("number", number, f"a whole number from 1 to {items}")
    ranks = tree.copy()
    ranks[:, 2] = np.arange(1, items)
    return cut(ranks, items - number + 0.5)


def clusters(dissimilarity: np.ndarray, beta: float, method: str = "wpgma") -> np.ndarray:
    """Cluster of every item [N] at threshold ``beta``: `merge`, then `cut`."""
    return cut(merge(dissimilarity, method), beta)


def sweep(tree: np.ndarray, betas: Sequence[float] | np.ndarray) -> np.ndarray:
    """The number of clusters at each threshold, int64: never increasing in ``betas``."""
    return len(tree) + 1 - np.searchsorted(tree[:, 2], np.asarray(betas), side="right")


def largest_gap(tree: np.ndarray) -> float:
    """The middle of the largest gap between consecutive merge heights; the first one on ties."""
    if len(tree) < 2:
        raise BadInput("items", len(tree) + 1, "at least 3: a gap needs two merges")
    heights = tree[:, 2]
    at = int(np.diff(heights).argmax())
    return float(heights[at : at + 2].mean())


def renumbered(labels: np.ndarray) -> np.ndarray:
    """The same clusters, numbered 0, 1, ... by first member."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]
