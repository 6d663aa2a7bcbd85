"""First round that reaches a target, for ``run.target_accuracy`` and for targets set afterwards."""

from collections.abc import Iterable

from fedflow.metrics.table import metric_of


def first_reaching(
    name: str, values: Iterable[float | None], target: float, smooth: float = 0.0
) -> int | None:
    """The index of the first of ``values`` that reaches ``target``, or None.

    A loss must be at most the target, a metric that should be high at least. None and nan (rounds that were
    not evaluated) are skipped. ``smooth`` in [0, 1) compares s_1 = x_1,
    s_t = smooth s_(t-1) + (1 - smooth) x_t instead of x_t.
    """
    metric = metric_of(name)
    sign = -1 if metric is not None and metric.better == "lower" else 1
    smoothed: float | None = None
    for index, value in enumerate(values):
        if value is None or value != value:
            continue
        smoothed = value if smoothed is None or not smooth else smooth * smoothed + (1 - smooth) * value
        if sign * smoothed >= sign * target:
            return index
    return None
