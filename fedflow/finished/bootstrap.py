"""Differences between two methods, with intervals over the seeds and clients that both served.

One rule says which differences are more than chance, for claims and for pairs of methods: Student's t over
seeds, below five of them with a standard deviation of at least the median one of comparable differences, and
p-values adjusted for their number (Benjamini-Hochberg). docs/decisions/0027 has the reasons.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress

import numpy as np
import pandas as pd
from scipy.stats import false_discovery_control
from scipy.stats import t as student

from fedflow.finished.contents import HASHES
from fedflow.finished.run import Run, once
from fedflow.finished.tables import Stat
from fedflow.seeding import generator

CONFIDENCE, SEEDS = 0.95, 3  # of intervals; the fewest seeds for a significant difference
DIGITS = 12  # of a difference
ENOUGH = 5  # seeds whose own standard deviation is trusted
DRAWS, LARGEST = 2000, 4_000_000  # bootstrap samples; drawn clients in memory at once
MEASURES = {  # metric: its column of clients
    "local_accuracy": "local_accuracy",
    "global_accuracy": "global_accuracy",
    "local_worst10": "local_accuracy",
}


@dataclass(frozen=True)
class Difference:
    """Mean difference of two methods over shared seeds, with its 95 % interval if known.

    The interval is a bootstrap over seeds and ``clients``, or else Student's over seeds. ``gains`` has the
    difference by seed; ``apart`` is true if `apart` tells it from 0, alone or among others.
    """

    gains: Stat
    interval: tuple[float, float] | None = None
    clients: bool = False
    apart: bool = False

    @property
    def mean(self) -> float:
        return self.gains.mean

    @property
    def seeds(self) -> int:
        return len(self.gains.values)

    @property
    def significant(self) -> bool:
        """True if the interval excludes 0, and the rule for claims tells the difference from 0, too."""
        return self.apart and self.interval is not None and not self.interval[0] <= 0 <= self.interval[1]

    @property
    def origin(self) -> str:
        """The kind of interval, in words."""
        return "paired bootstrap over seeds and clients" if self.clients else "Student's t over seeds"


def difference(first: Sequence[Run], second: Sequence[Run], measure: str) -> Difference | None:
    """``first - second`` in one of `MEASURES`, paired by seed and client, or None without shared seeds.

    A seed is shared if both runs have the same data and partition. A bootstrap sample draws seeds with
    replacement, then clients of each seed with replacement, the same for both methods. If all clients have
    the same difference, as with two global models, the interval is Student's over three or more seeds. A
    single client has no interval.
    """
    paired = _paired(first, second, MEASURES[measure])
    if not paired:
        return None
    worst, seeds = measure == "local_worst10", list(paired.values())
    gains = Stat({seed: float(_statistic(pair[:, None], worst)[0]) for seed, pair in paired.items()})
    (certain,) = apart([gains])
    count, largest = len(seeds), max(len(pair[0]) for pair in seeds)
    if all(np.ptp(a - b) == 0 for a, b in seeds):
        return Difference(gains, interval(gains) if count >= SEEDS and largest > 1 else None, apart=certain)
    draws = max(200, min(DRAWS, LARGEST // (count * largest)))
    means = np.empty((draws, count))
    for pair, (here, drawn) in zip(seeds, _drawn(draws, *(len(pair[0]) for pair in seeds)), strict=True):
        means.flat[here] = _statistic(pair[:, drawn], True) if worst else (pair[0] - pair[1])[drawn].mean(1)
    low, high = np.quantile(means.mean(1), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Difference(gains, (float(low), float(high)), clients=True, apart=certain)


@lru_cache(1)  # which most pairs of a partition share
def _drawn(draws: int, *clients: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """For every seed, which has this number of clients: its places among all ``draws``, and its clients."""
    rng = generator(0, "bootstrap")
    chosen = rng.integers(len(clients), size=draws * len(clients))
    rows = (np.flatnonzero(chosen == seed) for seed in range(len(clients)))
    return [(here, rng.integers(n, size=(len(here), n))) for n, here in zip(clients, rows, strict=True)]


def few_seeds(*counts: int) -> str:
    """These numbers of seeds, fewer than `SEEDS`, in words."""
    return " or ".join(("no seed on the same data", "one seed", "two seeds")[count] for count in counts)


def _statistic(pair: np.ndarray, worst: bool) -> np.ndarray:
    """Difference of means, or of the worst tenths, of two methods [draws] on clients [2, draws, n]."""
    if not worst:
        return (pair[0] - pair[1]).mean(1)
    tail = max(1, pair.shape[2] // 10)  # as `fedflow.metrics.distribution.tenths`
    lowest = np.partition(pair, tail - 1, axis=2)[..., :tail].mean(2)
    return lowest[0] - lowest[1]


def shared(first: Iterable[Run], second: Iterable[Run]) -> list[tuple[Run, Run]]:
    """The runs of two methods with the same seed, data and partition."""
    by_seed = {run.seed: run for run in second}
    pairs = [(run, by_seed[run.seed]) for run in first if run.seed in by_seed]
    return [(a, b) for a, b in pairs if all(a.metrics.get(name) == b.metrics.get(name) for name in HASHES)]


def _paired(first: Sequence[Run], second: Sequence[Run], column: str) -> dict[int, np.ndarray]:
    """Values [2, n] of the clients that both methods scored, by seed with the same data and partition."""
    paired = {}
    for run, other in shared(first, second):
        (clients, ours), (others, theirs) = _scores(run, column), _scores(other, column)
        if not np.array_equal(clients, others):
            left, right = pd.Series(ours, clients).align(pd.Series(theirs, others), join="inner")
            ours, theirs = left.to_numpy(), right.to_numpy()
        values = np.stack([ours, theirs])
        if (scored := ~np.isnan(values).any(0)).any():
            paired[run.seed] = values[:, scored]
    return paired


@once
def _scores(run: Run, column: str) -> tuple[np.ndarray, np.ndarray]:
    """The clients, and a column of theirs; both are empty if the run lacks it."""
    if column not in run.clients:
        return np.empty(0), np.empty(0)
    return run.clients["client"].to_numpy(), run.clients[column].to_numpy(float)


def interval(difference: Stat, least: float = 0.0) -> tuple[float, float]:
    """Two-sided 95 % interval of the mean of paired differences, by Student's t; ``least`` as in `error`."""
    half = float(student.ppf((1 + CONFIDENCE) / 2, len(difference.values) - 1)) * error(difference, least)
    return difference.mean - half, difference.mean + half


