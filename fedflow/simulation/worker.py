"""What one worker does in one round: train, or evaluate, its shard of the clients.

Everything in and out is plain data, so a shard runs the same in this process, in a thread, in
another process, or on another machine.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fedflow.local.client import Client, Update
from fedflow.local.training import LocalTraining, batches, padded_batches
from fedflow.methods.base import Method
from fedflow.random import torch_seed
from fedflow.simulation.exact import ExactSum
from fedflow.simulation.federation import Federation, FederationFiles
from fedflow.simulation.timing import Timing

RETRIES = 1  # of a client whose training raised or returned NaN
TOLD: set[str] = set()  # methods of which this process has warned that they fell back to the loop


@dataclass(frozen=True)
class Job:
    """What is the same for every shard of a run."""

    federation: Federation | FederationFiles
    method: Method
    training: LocalTraining
    seed: int
    cohort: str = "auto"  # "loop", "vmap", or "auto": vmap on a GPU, the loop on a CPU
    width: int = 32  # clients per vmapped call
    keep_trained: bool = False  # also keep every client's last trained model
    timing: Timing = field(default_factory=lambda: Timing.parse({}))


@dataclass
class Shard:
    """One worker's share of a round. ``vectors`` holds each distinct tensor once."""

    round: int
    clients: list[int]
    vectors: list[Tensor]
    received: list[dict[str, int]]  # per client: name -> place in vectors
    kept: list[dict[str, int]]
    epochs: list[int | None] | None = None  # per client, where its method says how many


@dataclass
class Sent:
    """What came of one client."""

    client: int
    group: int
    weight: float
    scalars: dict[str, float]
    keep: dict[str, Tensor]
    vectors: dict[str, Tensor]  # only for methods that gather
    traffic: int  # bytes up
    train_loss: float


@dataclass
class Trained:
    """One worker's results of a round."""

    sent: list[Sent]
    failures: list[tuple[int, str]]
    sums: dict[tuple[str, int], ExactSum] = field(default_factory=dict)


@dataclass
class IntroductionShard(Shard):
    """One worker's share of an introduction."""

    phase: int = 0


def introduce_shard(job: Job, shard: IntroductionShard) -> Trained:
    """Ask every client of the shard; the server gets every answer."""

    def step(client: Client) -> Update:
        return job.method.introduce(shard.phase, client)

    one_by_one = replace(job, cohort="loop")
    return _gather(solve(one_by_one, shard, step, job.method.streams(job.training)), fold=False)


def train_shard(job: Job, shard: Shard) -> Trained:
    """Train every client of the shard; fold their vectors into sums unless the method gathers."""

    def step(client: Client) -> Update:
        update = job.method.local(client)
        update.scalars |= {"train_loss": client.train_loss}
        if job.keep_trained and client.trained is not None:
            update.keep["trained"] = client.trained
        return update

    return _gather(solve(job, shard, step, job.method.streams(job.training)), fold=not job.method.gathers)


def _gather(outcomes: Iterator[tuple[int, Update | str]], fold: bool) -> Trained:
    """What came of the clients; ``fold`` turns their vectors into sums."""
    trained = Trained([], [])
    for client, outcome in outcomes:
        if isinstance(outcome, str):
            trained.failures.append((client, outcome))
            continue
        scalars = {name: float(value) for name, value in outcome.scalars.items()}
        loss = scalars.pop("train_loss", 0.0)
        weight, group = float(outcome.weight), int(outcome.group)
        traffic = sum(v.numel() * v.element_size() for v in outcome.vectors.values()) + 4 * len(scalars)
        if fold:
            for name, vector in outcome.vectors.items():
                trained.sums.setdefault((name, group), ExactSum()).add(vector, weight)
        vectors = {} if fold else outcome.vectors
        trained.sent.append(Sent(client, group, weight, scalars, outcome.keep, vectors, traffic, loss))
    return trained


def solve(
    job: Job, shard: Shard, step: Callable[[Client], Update], streams: dict[str, int]
) -> Iterator[tuple[int, Update | str]]:
    """Run ``step`` for every client; yields its update, or the reason why there is none."""
    federation = job.federation.open()
    vmapped = job.cohort == "vmap" or (job.cohort == "auto" and federation.model.device.type == "cuda")
    # Not dropout, whose noise is keyed by client, nor BatchNorm, which counts padding and batches in place.
    if vmapped and not federation.model.draws_noise and not federation.model.buffers:
        yield from _solve_vmapped(job, federation, shard, step, streams)
    else:
        for i in range(len(shard.clients)):
            yield _solve_one(job, federation, shard, i, step, streams)


def _solve_vmapped(
    job: Job,
    federation: Federation,
    shard: Shard,
    step: Callable[[Client], Update],
    streams: dict[str, int],
) -> Iterator[tuple[int, Update | str]]:
    """`solve` in calls of at most ``width`` clients, halved wherever the GPU runs out of memory."""
    # Neighbours in size share a call, so that little is wasted on padding.
    order = sorted(range(len(shard.clients)), key=lambda i: -federation.partition.sizes[shard.clients[i]])
    start, width = 0, job.width
    while start < len(order):
        places = order[start : start + width]
        finite, stacked = [False] * len(places), {}
        try:
            stacked = _vmapped(job, federation, shard, places, step, streams)
            finite = stacked.pop("finite").tolist()
        except Exception as error:  # one client may be to blame: find it, and save the others
            if isinstance(error, torch.OutOfMemoryError) and len(places) > 1:
                width = (len(places) + 1) // 2
                continue
            _warn_of_fallback(job.method.name, error)
        for c, i in enumerate(places):
            if finite[c]:
                yield shard.clients[i], Update(**{name: _pick(value, c) for name, value in stacked.items()})
            else:
                yield _solve_one(job, federation, shard, i, step, streams)
        start += len(places)


