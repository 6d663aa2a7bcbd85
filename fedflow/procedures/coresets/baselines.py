"""Baselines that choose nodes and weights (Section 6.6), all with the same signature.

They return distinct indices and their weights >= 0, both [k], or fewer if a method stops early.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Any

import numpy as np
import scipy
from scipy import sparse
from threadpoolctl import threadpool_limits

from fedflow.errors import BadInput
from fedflow.procedures.coresets.graph import BLOCK, Operator, checked
from fedflow.procedures.coresets.select import TOLERANCE, check_picks, select

Chosen = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Problem:
    """A graph and its walk, with the ``points`` [n, d] of a point cloud and ``costs`` [n], if any."""

    adjacency: sparse.csr_array
    operator: Operator
    points: np.ndarray | None = None
    costs: Any = None
    kappa: float = 1.0


Choose = Callable[[Problem, int, np.random.Generator], Chosen]


def giga(problem: Problem, k: int, rng: np.random.Generator) -> Chosen:
    """Greedy iterative geodesic ascent: the best aligned node, regardless of its cost."""
    return _selected(select(problem.operator, k).weights())


def scgiga(problem: Problem, k: int, rng: np.random.Generator) -> Chosen:
    """The cheapest node that is aligned almost as well as the best one (Algorithm 12)."""
    return _selected(select(problem.operator, k, problem.costs, problem.kappa).weights())


def frank_wolfe(problem: Problem, k: int, rng: np.random.Generator) -> Chosen:
    """Frank-Wolfe on ||P^l w - 1/n|| over w >= 0 with sum_i c_i w_i = sigma, c_i the norm of column i.

    Differs from the print: sigma is sum_i c_i / n. The printed sum_i c_i fits the target sum_i P_i.
    """
    return _selected(_frank_wolfe(problem.operator, k))


def frank_wolfe_shares(problem: Problem, k: int, rng: np.random.Generator) -> Chosen:
    """The nodes of Frank-Wolfe, weighted by the share of nodes that are nearest to them on the graph."""
    nodes = np.flatnonzero(_frank_wolfe(problem.operator, k))
    return nodes, _graph_shares(problem.adjacency, nodes)


def kmeans(problem: Problem, k: int, rng: np.random.Generator) -> Chosen:
    """The point nearest to each center of k-means, weighted by the share of its cluster.

    Without points, k-means runs on the embedding of ``spectral``.
    """
    points = _embedding(problem.adjacency, k) if problem.points is None else problem.points
    return _clustered(points, k, rng)


def spectral(problem: Problem, k: int, rng: np.random.Generator) -> Chosen:
    """K-means on the top ``k`` eigenvectors of the normalized adjacency D^{-1/2} A D^{-1/2}, as above."""
    return _clustered(_embedding(problem.adjacency, k), k, rng)


def random(problem: Problem, k: int, rng: np.random.Generator) -> Chosen:
    """Nodes drawn uniformly without replacement, weighted 1/k."""
    return np.sort(rng.choice(problem.operator.n, k, replace=False)), np.full(k, 1 / k)


def betweenness(problem: Problem, k: int, rng: np.random.Generator) -> Chosen:
    """The nodes on most shortest paths (unweighted), the first on ties, weighted 1/k."""
    ranked = np.argsort(-centrality(problem.operator).round(9), kind="stable")
    return np.sort(ranked[:k]), np.full(k, 1 / k)


def importance(problem: Problem, k: int, rng: np.random.Generator) -> Chosen:
    """``k`` draws with replacement, with probability p_v proportional to the norm of column v.

    A draw has weight 1 / (n k p_v), so that the estimate of a mean is unbiased.
    """
    chances = problem.operator.norms / problem.operator.norms.sum()
    nodes, times = np.unique(rng.choice(len(chances), k, p=chances), return_counts=True)
    return nodes, times / (len(chances) * k * chances[nodes])


def pursuit(problem: Problem, k: int, rng: np.random.Generator) -> Chosen:
    """Non-negative orthogonal matching pursuit: add the best aligned column, fit all weights again."""
    operator = problem.operator
    n = operator.n
    nodes: list[int] = []
    weights, residual = np.empty(0), np.full(n, 1 / n)
    for _ in range(k):
        gains = operator.apply(residual) / operator.norms
        gains[nodes] = -np.inf
        if gains.max() <= TOLERANCE:
            break
        nodes.append(_largest(gains))
        columns = operator.columns(nodes)
        weights = scipy.optimize.nnls(columns, np.full(n, 1 / n))[0]
        residual = 1 / n - columns @ weights
    kept = np.flatnonzero(weights > 0)
    kept = kept[np.argsort(np.array(nodes)[kept])]
    return np.array(nodes)[kept], weights[kept]


def _bounded(choose: Choose) -> Choose:
    @wraps(choose)
    def bounded(problem: Problem, k: int, rng: np.random.Generator) -> Chosen:
        check_picks(k, problem.operator.n)
        with threadpool_limits(1):  # sums of several threads differ in their last bits
            return choose(problem, k, rng)

    return bounded


BASELINES: dict[str, Choose] = {
    f.__name__: _bounded(f)
    for f in (
        giga,
        scgiga,
        frank_wolfe,
        frank_wolfe_shares,
        kmeans,
        spectral,
        random,
        betweenness,
        importance,
        pursuit,
    )
}


def _selected(weights: np.ndarray) -> Chosen:
    nodes = np.flatnonzero(weights > 0)
    return nodes, weights[nodes]


def _largest(gains: np.ndarray) -> int:
    """The lowest index among the largest, up to rounding."""
    return int(np.flatnonzero(gains >= gains.max() - TOLERANCE * abs(gains.max()))[0])


def _frank_wolfe(operator: Operator, k: int) -> np.ndarray:
    """Weights [n] after ``k`` steps, of which the first leads to a vertex."""
    n, norms = operator.n, operator.norms
    sigma = norms.sum() / n
    weights, at = np.zeros(n), np.zeros(n)  # at = P^l w
    for step in range(k):
        residual = 1 / n - at
        f = _largest(operator.apply(residual) / norms)
        towards = sigma / norms[f] * operator.columns([f])[:, 0] - at
        squared = (towards**2).sum()
        length = 1.0 if step == 0 else np.clip((towards * residual).sum() / max(squared, 1e-300), 0, 1)
        weights *= 1 - length
        weights[f] += length * sigma / norms[f]
        at = at + length * towards
    return weights


def _graph_shares(adjacency: sparse.csr_array, nodes: np.ndarray) -> np.ndarray:
    """For each of ``nodes``, the share of all nodes nearest to it (unweighted); ties are split evenly."""
    distances = scipy.sparse.csgraph.dijkstra(
        checked(adjacency), directed=False, indices=nodes, unweighted=True
    )
    if np.isinf(distances.min(0)).any():
        accepted = "a connected graph for frank_wolfe_shares, as distances give the weights"
        raise BadInput("graph", "several components", accepted)
    near = distances == distances.min(0)
    return (near / near.sum(0)).mean(1)


def _clustered(points: np.ndarray, k: int, rng: np.random.Generator) -> Chosen:
    """The point nearest to each center of k-means (k-means++, 5 restarts), and the share of its cluster."""
    from sklearn.cluster import KMeans

    solved = KMeans(k, n_init=5, random_state=int(rng.integers(2**31))).fit(points)
    distances = solved.transform(points)
    nearest, shares = distances.argmin(0), np.bincount(solved.labels_, minlength=k) / len(points)
    nodes, cluster = np.unique(nearest, return_inverse=True)
    return nodes, np.bincount(cluster, shares)


def _embedding(adjacency: sparse.csr_array, k: int) -> np.ndarray:
    """The top ``k`` eigenvectors of D^{-1/2} A D^{-1/2}, [n, k]."""
    degrees = adjacency.sum(1)
    scale = sparse.diags_array(np.where(degrees > 0, degrees, np.inf) ** -0.5)
    matrix = scale @ adjacency @ scale
    if k >= len(degrees) - 1:
        return np.linalg.eigh(matrix.toarray())[1][:, -k:]
    return scipy.sparse.linalg.eigsh(matrix, k, which="LA", v0=np.random.default_rng(0).random(len(degrees)))[
        1
    ]


@lru_cache(maxsize=1)
def centrality(operator: Operator) -> np.ndarray:
    """Betweenness of all nodes [n] by number of unweighted edges, normalized as in networkx (Brandes).

    It takes a block of sources at a time and counts their shortest paths outwards by level, then inwards.
    """
    n = operator.n
    edges = operator.adjacency.astype(bool).astype(float)
    edges.setdiag(0)
    between = np.zeros(n)
    for first in range(0, n, BLOCK):
        sources = np.arange(first, min(first + BLOCK, n))
        start = (sources, np.arange(len(sources)))
        paths, level = np.zeros((n, len(sources))), np.zeros((n, len(sources)))
        paths[start], level[start] = 1, 1
        level[level == 0] = np.inf
        depth, front = 1, paths
        while front.any():
            front = np.where(np.isinf(level), edges @ front, 0)
            depth += 1
            level[front > 0] = depth
            paths = paths + front
        share = np.zeros_like(paths)
        for at in range(depth - 1, 1, -1):
            passed = np.where(level == at, (1 + share) / np.maximum(paths, 1), 0)
            share += np.where(level == at - 1, paths * (edges @ passed), 0)
        share[start] = 0
        between += share.sum(1)
    return between / max(1, (n - 1) * (n - 2))
