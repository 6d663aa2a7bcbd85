"""Which clients are related: k-means signatures of their data, distances between these, and a graph.

Source: Jamali-Rad, Abdizadeh, Singh, "Federated Learning with Taskonomy for Non-IID Data", Algorithm 2, and
code github.com/hjraad/FLT. A signature is the k means [k, e] of a client's samples, which are embedded
vectors; clients are as far apart as their signatures, and related below a threshold gamma.
"""

from collections.abc import Sequence

import numpy as np
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.optimize import linear_sum_assignment
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import cdist
from torch import Tensor

from fedflow.errors import BadInput
from fedflow.heterogeneity.centres import k_means
from fedflow.heterogeneity.hierarchy import _numbered, cut_into

DISTANCES = ("matching", "matching_sq", "min_pair")
REDUCERS = ("none", "pca", "umap", "tsne")


def signature(points: Tensor, k: int, rng: np.random.Generator) -> Tensor:
    """Means of the k clusters of ``points`` [n, e]: [min(k, distinct points), e]."""
    distinct = len(points.unique(dim=0))
    return k_means(points, min(k, distinct), rng)[1]


def reduce(points: np.ndarray, reducer: str, dimensions: int, rng: np.random.Generator) -> np.ndarray:
    """``points`` [n, e] in so many dimensions: [n, u]; themselves without a reducer.

    UMAP and t-SNE have their libraries' defaults, but no more neighbours than there are. UMAP embeds the
    points as it fits them (``fit_transform``); the code of FLT fits all means too, but then passes each
    client's through ``transform``, which places them a little differently.
    """
    if reducer == "none":
        return points
    seed = int(rng.integers(2**31))
    if reducer == "umap":
        try:
            from umap import UMAP  # an extra
        except ModuleNotFoundError:
            raise BadInput(
                "method.reducer",
                reducer,
                'none, pca or tsne, unless fedflow is installed as "fedflow[umap]"',
            ) from None
        neighbours = max(2, min(15, len(points) - 1))
        umap = UMAP(n_components=dimensions, n_neighbors=neighbours, random_state=seed, n_jobs=1)
        return umap.fit_transform(points)
    if reducer == "tsne":
        from sklearn.manifold import TSNE  # takes seconds to import

        perplexity = min(30.0, (len(points) - 1) / 3)
        method = "barnes_hut" if dimensions < 4 else "exact"
        return TSNE(dimensions, perplexity=perplexity, method=method, random_state=seed).fit_transform(points)
    from sklearn.decomposition import PCA  # takes seconds to import

    return PCA(min(dimensions, *points.shape), svd_solver="full").fit_transform(points)


def distances(signatures: Sequence[np.ndarray], distance: str = "matching") -> np.ndarray:
    """A [N, N], symmetric with a zero diagonal, of signatures [k_i, u].

    =============== ================================================================================
    ``matching``    sqrt(sum of squared distances of the cheapest one-to-one pairs) / min(k_i, k_j): as the
                    authors' code, and what their tables need
    ``matching_sq`` the same without the root
    ``min_pair``    the closest pair: as the paper prints it
    =============== ================================================================================
    """
    if distance not in DISTANCES:
        raise BadInput("distance", distance, f"one of {', '.join(DISTANCES)}")
    ends = np.cumsum([len(z) for z in signatures])
    points, apart = np.concatenate(signatures), np.zeros((len(signatures),) * 2)
    for i, z in enumerate(signatures[:-1]):
        squares = np.split(cdist(z, points[ends[i] :], "sqeuclidean"), ends[i + 1 : -1] - ends[i], axis=1)
        apart[i, i + 1 :] = [between(block, distance) for block in squares]
    return apart + apart.T


def between(squares: np.ndarray, distance: str) -> float:
    """The distance of two signatures, from the squared distances [k, k'] of their means."""
    if distance == "min_pair":
        return float(np.sqrt(squares.min()))
    total = squares[linear_sum_assignment(squares)].sum()
    return float((np.sqrt(total) if distance == "matching" else total) / min(squares.shape))


def gap(a: np.ndarray) -> float:
    """The threshold in the middle of the largest gap between the distances ``a`` [N, N], the first on ties.

    Without any gap, because all are equal, it is infinite: nothing tells clients apart.
    """
    known = np.sort(a[np.triu_indices(len(a), 1)])
    steps = np.diff(known)
    at = int(steps.argmax()) if len(steps) else 0
    return float(known[at : at + 2].mean()) if len(steps) and steps[at] else np.inf


def graph(a: np.ndarray, gamma: float) -> np.ndarray:
    """Who is related [N, N], bool: those less than ``gamma`` apart, and everybody to itself."""
    return (a < gamma) | np.eye(len(a), dtype=bool)


def alike(related: np.ndarray) -> np.ndarray:
    """A number for every client [N], the same for those with the same row in the graph [N, N]."""
    return _numbered(np.unique(related, axis=0, return_inverse=True)[1].reshape(-1))


def disjoint(related: np.ndarray, number: int | None = None, leaf_order: bool = False) -> np.ndarray:
    """Cluster of every client [N] of a graph ``related`` [N, N], numbered by first member.

    Ward's clustering of its rows, down to so many clusters; without a number the connected components.
    ``leaf_order`` repeats a fault of the authors' code: the i-th leaf of the tree gets client i's cluster.
    """
    if number is None:
        return connected_components(related, directed=False)[1].astype(np.int64)
    tree = linkage(related.astype(np.float64), "ward") if len(related) > 1 else np.empty((0, 4))
    found = cut_into(tree, number)
    if leaf_order and len(tree):
        found = _numbered(found[leaves_list(tree).argsort()])
    return found


def decomposition_error(related: np.ndarray, assignment: np.ndarray) -> float:
    """The share of edges of the graph [N, N], loops included, that run between clusters [N]."""
    across = assignment[:, None] != assignment
    return float((related & across).sum() / related.sum())