def error(difference: Stat, least: float = 0.0) -> float:
    """Standard error of a mean over seeds.

    With fewer than `ENOUGH`, a smaller standard deviation counts as ``least``: it is often far too small. A
    difference of 0 with every seed, as of equal methods, has none.
    """
    n, tie = len(difference.values), difference.low == difference.high == 0
    return (difference.std if n >= ENOUGH or tie else max(difference.std, least)) / math.sqrt(n)


def rounded(value: float, operands: Iterable[float]) -> float:
    """A number without the rounding errors of the numbers that gave it, which would break ties."""
    largest = max(map(abs, operands))
    return round(value, DIGITS - math.ceil(math.log10(largest))) if 0 < largest < math.inf else value


def typical(differences: Iterable[Stat]) -> float:
    """The median standard deviation of comparable differences over `SEEDS` or more seeds; 0 without any.

    Those without spread, such as ties, do not count.
    """
    stds = [d.std for d in differences if len(d.values) >= SEEDS and 0 < d.std < math.inf]
    return float(np.median(stds)) if stds else 0.0


def chance(difference: Stat, margin: float, least: float = 0.0) -> float:
    """The two-sided p-value of a mean at the distance ``margin`` from a boundary; ``least`` as in `error`."""
    scale = error(difference, least)
    return float(2 * student.sf(abs(margin) / scale, len(difference.values) - 1)) if scale else 0.0


def adjusted(chances: Sequence[float]) -> list[float]:
    """p-values adjusted for their number: of those up to 0.05, 5 % are expected to be false at most."""
    return [float(value) for value in false_discovery_control(chances)] if chances else []


def apart(gains: Sequence[Stat]) -> list[bool]:
    """For each of these comparable differences, True if it is significant (not 0) given the number of all.

    As among claims, a difference without spread has no p-value: it does not count, and is not significant.
    """
    least = typical(gains)
    spread = [len(gain.values) >= SEEDS and error(gain, least) > 0 for gain in gains]
    values = iter(adjusted([chance(gain, gain.mean, least) for gain in compress(gains, spread)]))
    return [wide and next(values) <= 1 - CONFIDENCE for wide in spread]
