"""SCGIGA: few weighted nodes that represent a graph (Algorithm 12, corrected).

It looks for weights w >= 0 with few entries > 0 such that P^l w is close to the constant vector 1/n, one
node per step: the node best aligned with the residual, or a cheaper one that is almost as well aligned.

Differs from the printed algorithm: the step ``delta`` is clipped to [0, 1] (for kappa < 1 it can exceed 1,
and weights would be negative); weights are divided by the norms of their columns; K nodes are picked, not
K + 1; it stops when no alignment is positive, which happens with the operator ``sym_norm``.
Ambiguous: alignments within 1e-12 are equal, so that rounding breaks no tie. The cost of a selection is the
cost of the nodes with weight > 0; the amount `paid` counts every node ever picked, once.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedflow.errors import BadInput
from fedflow.procedures.coresets.graph import Operator

TOLERANCE = 1e-12  # differences of alignments, and values of J, that are rounding errors


@dataclass(frozen=True)
class Selection:
    """The state after k picks. The unit vector x = sum_v w_bar_v P_bar_v is never formed."""

    w_bar: np.ndarray  # [n], weights of the normalized columns
    product: np.ndarray  # [n], P^l x; over the norms it is zeta2
    norms: np.ndarray  # [n], norms of the columns of P^l
    zeta1: np.ndarray  # [], <P*, x>
    picks: np.ndarray  # [k], nodes in the order of picks
    alignments: np.ndarray  # [k], alignments of these nodes
    deltas: np.ndarray  # [k], lengths of the steps in [0, 1]
    errors: np.ndarray  # [k], J = 1 - zeta1^2 after each pick
    stopped: np.ndarray  # [], true when another pick would change nothing

    @property
    def chosen(self) -> np.ndarray:
        """The nodes with weight > 0, in ascending order."""
        return np.flatnonzero(self.w_bar > 0)

    def weights(self, mode: str = "beta") -> np.ndarray:
        """Weights of all nodes [n], most of them 0.

        ``beta`` has the smallest objective error (6.6); the sum is 1 - J with the lazy walk, so that the mean
        of a constant is too small. ``sum1`` is scaled to sum to 1.
        """
        if mode not in ("beta", "sum1"):
            raise BadInput("weights", mode, "beta or sum1")
        weights = float(self.zeta1) * self.w_bar / (np.sqrt(len(self.w_bar)) * self.norms)
        return weights if mode == "beta" or not weights.any() else weights / weights.sum()

    @property
    def error(self) -> float:
        """The objective ||P^l w - 1/n|| with weights ``beta``: sqrt(J / n)."""
        return float(np.sqrt(max(0.0, 1 - float(self.zeta1) ** 2) / len(self.w_bar)))

    def paid(self, costs: Any) -> float:
        """The sum of ``costs`` [n] over all nodes ever picked, including nodes that lost their weight."""
        return float(np.asarray(costs)[np.unique(self.picks)].sum())


def begin(operator: Operator) -> Selection:
    """The selection before the first pick."""
    n, none = operator.n, np.empty(0)
    zero, false = np.array(0.0), np.array(False)
    return Selection(
        np.zeros(n), np.zeros(n), operator.norms, zero, np.empty(0, np.int64), none, none, none, false
    )


def pick(operator: Operator, selection: Selection, costs: Any = None, kappa: float = 1.0) -> Selection:
    """The selection after one more pick: a new node, or more weight for a chosen one.

    Among nodes aligned at least ``kappa`` times as well as the best, the cheapest by ``costs`` [n] is picked.
    This takes at most 2 l products of the sparse matrix of one step with a vector. ``stopped`` is set if the
    target is reached.
    """
    n = operator.n
    prices = _costs(costs, n)
    if not 0 < kappa <= 1:
        raise BadInput("kappa", kappa, "a number in (0, 1]")
    zeta0, zeta1 = operator.sums / (np.sqrt(n) * selection.norms), selection.zeta1
    zeta2 = selection.product / selection.norms
    left, room = 1 - zeta1**2, 1 - zeta2**2
    if selection.stopped or left < TOLERANCE:
        return replace(selection, stopped=np.array(True))
    alignments = (zeta0 - zeta1 * zeta2) / np.sqrt(left * np.maximum(room, TOLERANCE))
    alignments[room < TOLERANCE] = -np.inf  # columns that x already equals
    best = alignments.max()
    if best <= TOLERANCE:
        return replace(selection, stopped=np.array(True))
    window = np.flatnonzero(alignments >= kappa * best - TOLERANCE)
    cheapest = window[prices[window] == prices[window].min()]
    v = cheapest[alignments[cheapest] >= alignments[cheapest].max() - TOLERANCE][0]

    column, products = operator.products(v)
    norms = selection.norms.copy()
    norms[v] = np.sqrt((column**2).sum())
    zeta0_v, zeta2_v = operator.sums[v] / (np.sqrt(n) * norms[v]), selection.product[v] / norms[v]
    g0, g1 = zeta0_v - zeta1 * zeta2_v, zeta1 - zeta0_v * zeta2_v
    delta = np.clip(g0 / (g0 + g1), 0, 1) if g0 + g1 > TOLERANCE else np.float64(0)
    length = np.sqrt((1 - delta) ** 2 + delta**2 + 2 * delta * (1 - delta) * zeta2_v)
    w_bar = (1 - delta) * selection.w_bar
    w_bar[v] += delta
    zeta1 = np.asarray(((1 - delta) * zeta1 + delta * zeta0_v) / length)
    product = ((1 - delta) * selection.product + delta * products / norms[v]) / length
    return Selection(
        w_bar / length,
        product,
        norms,
        zeta1,
        np.append(selection.picks, v),
        np.append(selection.alignments, alignments[v]),
        np.append(selection.deltas, delta),
        np.append(selection.errors, 1 - zeta1**2),
        np.array(False),
    )


def select(
    operator: Operator,
    k: int,
    costs: Any = None,
    kappa: float = 1.0,
    budget: float | None = None,
    start: Selection | None = None,
) -> Selection:
    """``k`` picks in all, fewer if the target is reached or the next pick would exceed ``budget``.

    ``start`` is a selection to extend; its picks count and stay.
    """
    check_picks(k, operator.n)
    if budget is not None and (costs is None or not budget >= 0):
        raise BadInput("budget", budget, "a number >= 0, with costs")
    selection = begin(operator) if start is None else start
    while len(selection.picks) < k and not selection.stopped:
        following = pick(operator, selection, costs, kappa)
        if budget is not None and following.paid(costs) > budget:
            break
        selection = following
    return selection


def objective_error(operator: Operator, weights: np.ndarray) -> float:
    """||P^l w - 1/n|| (6.3) for ``weights`` [n]."""
    return float(np.sqrt(((operator.apply(weights) - 1 / operator.n) ** 2).sum()))


def check_picks(k: int, n: int) -> None:
    """`BadInput` unless ``k`` of ``n`` nodes can be picked."""
    if not 1 <= k <= n:
        raise BadInput("k", k, f"a whole number >= 1 and <= {n}, the number of nodes")


def _costs(costs: Any, n: int) -> np.ndarray:
    if costs is None:
        return np.zeros(n)
    prices = np.asarray(costs, dtype=float)
    if prices.shape != (n,):
        raise BadInput("costs", prices.shape, f"a cost per node, [{n}]")
    wrong = prices[~(np.isfinite(prices) & (prices >= 0))]
    if wrong.size:
        raise BadInput("costs", float(wrong[0]), "finite numbers >= 0")
    return prices
