"""How certain a difference between two methods is, from the seeds and clients that both served."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedflow.report.run import Run
from fedflow.seeding import generator

DRAWS, LARGEST = 2000, 20_000_000  # bootstrap samples; drawn clients in memory at once
SHARE = 0.95
MEASURES = {  # metric: the column of clients that it is made of
    "local_accuracy": "local_accuracy",
    "global_accuracy": "global_accuracy",
    "local_worst10": "local_accuracy",
}


@dataclass(frozen=True)
class Difference:
    """Of two methods, the mean over shared seeds, and its 95 % interval, which is None if it is unknown."""

    mean: float
    interval: tuple[float, float] | None

    @property
    def certain(self) -> bool:
        """Whether the interval excludes 0."""
        return self.interval is not None and not self.interval[0] <= 0 <= self.interval[1]


def difference(one: Sequence[Run], other: Sequence[Run], measure: str) -> Difference | None:
    """``one - other`` in one of `MEASURES`, paired by seed and client; None without shared seeds.

    A bootstrap sample draws shared seeds with replacement, then clients of each with replacement, the same
    for both methods. Seeds have the same clients and test samples, as runs of one partition. There is no
    interval if nothing differs between the draws: a single client, or one seed and one global model each.
    """
    seeds = list(_paired(one, other, MEASURES[measure]).values())
    if not seeds:
        return None
    worst = measure == "local_worst10"
    mean = float(np.mean([_statistic(pair[:, None], worst)[0] for pair in seeds]))
    largest, alike = max(len(pair[0]) for pair in seeds), all(np.ptp(a - b) == 0 for a, b in seeds)
    if largest < 2 or (len(seeds) == 1 and alike and not worst):
        return Difference(mean, None)
    count, rng = len(seeds), generator(0, "bootstrap")
    draws = max(200, min(DRAWS, LARGEST // (count * largest)))
    chosen = rng.integers(count, size=(draws, count))
    means = np.empty(chosen.shape)
    for i, pair in enumerate(seeds):
        here = chosen == i
        drawn = rng.integers(pair.shape[1], size=(here.sum(), pair.shape[1]))
        means[here] = _statistic(pair[:, drawn], worst)
    low, high = np.quantile(means.mean(1), [(1 - SHARE) / 2, (1 + SHARE) / 2])
    return Difference(mean, (float(low), float(high)))


def _statistic(pair: np.ndarray, worst: bool) -> np.ndarray:
    """The difference of two methods [draws] on clients [2, draws, n]: of means, or of the worst tenths."""
    if not worst:
        return (pair[0] - pair[1]).mean(1)
    tail = max(1, pair.shape[2] // 10)  # as `fedflow.metrics.distribution.tenths`
    lowest = np.partition(pair, tail - 1, axis=2)[..., :tail].mean(2)
    return lowest[0] - lowest[1]


def _paired(one: Sequence[Run], other: Sequence[Run], column: str) -> dict[int, np.ndarray]:
    """The values [2, n] of the clients that both have scored, by shared seed."""
    others, found = {run.seed: run for run in other}, {}
    for run in one:
        if run.seed in others and all(column in each.clients for each in (run, others[run.seed])):
            tables = [
                each.clients.set_index("client")[column].astype(float) for each in (run, others[run.seed])
            ]
            known = tables[0].notna() & tables[1].reindex(tables[0].index).notna()
            shared = tables[0].index[known]
            if len(shared):
                found[run.seed] = np.stack([table.loc[shared].to_numpy() for table in tables])
    return found
