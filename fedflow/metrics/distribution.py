"""The distribution of a value over clients: the fairness measures of the literature."""

import numpy as np

NAMES = ("mean", "weighted", "variance", "std", "lowest", "highest", "worst10", "best10", "gap", "gini")


def summarize(values: np.ndarray, weights: np.ndarray | None = None) -> dict[str, float]:
    """Statistics of per-client values [N] without nan; all nan if no value is left.

    ``weighted`` is the mean by ``weights`` [N], such as test samples (default: equal). Variance and std are
    population statistics. Worst and best 10 % are `tenths` with equal weights; the gap is best minus worst.
    Gini is sum_i (2i - N - 1) v_(i) / (N sum v) with values ascending: 0 if all are equal.
    """
    measured = ~np.isnan(values)
    weights = np.ones(len(values)) if weights is None else weights
    values, weights = values[measured], weights[measured]
    n = len(values)
    if n == 0:
        return dict.fromkeys(NAMES, float("nan"))
    weighted, values = float(values @ weights / weights.sum()), np.sort(values)
    (worst, best), total = tenths(values), values.sum()
    ranks = 2 * np.arange(1, n + 1) - n - 1
    return {
        "mean": float(values.mean()),
        "weighted": weighted,
        "variance": float(values.var()),
        "std": float(values.std()),
        "lowest": float(values[0]),
        "highest": float(values[-1]),
        "worst10": worst,
        "best10": best,
        "gap": best - worst,
        "gini": float(ranks @ values / (n * total)) if total > 0 else 0.0,
    }


def tenths(values: np.ndarray, weights: np.ndarray | None = None) -> tuple[float, float]:
    """Means of the max(1, floor(0.1 n)) lowest and highest of the n ``values`` that are not nan.

    Weighted by ``weights`` (default: equal). Source: AAggFF's worst and best 10 %, with test samples as
    weights.
    """
    measured = ~np.isnan(values)
    if not measured.any():
        return float("nan"), float("nan")
    weights = np.ones(len(values)) if weights is None else weights
    values, weights = values[measured], weights[measured]
    order, tail = np.argsort(values, kind="stable"), max(1, len(values) // 10)
    low, high = (np.average(values[part], weights=weights[part]) for part in (order[:tail], order[-tail:]))
    return float(low), float(high)
