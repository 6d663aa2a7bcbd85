"""Other ways to choose nodes and weights (Section 6.6), all with the same signature.

Indices are distinct, weights are >= 0 and belong to them; both [k], or fewer where a method stops early.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from scipy.optimize import nnls
from scipy.sparse import csgraph

from fedflow.errors import BadInput
from fedflow.procedures.coresets.graph import Operator
from fedflow.procedures.coresets.select import TOLERANCE, select

Chosen = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Problem:
    """A graph and its walk; ``points`` [n, d] of a point cloud and ``costs`` [n] where there are any."""

    adjacency: sparse.csr_array
    operator: Operator
    points: np.ndarray | None = None
    costs: Any = None
    kappa: float = 1.0


def giga(problem: Problem, k: int, rng: np.random.Generator) -> Chosen:
    """Greedy iterative geodesic ascent: the best aligned node, whatever it costs."""
    return _selected(select(problem.operator, k).weights())


def scgiga(problem: Problem, k: int, rng: np.random.Generator) -> Chosen:
    """The cheapest of the nodes that are aligned almost as well as the best (Algorithm 12)."""
    return _selected(select(problem.operator, k, problem.costs, problem.kappa).weights())


def frank_wolfe(problem: Problem, k: int, rng: np.random.Generator) -> Chosen:
    """Frank-Wolfe on ||P^l w - 1/n|| over w >= 0 with sum_i c_i w_i = sigma, c_i the norm of column i.

    Differs from the print: sigma is sum_i c_i / n. The printed sum_i c_i belongs to the target sum_i P_i.
    """
    return _selected(_frank_wolfe(problem.operator, k))


def frank_wolfe_shares(problem: Problem, k: int, rng: np.random.Generator) -> Chosen:
    """The nodes of Frank-Wolfe, weighted by the share of nodes nearest to each, by distance on the graph."""
    nodes = np.flatnonzero(_frank_wolfe(problem.operator, k))
    return nodes, _graph_shares(problem.adjacency, nodes)


def kmeans(problem: Problem, k: int, rng: np.random.Generator) -> Chosen:
    """The point nearest to each centre of k-means, weighted by the share of its cluster.

    Without points, of the embedding that ``spectral`` has.
    """
    points = _embedding(problem.adjacency, k) if problem.points is None else problem.points
    return _clustered(points, k, rng)


def spectral(problem: Problem, k: int, rng: np.random.Generator) -> Chosen:
    """K-means on the top ``k`` eigenvectors of the normalised adjacency D^{-1/2} A D^{-1/2}, as above."""
    return _clustered(_embedding(problem.adjacency, k), k, rng)


def random(problem: Problem, k: int, rng: np.random.Generator) -> Chosen:
    """Nodes drawn uniformly without replacement, weighted 1/k."""
    return np.sort(rng.choice(problem.operator.n, k, replace=False)), np.full(k, 1 / k)


def betweenness(problem: Problem, k: int, rng: np.random.Generator) -> Chosen:
    """The nodes on most shortest paths (of unweighted edges), weighted 1/k; ties: the lowest index."""
    import networkx as nx

    score = nx.betweenness_centrality(nx.from_scipy_sparse_array(problem.adjacency))
    ranked = sorted(score, key=lambda v: (-round(score[v], 12), v))
    return np.sort(ranked[:k]), np.full(k, 1 / k)


def importance(problem: Problem, k: int, rng: np.random.Generator) -> Chosen:
    """``k`` draws with replacement, with probability p_v proportional to the norm of column v.

    A draw weighs 1 / (n k p_v), so that the estimate of a mean is unbiased.
    """
    chances = problem.operator.norms / problem.operator.norms.sum()
    nodes, times = np.unique(rng.choice(len(chances), k, p=chances), return_counts=True)
    return nodes, times / (len(chances) * k * chances[nodes])


def pursuit(problem: Problem, k: int, rng: np.random.Generator) -> Chosen:
    """Non-negative orthogonal matching pursuit: the best aligned column, then all weights fitted anew."""
    operator = problem.operator
    n = operator.n
    nodes: list[int] = []
    weights, residual = np.empty(0), np.full(n, 1 / n)
    for _ in range(k):
        gains = operator.apply(residual) / operator.norms
        gains[nodes] = -np.inf
        if gains.max() <= TOLERANCE:
            break
        nodes.append(int(gains.argmax()))
        columns = operator.columns(nodes)
        weights = nnls(columns, np.full(n, 1 / n))[0]
        residual = 1 / n - columns @ weights
    kept = np.flatnonzero(weights > 0)
    kept = kept[np.argsort(np.array(nodes)[kept])]
    return np.array(nodes)[kept], weights[kept]


BASELINES: dict[str, Callable[[Problem, int, np.random.Generator], Chosen]] = {
    f.__name__: f
    for f in (
        giga, scgiga, frank_wolfe, frank_wolfe_shares, kmeans, spectral, random, betweenness, importance, pursuit,
    )
}  # fmt: skip
