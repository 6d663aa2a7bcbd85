"""How a number is spread over clients: the fairness measures of the field."""

import numpy as np


def summarise(values: np.ndarray) -> dict[str, float]:
    """Mean, population std, worst and best 10 % and Gini of per-client values [N] (all nan when N = 0).

    Worst (best) 10 % is the mean of the max(1, floor(0.1 N)) lowest (highest) clients. Gini is
    sum_i (2i - N - 1) v_(i) / (N sum v) with values ascending: 0 when all are equal.
    """
    values = np.sort(values[~np.isnan(values)])
    n = len(values)
    if n == 0:
        return dict.fromkeys(("mean", "std", "worst10", "best10", "gini"), float("nan"))
    tail, total = max(1, n // 10), values.sum()
    ranks = 2 * np.arange(1, n + 1) - n - 1
    return {
        "mean": float(values.mean()),
        "std": float(values.std()),
        "worst10": float(values[:tail].mean()),
        "best10": float(values[-tail:].mean()),
        "gini": float(ranks @ values / (n * total)) if total > 0 else 0.0,
    }
