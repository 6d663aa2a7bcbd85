"""The client curriculum (`run.sampling: easy_first`): clients with a small loss take part first.

All clients are ranked by the mean loss L_k of their training samples (Eq. 2.1 of the source), and the first
g(u) of them are the pool: u counts client updates, and g is the `Pacing` over a budget of T_c updates. The
clients of the pool take part once each, m at a time in random order; then all clients are ranked again.

``global``: L_k under the model that a client is served. The server polls all N clients for every pool: a
message down and a number up each. ``expert``: L_k under a network trained on all data; nothing is polled.
Anti ranks the largest loss first. Equal losses are in a random order that is the same for all pools; with
``order: random``, all clients are in a new random order for every pool. If all clients are in the pool from
the start, this is `sweep`.

*Differs from the authors' code in*: a rest of fewer than m clients joins the turn before, as in a `sweep`,
and the run ends after R rounds, or after exactly T_c updates if ``updates`` is set. The code adds a short
turn, and ends with the pool in which T_c is reached.

Source: Vahidian et al., "When Do Curricula Work in Federated Learning?", ICCV 2023 (thesis: Section 2.6).
"""

import warnings
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import islice, takewhile
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedflow.errors import BadInput
from fedflow.local.extensions.extension import Reads
from fedflow.local.pacing import EXPERT, Pacing, need_expert, read_expert
from fedflow.local.wire import message_bytes
from fedflow.seeding import generator, torch_seed
from fedflow.settings import option
from fedflow.simulation.extensions.extension import Run, RunExtension
from fedflow.simulation.job import Job, Shard
from fedflow.simulation.messages import received_bytes
from fedflow.simulation.outcome import SERIES_CLIENTS, RoundReport
from fedflow.simulation.sampling import take_turn, turns_of
from fedflow.simulation.worker import client_of

POLLED = "polled_loss"  # the series of the losses by which clients are ranked


class Turn(NamedTuple):
    """The cohort of one round: from ``start`` to ``end`` in a shuffled pool of ``clients``."""

    pool: int  # its number, from 0
    before: int  # client updates before this pool
    clients: int
    start: int
    end: int


class ClientCurriculum(Pacing):
    """The order in which clients join the pool, and the pace."""

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
        return read_expert(self)

    @property
    def polls(self) -> bool:
        """True if clients are asked for their losses, because the order depends on them."""
        return self.score == "global" and self.scores

    def pools(self, clients: int, budget: int) -> Iterator[tuple[int, int]]:
        """The client updates u before every pool, and its size g(u), without end."""
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
        """All ``clients`` in the order of a pool: by their ``losses`` [N], or at random without any."""
        if losses is None or self.order == "random":
            return generator(seed, "client curriculum", pool).permutation(clients)
        losses = np.where(np.isnan(losses), np.inf, losses)  # of models that diverged
        ties = generator(seed, "client curriculum").permutation(clients)
        return np.lexsort((ties, -losses if self.order == "anti" else losses))


class Pools(RunExtension):
    """The pool of a `ClientCurriculum` in every round: its clients, sorted, are part of the run's state."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.settings: ClientCurriculum = run.settings.client_curriculum
        self.turns = self.settings.turns(run.clients, run.cohort_size, run.settings.rounds)
        self.pool = np.empty(0, dtype=np.int64)

    @classmethod
    def wanted(cls, run: Run) -> bool:
        return run.settings.client_curriculum is not None

    @property
    def rounds(self) -> int:
        return len(self.turns)

    def smallest_cohort(self) -> tuple[int, str]:
        smallest = min(turn.end - turn.start for turn in self.turns)
        return smallest, f"the smallest cohort of {self.settings.section}"

    def check(self) -> None:
        need_expert(self.settings, self.run.federation.inputs)
        if (pool := self.turns[-1].clients) < self.run.clients:
            reason = f"the run ends when {pool} of {self.run.clients} clients are in the pool"
            warnings.warn(f"{self.settings.section}: {reason}", stacklevel=5)

    def packed(self) -> Mapping[str, Tensor]:
        return {"pool": torch.from_numpy(self.pool)}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self.pool = tensors["pool"].numpy()

    def cohort(self, t: int) -> tuple[np.ndarray, int]:
        turn, run = self.turns[t - 1], self.run
        return take_turn(self.pool, run.job.seed, turn.pool, (turn.start, turn.end), run.clients)

    def start_round(self, report: RoundReport, before: Mapping[str, float]) -> None:
        report.values |= {name: before.get(name, 0) for name in ("polls", "poll_bytes")}
        report.values["pool"] = self.turns[report.round - 1].clients

    def poll(self, report: RoundReport) -> None:
        """Rank all clients for a new pool, if this round starts one."""
        turn, run = self.turns[report.round - 1], self.run
        if turn.start:
            return
        losses = None
        if self.settings.polls:
            losses = self._polled(report)
            report.series[POLLED] = losses[:SERIES_CLIENTS].tolist()
        elif self.settings.scores:
            losses = self._expert_losses
        ranked = self.settings.ranked(losses, run.clients, run.job.seed, turn.pool)
        self.pool = np.sort(ranked[: turn.clients])

    def _polled(self, report: RoundReport) -> np.ndarray:
        """All clients' mean training losses [N] under the models that they are served.

        A message down and a number up each are added to the traffic, and the slowest poll to the clock.
        """
        run, t, losses = self.run, report.round, np.empty(self.run.clients)
        down, up = dict[int, int](), message_bytes({}, scalars=1)
        for shards in run.scoring.shards(t, range(run.clients)):
            polled = run.executor.map(poll_shard, run.job, shards, f"round {t} · poll")
            for shard, of_shard in zip(shards, polled, strict=True):
                losses[shard.clients] = of_shard
                down |= zip(shard.clients, received_bytes(run.job.path(None), shard), strict=True)
        report.values["polls"] += 1
        report.values["poll_bytes"] += sum(down.values()) + up * run.clients
        run.count_traffic(report, down, dict.fromkeys(range(run.clients), up))
        report.values["clock"] += max(run.clock.poll(t, k) for k in range(run.clients))
        return losses

    @cached_property
    def _expert_losses(self) -> np.ndarray:
        """An expert's mean loss on the training samples of every client [N]."""
        federation = self.run.federation
        losses = federation.inputs[EXPERT].double().cpu().numpy()
        return np.array([losses[federation.partition.train(k)].mean() for k in range(self.run.clients)])


def poll_shard(job: Job, shard: Shard) -> list[float]:
    """The mean loss of every client's training samples under the model that it is served.

    The smallest loss, if it would choose one of several models by its test data.
    """
    federation, losses = job.federation.open(), list[float]()
    for i, k in enumerate(shard.clients):
        client = client_of(job, federation, shard, i, {})
        client.model.seed_noise(torch_seed(job.seed, "served noise", shard.round, k))
        served = job.method.model_for(client)
        w, number = served if isinstance(served, tuple) else (served, torch.zeros(()))
        losses.append(min(float(client.full_loss(w)) for w in (w if number is None else [w])))
    return losses
