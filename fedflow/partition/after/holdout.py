"""Hold-out: every client is tested on a share of its samples, which it does not train on.

Order of sampling: client k's n_k samples are permuted and, if ``stratified``, sorted by label; round(share
n_k) of them, at least one and not all, are held out, at evenly spaced places from a random first one. So the
held-out samples of a label differ by less than one from its part of all that are held out, and by less than
1.5 from its share, as their number is rounded.
Source: AAggFF (80 % / 20 %, stratified where possible), SuPerFed (at random).
"""

import numpy as np

from fedflow.errors import BadInput
from fedflow.partition.scheme import Indices, spread


def hold_out(
    parts: Indices,
    labels: np.ndarray,
    share: float,
    rng: np.random.Generator,
    stratified: bool = True,
    field: str = "partition.holdout",
) -> tuple[Indices, Indices]:
    """Training and test rows of every client, sorted; together they are ``parts``.

    Raises `BadInput` for ``field`` if a client has only one sample.
    """
    train, test = [], []
    for k, rows in enumerate(parts):
        if len(rows) < 2:
            raise BadInput(field, share, f"0, because client {k} has {len(rows)} samples")
        count = min(max(1, round(share * len(rows))), len(rows) - 1)
        order = rng.permutation(rows)
        if stratified:
            order = order[np.argsort(labels[order], kind="stable")]
        held = np.zeros(len(rows), dtype=bool)
        held[spread(len(rows), count, rng)] = True
        train.append(np.sort(order[~held]))
        test.append(np.sort(order[held]))
    return train, test
