"""Jobs, shards and results, which travel between the run and its workers: plain data."""

from collections.abc import Iterable, Mapping, Sequence
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
from fedflow.seeding import place
from fedflow.simulation.exact import ExactSum
from fedflow.simulation.federation import Federation, FederationFiles
from fedflow.simulation.levels import level, network
from fedflow.simulation.timing import Timing
from fedflow.simulation.updates.path import UpdatePath
from fedflow.simulation.updates.step import UpdateStep

Sums = dict[tuple[str, int], ExactSum]  # weighted sums of uploaded vectors, by name and group


@dataclass(frozen=True)
class Job:
    """The settings that all shards of a run share; `RunSetup` completes them."""

    federation: Federation | FederationFiles
    method: Method
    training: LocalTraining  # of the run; after `RunSetup`, of the method
    seed: int
    cohort: str = "auto"  # "loop", "vmap", or "auto": vmap on a GPU, loop on a CPU
    width: int | None = None  # clients per vmapped call; None: as many as fit in the memory of a GPU
    rounds: int = 0
    clients: int = 0  # N
    keep_trained: bool = False  # also return the model that each client trained
    timing: Timing = field(default_factory=lambda: Timing.parse({}))
    compiled: str = ""  # folder of compiled gradients; empty: none are compiled
    updates: tuple[UpdateStep, ...] = ()

    def path(self, state: Mapping[str, Tensor] | None) -> UpdatePath:
        """The steps of updates, from the server's ``state`` of them; None: not of training, no steps."""
        steps = () if state is None else self.updates
        return UpdatePath(self.method, steps, self.seed, state, self.clients)

    @property
    def device(self) -> str:
        federation = self.federation
        return federation.device if isinstance(federation, FederationFiles) else str(federation.model.device)

    def selection(self, federation: Federation, clients: Sequence[int]) -> tuple[Examples, list[np.ndarray]]:
        """The examples on which clients select models, and the rows of each client, if any."""
        partition = federation.partition
        if Selecting.of(self.method).selects_on_test():
            return federation.own_test, [partition.test(k) for k in clients]
        selections = (partition.selection(k) for k in clients)
        return federation.train, [rows for rows in selections if rows is not None]

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
        args = self._drawing(shard, i, samples, stream, epochs)
        schedule = self.federation.open().ahead.take(self.training, shard.round, *args)
        return schedule if device is None else schedule.to(device)

    def draw_ahead(self, shard: "Shard", streams: dict[str, int]) -> None:
        """Draw the batches of the clients that are expected in the round after the round of ``shard``."""
        if not shard.ahead:  # as in an evaluation, which must not replace the batches of the next round
            return
        federation, later = self.federation.open(), Shard(shard.round + 1, shard.ahead, [], [], [])
        sizes = federation.partition.sizes
        drawings = (
            self._drawing(later, i, int(sizes[k]), stream, epochs)
            for i, k in enumerate(shard.ahead)
            for stream, epochs in streams.items()
        )
        federation.ahead.draw(self.training, later.round, drawings)

    def _drawing(self, shard: "Shard", i: int, samples: int, stream: str, epochs: int) -> tuple[Any, ...]:
        """The arguments of `draw_schedule` for the i-th client of a shard."""
        federation, client = self.federation.open(), shard.clients[i]
        model = network(self.method, federation, level(self.method, federation, client))
        draws = Noisy.of(self.method).draws(model, self.training).get(stream, 0)
        at = self.seed, stream, shard.draw, client
        return samples, shard.epochs_of(i, epochs), *at, draws, place(self.seed, client, self.clients)


class Parcel:
    """Base of messages with tensors; views are copied, as pickle would write all of their storage."""

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: [_copied(item) for item in value] if isinstance(value, list) else value
            for name, value in vars(self).items()
        }


def _copied(item: Any) -> Any:
    view = isinstance(item, Tensor) and item.nbytes < item.untyped_storage().nbytes()
    return item.clone() if view else item


@dataclass
class Shard(Parcel):
    """One worker's share of a round, with the ``vectors``, ``received`` and ``kept`` of its `Messages`."""

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
    steps: dict[str, Tensor] | None = None  # `UpdatePath.for_workers`, if its updates are of training
    cohort: Sequence[int] = ()  # of all shards, if updates take steps

    @property
    def content(self) -> str:
        """The shard in the name of its Prefect task."""
        return f"{len(self.clients)} clients"

    @property
    def draw(self) -> int:
        """The number in the keys of random draws: the round, or minus the phase of an onboarding."""
        return self.round

    def epochs_of(self, i: int, usual: int) -> int:
        """Local epochs of the i-th client: set by the method, or ``usual``; fewer for a straggler."""
        epochs = (self.epochs[i] if self.epochs else None) or usual
        return min(epochs, (self.most[i] if self.most else None) or epochs)


@dataclass
class ClientResult:
    """The result of one client: its update, kept vectors, bytes up, training loss."""

    client: int
    group: int
    weight: float
    scalars: dict[str, float]
    reported: dict[str, float]  # diagnostics, and scalars of real numbers
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
    """The sums of all results, in new memory, whatever their order."""
    sums: Sums = {}
    for result in results:
        for key, part in result.sums.items():
            sums.setdefault(key, ExactSum()).merge(part)
    return sums


@dataclass
class OnboardingShard(Shard):
    """One worker's share of a turn of the onboarding."""

    step: int = 0  # the phase of the onboarding

    @property
    def draw(self) -> int:
        return -self.step


def task_of(
    job: Job,
    federation: Federation,
    shard: Shard,
    level: str,
    *,
    vmapped: bool = False,
    compiled: Gradient | None = None,
) -> Task:
    return Task(
        model=network(job.method, federation, level),
        training=job.training,
        lr=job.training.lr_in(shard.round),
        t=shard.round,
        rounds=job.rounds,
        phase=shard.phase,
        level=level,
        mean_samples=federation.mean_samples,
        vmapped=vmapped,
        compiled=compiled,
        inputs=federation.inputs,
    )
