"""Who is at work and when they are done: the events of simulated time, in order."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor


@dataclass(frozen=True)
class Work:
    """What one client was sent and does: begun in a round (from the server before it), done at ``ends``."""

    client: int
    begun: int
    ends: float
    epochs: int | None  # of its own, where the method says how many
    received: dict[str, Tensor]
    most: int | None = None  # epochs at most, of a straggler


def first_done(
    busy: list[Work],
    now: float,
    size: int,
    slots: int,
    clients: int,
    rng: np.random.Generator,
    begin: Callable[[int, float], Work],
) -> tuple[list[Work], list[Work]]:
    """The next ``size`` works that are done, in this order, and those still ``busy`` when the last one is.

    ``slots`` of so many clients work at any time. Whoever is done is replaced at once by a random idle
    client, which begins from the server as it is before these updates; nobody works twice for the same
    step of the server, so that a slot stays empty when all others are busy or done.
    """
    busy, done = list(busy), list[Work]()
    while len(done) < size:
        taken = sorted(work.client for work in busy + done)
        idle = clients - len(taken)
        for place in rng.choice(idle, size=min(slots - len(busy), idle), replace=False) if idle else ():
            busy.append(begin(_idle(int(place), taken), now))
        first = min(busy, key=lambda work: (work.ends, work.client))
        busy.remove(first)
        done.append(first)
        now = first.ends
    return done, busy


def _idle(place: int, taken: list[int]) -> int:
    """The client at ``place`` among all that are not ``taken`` (sorted)."""
    for k in taken:
        place += k <= place
    return place
