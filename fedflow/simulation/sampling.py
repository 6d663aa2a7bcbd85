"""Samplers of `run.sampling`, which draw the clients of a round.

A sampler sets the chance of every client and the size of the cohort; `Method.plan` then draws the cohort. So
with the same seed, all methods that do not choose their own cohorts have the same one in every round.

- uniform, proportional: m = max(1, floor(R N)) of the N clients, with equal chances or in proportion to n_k.
- bernoulli: every client takes part with probability R, independently of the others. An empty cohort is
  redrawn, so N R / (1 - (1 - R)^N) clients take part on average. Source: code of FedDyn.
- sweep: all clients take part once, m at a time, in random order, before any takes part again. The last
  cohort of a sweep also has the fewer than m clients that are left. Source: code of the client curriculum.
- easy_first: the same with a growing pool of clients, which depends on their losses and is part of the run's
  state (`fedflow.simulation.extensions.client_curriculum`).
"""

import numpy as np

from fedflow.seeding import generator


def cohort_size(rate: float, clients: int) -> int:
    """m = max(1, floor(R N)), the usual size of a cohort at participation ``rate`` of ``clients``.

    R N is rounded down, as in the code of PFLDyn; another reading of FedDyn rounds to the nearest number.
    """
    return max(1, int(rate * clients + 1e-9))


def sample(kind: str, rate: float, sizes: np.ndarray, seed: int, number: int) -> tuple[np.ndarray, int]:
    """The chances [N] of all clients and the size of a cohort, both for `Method.plan`.

    ``kind`` is the sampler, ``rate`` the participation R, ``sizes`` [N] are n_k, and ``number`` counts the
    cohorts of a run from 0.
    """
    clients = len(sizes)
    size, equal = cohort_size(rate, clients), np.ones(clients)
    if kind == "proportional":
        return sizes, size
    if kind == "bernoulli":
        # Independent clients, given how many take part, are a uniform subset, as `Method.plan` draws it.
        rng, size = generator(seed, "bernoulli", number), 0
        while size == 0:
            size = int(rng.binomial(clients, rate))
    if kind == "sweep":
        turns = turns_of(clients, size)
        sweep, turn = divmod(number, len(turns))
        return take_turn(np.arange(clients), seed, sweep, turns[turn], clients)
    return equal, size


def turns_of(clients: int, size: int) -> list[tuple[int, int]]:
    """Start and end of every turn of ``size`` of the ``clients``; the last turn may have more."""
    starts = range(0, clients - size + 1, size) or range(1)
    return list(zip(starts, [*starts[1:], clients]))


def take_turn(
    pool: np.ndarray, seed: int, number: int, turn: tuple[int, int], clients: int
) -> tuple[np.ndarray, int]:
    """The chances of all ``clients`` [N] and the size of a cohort: one turn of the ``number``-th pool.

    ``pool`` are sorted clients, which take their turns in random order.
    """
    order = generator(seed, "sweep", number).permutation(len(pool))
    members = pool[order[slice(*turn)]]
    return np.bincount(members, minlength=clients), len(members)
