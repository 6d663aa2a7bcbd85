"""Hold-out: every client is tested on a share of its own samples, which it does not train on.

Order of sampling: of client k's n_k samples, label by label where a label has two or more, a random
share is held out, and in all round(share n_k) but at least one and not all of them.
Source: SuPerFed and AAggFF (80 % / 20 %, stratified where possible).
"""

import numpy as np

from fedflow.errors import BadInput
from fedflow.partition.base import Indices, spread


def hold_out(
    parts: Indices,
    labels: np.ndarray,
    share: float,
    rng: np.random.Generator,
    field: str = "partition.holdout",
) -> tuple[Indices, Indices]:
    """Training and test positions of every client, sorted; together they are ``parts``."""
    train, test = [], []
    for k, rows in enumerate(parts):
        if len(rows) < 2:
            raise BadInput(field, share, f"0, because client {k} has {len(rows)} samples")
        count = min(max(1, round(share * len(rows))), len(rows) - 1)
        mixed = rng.permutation(rows)
        by_label = mixed[np.argsort(labels[mixed], kind="stable")]
        held = np.zeros(len(rows), dtype=bool)
        held[spread(len(rows), count, rng)] = True
        train.append(np.sort(by_label[~held]))
        test.append(np.sort(by_label[held]))
    return train, test