def _warn_of_fallback(method: str, error: Exception) -> None:
    """Once per process and method: a run that is many times slower should say why."""
    if method not in TOLD:
        TOLD.add(method)
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        warnings.warn(f"{method}: clients train one by one, because vmap failed ({reason})", stacklevel=2)


def _solve_one(
    job: Job,
    federation: Federation,
    shard: Shard,
    i: int,
    step: Callable[[Client], Update],
    streams: dict[str, int],
) -> tuple[int, Update | str]:
    k, reason = shard.clients[i], ""
    for _ in range(1 + RETRIES):
        try:
            federation.model.seed_noise(torch_seed(job.seed, "noise", shard.round, k))
            update = step(_client(job, federation, shard, i, streams))
        except Exception as error:  # any failure of one client must not end the round
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            continue
        if bool(_finite(update)):
            return k, update
        reason = "its update holds NaN or infinite values"
    return k, reason


def _client(job: Job, federation: Federation, shard: Shard, i: int, streams: dict[str, int]) -> Client:
    k, device = shard.clients[i], federation.model.device
    index = torch.as_tensor(federation.partition.train(k), device=device)
    schedule = {
        stream: [
            torch.as_tensor(positions, device=device)
            for positions in batches(
                job.training, len(index), _epochs(shard, i, usual), job.seed, stream, shard.round, k
            )
        ]
        for stream, usual in streams.items()
    }
    received = {name: shard.vectors[at] for name, at in shard.received[i].items()}
    kept = {name: shard.vectors[at] for name, at in shard.kept[i].items()}
    lr, mean = round_lr(job.training, shard.round), federation.mean_samples
    client = Client(
        federation.model, federation.train, job.training, lr, index, None, schedule, received, kept, mean
    )
    if isinstance(shard, IntroductionShard):
        client.times = torch.from_numpy(job.timing.times(job.seed, k, job.training.steps(len(index), 1)))
    return client


def _vmapped(
    job: Job,
    federation: Federation,
    shard: Shard,
    places: list[int],
    step: Callable[[Client], Update],
    streams: dict[str, int],
) -> dict[str, Any]:
    """The fields of the updates of the clients at ``places``, stacked, and which are "finite" [C]."""
    device, ids = federation.model.device, [shard.clients[i] for i in places]
    indices = [torch.as_tensor(federation.partition.train(k)) for k in ids]
    sizes = [len(index) for index in indices]
    index = torch.nn.utils.rnn.pad_sequence(indices, batch_first=True).to(device)  # [C, n_max]
    real = (torch.arange(index.shape[1]) < torch.tensor(sizes)[:, None]).to(device)
    schedule = {}
    for stream, usual in streams.items():
        epochs = [_epochs(shard, i, usual) for i in places]
        padded = padded_batches(job.training, sizes, epochs, job.seed, stream, shard.round, ids)
        schedule[stream] = tuple(t.to(device) for t in padded)
    received, received_dims = _stacked(shard, [shard.received[i] for i in places])
    kept, kept_dims = _stacked(shard, [shard.kept[i] for i in places])
    lr, mean = round_lr(job.training, shard.round), federation.mean_samples
    model, train = federation.model, federation.train
    model.ready()

    def one(index: Tensor, real: Tensor, schedule: dict, received: dict, kept: dict) -> dict:
        client = Client(model, train, job.training, lr, index, real, schedule, received, kept, mean)
        update = step(client)
        return vars(update) | {"finite": _finite(update)}

    return torch.func.vmap(one, in_dims=(0, 0, 0, received_dims, kept_dims))(
        index, real, schedule, received, kept
    )


def _epochs(shard: Shard, i: int, usual: int) -> int:
    """Local epochs of the i-th client: its own where the method says how many."""
    return (shard.epochs[i] if shard.epochs else None) or usual


def _pick(value: Any, c: int) -> Any:
    """Client ``c``'s part of a stacked tensor, or of a mapping of them."""
    # Copies: a view would keep, and send to other processes, the whole cohort.
    return {name: t[c].clone() for name, t in value.items()} if isinstance(value, dict) else value[c].clone()


def _stacked(
    shard: Shard, names: Sequence[dict[str, int]]
) -> tuple[dict[str, Tensor], dict[str, int | None]]:
    """Vectors of a cohort by name: stacked [C, .] where clients differ, one tensor where all share it."""
    vectors: dict[str, Tensor] = {}
    dims: dict[str, int | None] = {}
    for name in names[0]:
        places = [entry[name] for entry in names]
        shared = len(set(places)) == 1
        vectors[name] = (
            shard.vectors[places[0]] if shared else torch.stack([shard.vectors[p] for p in places])
        )
        dims[name] = None if shared else 0
    return vectors, dims


def _finite(update: Update) -> Tensor:
    tensors = [*update.vectors.values(), *update.keep.values(), *update.scalars.values()]
    return torch.stack([t.isfinite().all() for t in tensors]).all()


def round_lr(training: LocalTraining, round: int) -> float:
    """The client learning rate of a round (rounds count from 1)."""
    return training.lr * training.lr_decay ** (round - 1)
