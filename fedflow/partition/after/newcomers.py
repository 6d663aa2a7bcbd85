"""Newcomers: a share of the clients joins after the last round and does not train in the rounds.

Newcomers are drawn uniformly, stratified by planted group if there are any, and numbered last: if 80 of 100
clients train, they are clients 0 to 79.
Source: FLIS and PACFL, Tables 3.6 and 3.12 (80 clients train, 20 join).
"""

import numpy as np

from fedflow.errors import BadInput
from fedflow.partition.scheme import spread


def order_of_joining(
    clients: int, share: float, groups: np.ndarray | None, rng: np.random.Generator
) -> tuple[np.ndarray, int]:
    """All clients [N] in order, newcomers last, and the number of newcomers."""
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
