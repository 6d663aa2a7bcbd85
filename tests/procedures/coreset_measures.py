"""Oracles for coresets: errors of means, the objective, and bounds for smooth functions.

Weights are [n], 0 for nodes that are not chosen; functions of nodes are [n], or [n, q] for q of them.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from fedflow.procedures.coresets.graph import Operator
from fedflow.procedures.coresets.select import objective_error


def estimate(weights: np.ndarray, values: Any) -> Any:
    """sum_s w_s f(s), of nodes with weight only."""
    nodes = np.flatnonzero(weights)
    return (weights[nodes] * np.asarray(values, dtype=float)[nodes].T).sum(-1)


def squared_error(weights: np.ndarray, values: Any) -> Any:
    """Err = |sum_s w_s f(s) - mean f|^2, of each function."""
    values = np.asarray(values, dtype=float)
    return (estimate(weights, values) - values.mean(0)) ** 2


def zeta0(operator: Operator) -> np.ndarray:
    """<P_bar_v, P*> by node [n]: cosines between the columns and the constant vector."""
    return operator.sums / (np.sqrt(operator.n) * operator.norms)


def beta(operator: Operator, weights: np.ndarray) -> float:
    """beta* (6.6): the scale of ``weights`` with the smallest objective; 0 without weights."""
    at = operator.apply(weights)
    squared = (at**2).sum()
    return float(max(0.0, at.sum()) / (operator.n * squared)) if squared else 0.0


def alignment(operator: Operator, weights: np.ndarray) -> float:
    """<P w / ||P w||, P*>, which (6.8) maximizes."""
    at = operator.apply(weights)
    return float(at.sum() / np.sqrt(operator.n * (at**2).sum()))


def penalized(operator: Operator, weights: np.ndarray, costs: np.ndarray, trade: float) -> float:
    """(6.9): the alignment less ``trade`` (lambda) times the cost of the nodes with weight > 0."""
    return alignment(operator, weights) - trade * float(costs[weights > 0].sum())


def path_errors(weights: np.ndarray, distances: np.ndarray) -> tuple[float, float]:
    """Errors of the mean distance from a node, averaged over nodes: absolute and squared."""
    errors = np.abs(estimate(weights, distances) - distances.mean(0))
    return float(errors.mean()), float((errors**2).mean())


def smooth(operator: Operator, threshold: float, values: Any) -> np.ndarray:
    """The projection of ``values`` on P_threshold: eigenvectors of one step with |lambda| > threshold."""
    numbers, vectors = np.linalg.eigh(operator.matrix.toarray())
    kept = vectors[:, np.abs(numbers) > threshold]
    return kept @ (kept.T @ np.asarray(values))


def error_bound(operator: Operator, weights: np.ndarray, values: np.ndarray, threshold: float) -> float:
    """(D.1): the largest error of the mean of ``values`` [n] in P_threshold, for any weights >= 0.

    Of the lazy walk. With weights that sum to 1 it is (6.2) of one length of the walk.
    """
    norm = np.sqrt((np.asarray(values) ** 2).sum())
    return float(norm * threshold**-operator.steps * objective_error(operator, weights))


def tightest_bound(
    operators: Iterable[Operator], weights: np.ndarray, values: np.ndarray, threshold: float
) -> float:
    """(6.2): the smallest bound over walks of several lengths on a graph, for weights that sum to 1."""
    return min(error_bound(operator, weights, values, threshold) for operator in operators)
