"""Newcomers: a share of the clients takes no part in the rounds and joins after the last one.

Who joins late is drawn uniformly, group by group where the scheme plants groups.
Source: FLIS and PACFL, Tables 3.6 and 3.12 (80 clients train, 20 join).
"""

import numpy as np

from fedflow.errors import BadInput
from fedflow.partition.base import spread


def late(clients: int, share: float, groups: np.ndarray | None, rng: np.random.Generator) -> np.ndarray:
    """Whether a client joins after the last round, bool [N]."""
    count = round(share * clients)
    if not 0 < count < clients:
        raise BadInput(
            "partition.newcomers", share, f"a share that leaves 1 to {clients - 1} of {clients} clients"
        )
    order = rng.permutation(clients)
    if groups is not None:
        order = order[np.argsort(groups[order], kind="stable")]
    joins = np.zeros(clients, dtype=bool)
    joins[order[spread(clients, count, rng)]] = True
    return joins
