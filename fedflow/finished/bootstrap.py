"""How certain a difference between two methods is, from the seeds and clients that both served."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from fedflow.finished.run import Run
from fedflow.finished.tables import Stat
from fedflow.finished.variants import HASHES
from fedflow.seeding import generator

CONFIDENCE, SEEDS = 0.95, 3  # of intervals; the fewest seeds that resolve anything
DRAWS, LARGEST = 2000, 4_000_000  # bootstrap samples; drawn clients in memory at once
MEASURES = {  # metric: the column of clients that it is made of
    "local_accuracy": "local_accuracy",
    "global_accuracy": "global_accuracy",
    "local_worst10": "local_accuracy",
}


@dataclass(frozen=True)
class Difference:
    """Of two methods, the mean over ``seeds`` shared seeds, and its 95 % interval; None if it is unknown.

    ``clients``: whether the interval is of a bootstrap over clients too; else it is Student's, over seeds.
    """

    mean: float
    seeds: int
    interval: tuple[float, float] | None = None
    clients: bool = False

    @property
    def certain(self) -> bool:
        """Whether the interval excludes 0, with the seeds that a verdict needs: of fewer it is too narrow."""
        apart = self.interval is not None and not self.interval[0] <= 0 <= self.interval[1]
        return apart and self.seeds >= SEEDS

    @property
    def made(self) -> str:
        """How the interval was made."""
        return "paired bootstrap over seeds and clients" if self.clients else "Student's t over seeds"


def difference(one: Sequence[Run], other: Sequence[Run], measure: str) -> Difference | None:
    """``one - other`` in one of `MEASURES`, paired by seed and client; None without shared seeds.

    Seeds are shared if both runs have the same data and partition. A bootstrap sample draws them with
    replacement, then clients of each with replacement, the same for both methods. If all clients have the
    same difference, as with two global models, the interval is Student's, over three seeds or more. A
    single client has none.
    """
    seeds = list(_paired(one, other, MEASURES[measure]).values())
    if not seeds:
        return None
    worst = measure == "local_worst10"
    mean = float(np.mean([_statistic(pair[:, None], worst)[0] for pair in seeds]))
    count, largest = len(seeds), max(len(pair[0]) for pair in seeds)
    if all(np.ptp(a - b) == 0 for a, b in seeds):
        gains = Stat({seed: float(a[0] - b[0]) for seed, (a, b) in enumerate(seeds)})
        return Difference(mean, count, interval(gains) if count >= SEEDS and largest > 1 else None)
    rng = generator(0, "bootstrap")
    draws = max(200, min(DRAWS, LARGEST // (count * largest)))
    chosen = rng.integers(count, size=(draws, count))
    means = np.empty(chosen.shape)
    for i, pair in enumerate(seeds):
        here = chosen == i
        drawn = rng.integers(pair.shape[1], size=(here.sum(), pair.shape[1]))
        means[here] = _statistic(pair[:, drawn], True) if worst else (pair[0] - pair[1])[drawn].mean(1)
    low, high = np.quantile(means.mean(1), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Difference(mean, count, (float(low), float(high)), clients=True)


def too_few(*seeds: int) -> str:
    """Why these numbers of seeds, fewer than `SEEDS`, have no interval."""
    return f"{' or '.join('one seed' if number == 1 else 'two seeds' for number in seeds)}: no interval"


def _statistic(pair: np.ndarray, worst: bool) -> np.ndarray:
    """The difference of two methods [draws] on clients [2, draws, n]: of means, or of the worst tenths."""
    if not worst:
        return (pair[0] - pair[1]).mean(1)
    tail = max(1, pair.shape[2] // 10)  # as `fedflow.metrics.distribution.tenths`
    lowest = np.partition(pair, tail - 1, axis=2)[..., :tail].mean(2)
    return lowest[0] - lowest[1]


def _paired(one: Sequence[Run], other: Sequence[Run], column: str) -> dict[int, np.ndarray]:
    """The values [2, n] of the clients that both have scored, by seed with the same data and partition."""
    others, found = {run.seed: run for run in other}, {}
    for run in one:
        both = [run, others[run.seed]] if run.seed in others else []
        same = all(len({each.metrics.get(part) for each in both}) == 1 for part in HASHES)
        if both and same and all(column in each.clients for each in both):
            tables = [each.clients.set_index("client")[column].astype(float) for each in both]
            known = tables[0].notna() & tables[1].reindex(tables[0].index).notna()
            shared = tables[0].index[known]
            if len(shared):
                found[run.seed] = np.stack([table.loc[shared].to_numpy() for table in tables])
    return found


def interval(difference: Stat) -> tuple[float, float]:
    """The two-sided 95 % interval of the mean of paired differences, by Student's t."""
    n = len(difference.values)
    half = float(student.ppf((1 + CONFIDENCE) / 2, n - 1)) * difference.std / math.sqrt(n)
    return difference.mean - half, difference.mean + half
