"""Newcomers: a share of the clients takes no part in the rounds and joins after the last one.

Who joins late is drawn uniformly, group by group where the scheme plants groups; newcomers are numbered
last, so that 80 of 100 clients that train are clients 0 to 79.
Source: FLIS and PACFL, Tables 3.6 and 3.12 (80 clients train, 20 join).
"""

import numpy as np

from fedflow.errors import BadInput
from fedflow.partition.base import spread


def order_of_joining(
    clients: int, share: float, groups: np.ndarray | None, rng: np.random.Generator
) -> tuple[np.ndarray, int]:
    """All clients [N] in their order, those that join after the last round behind; and how many these are."""
    late = round(share * clients)
    if not 0 < late < clients:
        raise BadInput(
            "partition.newcomers", share, f"a share that is 1 to {clients - 1} of {clients} clients"
        )
    order = rng.permutation(clients)
    if groups is not None:
        order = order[np.argsort(groups[order], kind="stable")]
    joins = np.zeros(clients, dtype=bool)
    joins[order[spread(clients, late, rng)]] = True
    return np.argsort(joins, kind="stable"), late
