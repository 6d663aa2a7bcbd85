"""Related clients: k-means signatures of their data, the distances of these, and a graph.

Source: Jamali-Rad, Abdizadeh, Singh, "Federated Learning with Taskonomy for Non-IID Data", Algorithm 2, and
code github.com/hjraad/FLT. A signature is the k means [k, e] of a client's embedded samples. Two
clients are related if the distance of their signatures is below a threshold gamma.
"""

from collections.abc import Sequence

import numpy as np
import scipy
import torch
from torch import Tensor

from fedflow.errors import BadInput
from fedflow.heterogeneity.centers import k_means
from fedflow.heterogeneity.hierarchy import cut_into, renumbered
from fedflow.project.distribution import extra

DISTANCES = ("matching", "matching_sq", "min_pair")
REDUCERS = ("none", "pca", "umap", "tsne")


def signature(points: Tensor, k: int, rng: np.random.Generator) -> Tensor:
    """Means of the k clusters of ``points`` [n, e]: [min(k, distinct points), e]."""
    distinct = len(points.unique(dim=0))
    return k_means(points, min(k, distinct), rng)[1]


def reduce(points: np.ndarray, reducer: str, dimensions: int, rng: np.random.Generator) -> np.ndarray:
    """``points`` [n, e] reduced to ``dimensions`` [n, u]; unchanged if ``reducer`` is "none".

    UMAP and t-SNE use their libraries' defaults, with no more neighbors than points. UMAP fits and embeds all
    points at once (``fit_transform``); FLT's code fits all means too, but then passes each client's means
    through ``transform``, which gives slightly different positions.
    """
    if reducer == "none":
        return points
    seed = int(rng.integers(2**31))
    if reducer == "umap":
        try:
            from umap import UMAP  # an extra
        except ModuleNotFoundError:
            accepted = f"none, pca or tsne, unless fedflow is installed as by {extra('umap')}"
            raise BadInput("method.reducer", reducer, accepted) from None
        neighbors = max(2, min(15, len(points) - 1))
        umap = UMAP(n_components=dimensions, n_neighbors=neighbors, random_state=seed, n_jobs=1)
        threads = torch.get_num_threads()
        try:
            return umap.fit_transform(points)
        finally:
            torch.set_num_threads(threads)  # numba, which UMAP runs on, gives OpenMP all processors
    if reducer == "tsne":
        from sklearn.manifold import TSNE  # takes seconds to import

        perplexity = min(30.0, (len(points) - 1) / 3)
        method = "barnes_hut" if dimensions < 4 else "exact"
        return TSNE(dimensions, perplexity=perplexity, method=method, random_state=seed).fit_transform(points)
    from sklearn.decomposition import PCA  # takes seconds to import

    return PCA(min(dimensions, *points.shape), svd_solver="full").fit_transform(points)


def distances(signatures: Sequence[np.ndarray], distance: str = "matching") -> np.ndarray:
    """Distances [N, N] of all signatures [k_i, u], symmetric with a zero diagonal.

    =============== ================================================================================
    ``matching``    sqrt(sum of squared distances of the cheapest one-to-one pairs) / min(k_i, k_j): as in
                    the authors' code and their tables
    ``matching_sq`` the same without the root
    ``min_pair``    the closest pair: as printed in the paper
    =============== ================================================================================
    """
    if distance not in DISTANCES:
        raise BadInput("distance", distance, f"one of {', '.join(DISTANCES)}")
    ends = np.cumsum([len(z) for z in signatures])
    points, upper = np.concatenate(signatures), np.zeros((len(signatures),) * 2)
    for i, z in enumerate(signatures[:-1]):
        squares = np.split(
            scipy.spatial.distance.cdist(z, points[ends[i] :], "sqeuclidean"),
            ends[i + 1 : -1] - ends[i],
            axis=1,
        )
        upper[i, i + 1 :] = [between(block, distance) for block in squares]
    return upper + upper.T


def between(squares: np.ndarray, distance: str) -> float:
    """The distance of two signatures, from the squared distances [k, k'] of their means."""
    if distance == "min_pair":
        return float(np.sqrt(squares.min()))
    total = squares[scipy.optimize.linear_sum_assignment(squares)].sum()
    return float((np.sqrt(total) if distance == "matching" else total) / min(squares.shape))


def largest_gap(distances: np.ndarray) -> float:
    """The middle of the largest gap between sorted ``distances`` [N, N]; the first one on ties.

    Infinite if there is no gap because all distances are equal: then all clients are related.
    """
    ascending = np.sort(distances[np.triu_indices(len(distances), 1)])
    steps = np.diff(ascending)
    at = int(steps.argmax()) if len(steps) else 0
    return float(ascending[at : at + 2].mean()) if len(steps) and steps[at] else np.inf


def graph(distances: np.ndarray, gamma: float) -> np.ndarray:
    """The adjacency matrix [N, N], bool: True for distances below ``gamma``, and on the diagonal."""
    return (distances < gamma) | np.eye(len(distances), dtype=bool)


def equal_rows(adjacency: np.ndarray) -> np.ndarray:
    """Numbers [N] of clients, equal for clients with equal rows of the adjacency matrix [N, N]."""
    return renumbered(np.unique(adjacency, axis=0, return_inverse=True)[1].reshape(-1))


def disjoint(adjacency: np.ndarray, number: int | None = None, leaf_order: bool = False) -> np.ndarray:
    """Cluster of every client [N] of an adjacency matrix [N, N], numbered by first member.

    ``number`` clusters by Ward's clustering of its rows, or the connected components if it is None.
    ``leaf_order`` reproduces a bug in the authors' code: the i-th leaf of the tree gets client i's cluster.
    """
    if number is None:
        return scipy.sparse.csgraph.connected_components(adjacency, directed=False)[1].astype(np.int64)
    if len(adjacency) == 1:
        return cut_into(np.empty((0, 4)), number)
    tree = scipy.cluster.hierarchy.linkage(adjacency.astype(np.float64), "ward")
    clusters = cut_into(tree, number)
    if leaf_order:
        clusters = renumbered(clusters[scipy.cluster.hierarchy.leaves_list(tree).argsort()])
    return clusters


def decomposition_error(adjacency: np.ndarray, assignment: np.ndarray) -> float:
    """The share of edges of an adjacency matrix [N, N], loops included, between the clusters [N]."""
    across = assignment[:, None] != assignment
    return float((adjacency & across).sum() / adjacency.sum())
