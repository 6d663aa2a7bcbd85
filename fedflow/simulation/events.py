"""Events of simulated time: which clients train, and when they finish."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor


@dataclass(frozen=True)
class Work:
    """The training of one client, started in round ``begun`` with ``received``, done at time ``ends``."""

    client: int
    begun: int
    ends: float
    epochs: int | None  # set by the method, or None for the usual number
    received: dict[str, Tensor]
    most: int | None = None  # upper limit of epochs, for a straggler
    gradients: int = 0  # samples whose gradient it computes


def first_done(
    busy: list[Work],
    now: float,
    size: int,
    slots: int,
    clients: int,
    rng: np.random.Generator,
    begin: Callable[[int, float], Work],
) -> tuple[list[Work], list[Work]]:
    """The next ``size`` works to finish, in order, and the works still ``busy`` when the last one ends.

    ``slots`` of all ``clients`` train at any time. A client that finishes is replaced at once by a random
    idle one, which starts from the server's state before these updates. No client trains twice for the same
    server step, so a slot stays empty if all other clients are busy or done.
    """
    busy, done = list(busy), list[Work]()
    while len(done) < size:
        taken = sorted(work.client for work in busy + done)
        idle = clients - len(taken)
        for number in rng.choice(idle, size=min(slots - len(busy), idle), replace=False) if idle else ():
            busy.append(begin(_idle(int(number), taken), now))
        first = min(busy, key=lambda work: (work.ends, work.client))
        busy.remove(first)
        done.append(first)
        now = first.ends
    return done, busy


def _idle(number: int, taken: list[int]) -> int:
    """The client with this number among all that are not ``taken`` (sorted)."""
    for k in taken:
        number += k <= number
    return number
