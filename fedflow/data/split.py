"""Random test rows, in the same share of every class."""

import numpy as np

from fedflow.seeding import generator


def draw_test(
    strata: np.ndarray, share: float, seed: int, purpose: str, groups: np.ndarray | None = None
) -> np.ndarray:
    """A mask of the test rows [n]: this share of every stratum [n], within each of the ``groups`` [n].

    At least one row of each remains for training. Equal purposes and seeds give equal rows.
    """
    test = np.zeros(len(strata), bool)
    inside = np.zeros(len(strata), np.int64) if groups is None else groups
    for label, group in np.unique(np.stack([strata, inside], axis=1), axis=0).tolist():
        rows = np.flatnonzero((strata == label) & (inside == group))
        key = (label,) if groups is None else (label, group)
        order = generator(seed, purpose, *key).permutation(rows)
        test[order[: min(round(share * len(rows)), len(rows) - 1)]] = True
    return test
