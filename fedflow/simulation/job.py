"""Jobs, shards and results, which travel between the run and its workers: plain data."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedflow.data.examples import Examples
from fedflow.local.fast.compiled import Gradient
from fedflow.local.local_training import LocalTraining
from fedflow.local.schedule import Schedule
from fedflow.local.task import Task
from fedflow.methods.method import Method
from fedflow.methods.protocols import Noisy, Selecting
from fedflow.simulation.exact import ExactSum
from fedflow.simulation.federation import Federation, FederationFiles
from fedflow.simulation.levels import level, network
from fedflow.simulation.timing import Timing
from fedflow.simulation.updates.path import UpdatePath
from fedflow.simulation.updates.step import UpdateStep
from fedflow.simulation.updates.sums import Sums


@dataclass(frozen=True)
class Job:
    """The settings that all shards of a run share."""

    federation: Federation | FederationFiles
    method: Method
    training: LocalTraining  # of the run; in a job of `RunSetup`, that of the method
    seed: int
    cohort: str = "auto"  # "loop", "vmap", or "auto": vmap on a GPU, loop on a CPU
    width: int | None = None  # clients per vmapped call; None: as many as fit in the memory of a GPU
    rounds: int = 0  # of the run; `RunSetup` sets it
    keep_trained: bool = False  # also return the model that each client trained
    timing: Timing = field(default_factory=lambda: Timing.parse({}))
    compiled: str = ""  # folder of compiled gradients; empty: none are compiled
    updates: tuple[UpdateStep, ...] = ()  # steps of updates of training; `RunSetup` sets them

    def path(self, shard: "Shard") -> UpdatePath:
        """The way of the updates of a shard to the server: that of this run, if they are of training."""
        if shard.steps is None:
            return UpdatePath(self.method)
        return UpdatePath(self.method, self.updates, self.seed, shard.steps)

    @property
    def device(self) -> str:
        """Where shards train."""
        here = self.federation
        return here.device if isinstance(here, FederationFiles) else str(here.model.device)

    def selection(self, federation: Federation, clients: Sequence[int]) -> tuple[Examples, list[np.ndarray]]:
        """The examples on which clients select models, and the rows of each client; none if none do."""
        partition = federation.partition
        if Selecting.of(self.method).selects_on_test():
            return federation.own_test, [partition.test(k) for k in clients]
        rows = (partition.selection(k) for k in clients)
        return federation.train, [own for own in rows if own is not None]

    def schedule(
        self,
        shard: "Shard",
        i: int,
        samples: int,
        stream: str,
        epochs: int,
        device: torch.device | None = None,
    ) -> Schedule:
        """The batches of the i-th client of a shard, with ``samples`` samples and its usual ``epochs``."""
        args = self._draw_of(shard, i, samples, stream, epochs)
        drawn = self.federation.open().ahead.take(self.training, shard.round, *args)
        return drawn if device is None else drawn.to(device)

    def draw_ahead(self, shard: "Shard", streams: dict[str, int]) -> None:
        """Draw the batches of the clients that are expected in the round after that of ``shard``."""
        if not shard.ahead:  # as in an evaluation, after which those of the next round are needed
            return
        federation, later = self.federation.open(), Shard(shard.round + 1, shard.ahead, [], [], [])
        sizes = federation.partition.sizes
        federation.ahead.draw(
            self.training,
            later.round,
            (
                self._draw_of(later, i, int(sizes[k]), stream, epochs)
                for i, k in enumerate(shard.ahead)
                for stream, epochs in streams.items()
            ),
        )

    def _draw_of(self, shard: "Shard", i: int, samples: int, stream: str, epochs: int) -> tuple[Any, ...]:
        """What `draw_schedule` draws for the i-th client of a shard."""
        federation, client = self.federation.open(), shard.clients[i]
        model = network(self.method, federation, level(self.method, federation, client))
        draws = Noisy.of(self.method).draws(model, self.training).get(stream, 0)
        return samples, shard.epochs_of(i, epochs), self.seed, stream, shard.round, client, draws


class Parcel:
    """Plain data with lists of tensors, which pickle without what they are views of."""

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: [_alone(each) for each in value] if isinstance(value, list) else value
            for name, value in vars(self).items()
        }


def _alone(value: Any) -> Any:
    """``value``; a copy if it is a tensor in a larger storage, all of which pickle would write."""
    if isinstance(value, Tensor) and value.nbytes < value.untyped_storage().nbytes():
        return value.clone()
    return value


@dataclass
class Shard(Parcel):
    """One worker's share of a round; ``vectors``, ``received`` and ``kept`` are those of `Messages`."""

    round: int
    clients: list[int]
    vectors: list[Tensor]
    received: list[dict[str, int]]
    kept: list[dict[str, int]]
    phase: str = ""  # of the method
    epochs: list[int | None] | None = None  # per client, if the method sets them
    most: list[int | None] | None = None  # per client, upper limits of stragglers
    ahead: list[int] = field(default_factory=list)  # clients that a GPU should expect in the next round
    cycle: int = 0  # within the round
    steps: dict[str, Tensor] | None = None  # `State.steps`, if its updates take the steps of `run.updates`

    @property
    def content(self) -> str:
        """What the name of its Prefect task says."""
        return f"{len(self.clients)} clients"

    def epochs_of(self, i: int, usual: int) -> int:
        """Local epochs of the i-th client: the method's, else ``usual``; fewer for a straggler."""
        own = (self.epochs[i] if self.epochs else None) or usual
        return min(own, (self.most[i] if self.most else None) or own)


@dataclass
class ClientResult:
    """The result of one client: its update, kept vectors, bytes up, training loss."""

    client: int
    group: int
    weight: float
    scalars: dict[str, float]
    reported: dict[str, float]  # diagnostics, and those scalars that are no whole numbers
    keep: dict[str, Tensor]
    vectors: dict[str, Tensor]  # only for methods that gather
    traffic: int  # bytes up
    train_loss: float


@dataclass
class Trained:
    """One worker's results of a round."""

    sent: list[ClientResult]
    failures: list[tuple[int, str]]
    sums: Sums = field(default_factory=dict)


def merged_sums(results: Iterable[Trained]) -> Sums:
    """The sums of all results, in new memory; in which order they are merged does not matter."""
    sums: Sums = {}
    for result in results:
        for key, part in result.sums.items():
            sums.setdefault(key, ExactSum()).merge(part)
    return sums


@dataclass
class OnboardingShard(Shard):
    """One worker's share of a turn of the onboarding."""

    step: int = 0  # the phase of the onboarding


def task_of(
    job: Job,
    federation: Federation,
    shard: Shard,
    level: str,
    *,
    vmapped: bool = False,
    compiled: Gradient | None = None,
) -> Task:
    """The task that all clients of one level share in a shard."""
    model = network(job.method, federation, level)
    lr, mean = job.training.lr_in(shard.round), federation.mean_samples
    return Task(
        model,
        job.training,
        lr,
        shard.round,
        job.rounds,
        shard.phase,
        level,
        mean,
        vmapped,
        compiled,
        federation.inputs,
    )
