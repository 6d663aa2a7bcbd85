"""How certain a difference between two methods is, from the clients that both served."""

from collections.abc import Sequence

import numpy as np

from fedflow.report.run import Run
from fedflow.seeding import generator

DRAWS, LARGEST = 2000, 20_000_000  # bootstrap samples; drawn clients in memory at once
SHARE = 0.95


def interval(one: Sequence[Run], other: Sequence[Run], column: str) -> tuple[float, float] | None:
    """95 % interval of the mean difference ``one - other`` of a column of clients, paired by seed and client.

    A sample draws shared seeds with replacement, then clients of each with replacement. Seeds have the same
    clients and test samples, as runs of one partition. None without shared seeds, or with a single client.
    """
    differences = list(_paired(one, other, column).values())
    if not differences or max(map(len, differences)) < 2:
        return None
    count, rng = len(differences), generator(0, "bootstrap")
    draws = max(200, min(DRAWS, LARGEST // (count * max(map(len, differences)))))
    means = np.empty((count, draws, count))  # of seed i, in sample d, drawn for place j
    for i, values in enumerate(differences):
        for j in range(count):
            means[i, :, j] = values[rng.integers(len(values), size=(draws, len(values)))].mean(1)
    chosen = rng.integers(count, size=(draws, count))
    found = means[chosen, np.arange(draws)[:, None], np.arange(count)].mean(1)
    low, high = np.quantile(found, [(1 - SHARE) / 2, (1 + SHARE) / 2])
    return float(low), float(high)


def _paired(one: Sequence[Run], other: Sequence[Run], column: str) -> dict[int, np.ndarray]:
    """The differences of all clients that both have scored, by shared seed."""
    others, found = {run.seed: run for run in other}, {}
    for run in one:
        if run.seed in others:
            tables = [
                each.clients.set_index("client")[column].astype(float) for each in (run, others[run.seed])
            ]
            values = (tables[0] - tables[1]).dropna().to_numpy()
            if len(values):
                found[run.seed] = values
    return found
