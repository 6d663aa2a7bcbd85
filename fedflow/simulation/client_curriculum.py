"""The client curriculum (`run.sampling: easy_first`): clients with a small loss take part first.

All clients are ranked by the mean loss L_k of their training samples (Eq. 2.1 of the source), and the first
g(u) of them are the pool: u counts client updates, and g is the `Pacing` over a budget of T_c updates. The
clients of the pool take part once each, m at a time in random order; then all clients are ranked again.

``global``: L_k under the model that a client is served. The server polls all N clients for every pool: a
message down and a number up each. ``expert``: L_k under a network trained on all data; nothing is polled.
Anti ranks the largest loss first. Equal losses are in one random order, the same for all pools; with ``order:
random``, all clients are, in a new order for every pool. Where all clients are in the pool from the start,
this is `sweep`.

*Differs from the authors' code in*: fewer than m clients that are left join the turn before, as in a `sweep`,
and the run ends after R rounds, or after exactly T_c updates if ``updates`` is set. The code adds a short
turn, and ends with the pool in which T_c is reached.

Source: Vahidian et al., "When Do Curricula Work in Federated Learning?", ICCV 2023 (thesis: Section 2.6).
"""

from collections.abc import Iterator
from itertools import islice, takewhile
from typing import NamedTuple

import numpy as np

from fedflow.errors import BadInput
from fedflow.local.extensions.extension import Reads
from fedflow.local.pacing import Pacing, read_expert
from fedflow.seeding import generator
from fedflow.settings import option
from fedflow.simulation.sampling import turns_of


class Turn(NamedTuple):
    """The cohort of one round: those from ``start`` to ``end`` of the ``clients`` of a shuffled pool."""

    pool: int  # its number, from 0
    before: int  # client updates before this pool
    clients: int
    start: int
    end: int


class ClientCurriculum(Pacing):
    """Which clients take part first, and how fast the others follow."""

    section = "run.client_curriculum"
    score: str = option(
        "global",
        "the clients' losses under the models that they are served, or under an expert",
        choices=("global", "expert"),
    )
    expert: str | None = option(None, "the network of `central` whose losses rank the clients (expert)")
    updates: int | None = option(
        None,
        "client updates after which the run ends, and of the pacing; null = R m, for the pacing only",
        symbol="T_c",
        ge=1,
    )

    def validate(self) -> None:
        if (self.score == "expert") != (self.expert is not None):
            accepted = "a name of `central`" if self.score == "expert" else "null"
            raise BadInput(f"{self.section}.expert", self.expert, f"{accepted}, as score is {self.score}")

    @property
    def reads(self) -> tuple[Reads, ...]:
        """The central network that it reads, if any."""
        return read_expert(self)

    @property
    def polls(self) -> bool:
        """Whether clients are asked for their losses: not if the order does not depend on them."""
        return self.score == "global" and self.scores

    def pools(self, clients: int, budget: int) -> Iterator[tuple[int, int]]:
        """The client updates u before every pool, and its size g(u); without end."""
        u = 0
        while True:
            size = self.size(u, budget, clients)
            yield u, size
            u += size

    def turns(self, clients: int, cohort: int, rounds: int) -> list[Turn]:
        """The turns of a run of at most ``rounds`` rounds, ``cohort`` of the ``clients`` at a time.

        Raises `BadInput` if ``updates`` is more than they have.
        """
        every = (
            Turn(number, u, size, start, end)
            for number, (u, size) in enumerate(self.pools(clients, self.updates or rounds * cohort))
            for start, end in turns_of(size, cohort)
        )
        if (last := self.updates) is None:
            return list(islice(every, rounds))
        within = list(takewhile(lambda turn: turn.before + turn.start < last, every))
        if len(within) > rounds:
            raise BadInput("run.rounds", rounds, f"at least {len(within)} for {last} updates")
        return [turn._replace(end=min(turn.end, last - turn.before)) for turn in within]

    def ranked(self, losses: np.ndarray | None, clients: int, seed: int, pool: int) -> np.ndarray:
        """All ``clients`` in the order of a pool, by their ``losses`` [N]; None: in random order."""
        if losses is None or self.order == "random":
            return generator(seed, "client curriculum", pool).permutation(clients)
        losses = np.where(np.isnan(losses), np.inf, losses)  # of models that diverged
        ties = generator(seed, "client curriculum").permutation(clients)
        return np.lexsort((ties, -losses if self.order == "anti" else losses))
