"""What one worker does in one round: train, or evaluate, its shard of the clients.

Everything in and out is plain data, so a shard runs the same in this process, in a thread, in
another process, or on another machine.
"""

import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from operator import itemgetter

import numpy as np
import torch
from torch import Tensor

from fedflow.local.client import Client, Update
from fedflow.local.compiled import compiled_gradient
from fedflow.local.training import LocalTraining, batches, padded_batches
from fedflow.methods.base import Method
from fedflow.random import torch_seed
from fedflow.simulation.cohort import COHORTS, MOST_STEPS, Call, room, rounded
from fedflow.simulation.exact import ExactSum
from fedflow.simulation.federation import Federation, FederationFiles
from fedflow.simulation.memory import keep_pages
from fedflow.simulation.timing import Timing

RETRIES = 1  # of a client whose training raised or returned NaN
TOLD: set[str] = set()  # methods of which this process has warned that they fell back to the loop
BYTES: dict[tuple[str, ...], int] = {}  # memory that a client of a vmapped call takes, by what it computes
MANY = ("vectors", "scalars", "keep")  # what an `Update` has by name
SCHEDULE = ("positions", "mask", "active")


@dataclass(frozen=True)
class Job:
    """What is the same for every shard of a run."""

    federation: Federation | FederationFiles
    method: Method
    training: LocalTraining
    seed: int
    cohort: str = "auto"  # "loop", "vmap", or "auto": vmap on a GPU, the loop on a CPU
    width: int | None = None  # clients per vmapped call; as many as a GPU has memory for
    keep_trained: bool = False  # also keep every client's last trained model
    timing: Timing = field(default_factory=lambda: Timing.parse({}))
    compiled: str = ""  # folder for compiled gradients; without one, none are compiled


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
class Solved:
    """Clients that are done, and their updates: every tensor [C, ...], those of weights, groups and scalars
    on the host. Valid until the next ones are taken."""

    clients: list[int]
    update: Update


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


def _gather(outcomes: Iterator[Solved | tuple[int, str]], fold: bool) -> Trained:
    """What came of the clients; ``fold`` turns their vectors into sums."""
    trained = Trained([], [])
    for outcome in outcomes:
        if not isinstance(outcome, Solved):
            trained.failures.append(outcome)
            continue
        update = outcome.update
        weights, groups = update.weight.tolist(), update.group.tolist()
        scalars = {name: values.tolist() for name, values in update.scalars.items()}
        losses = scalars.pop("train_loss", [0.0] * len(weights))
        traffic = sum(v[0].numel() * v.element_size() for v in update.vectors.values()) + 4 * len(scalars)
        if fold:
            _fold(trained.sums, update, weights, groups)
        for c, client in enumerate(outcome.clients):
            own = {name: values[c] for name, values in scalars.items()}
            vectors = {} if fold else _row(update.vectors, c)
            keep = _row(update.keep, c)
            trained.sent.append(Sent(client, groups[c], weights[c], own, keep, vectors, traffic, losses[c]))
    return trained


def _fold(
    sums: dict[tuple[str, int], ExactSum], update: Update, weights: list[float], groups: list[int]
) -> None:
    """Add every vector to the sum of its group."""
    for group in sorted(set(groups)):
        members = [c for c, own in enumerate(groups) if own == group]
        for name, stacked in update.vectors.items():
            rows = stacked if len(members) == len(groups) else stacked[members]
            total = sums.setdefault((name, group), ExactSum())
            total.add_rows(rows, [weights[c] for c in members])


def _row(stacked: dict[str, Tensor], c: int) -> dict[str, Tensor]:
    """Client ``c``'s tensors of a cohort."""
    # Copies: a view would keep, and send to other processes, the whole cohort.
    return {name: t[c].clone() if len(t) > 1 else t[0] for name, t in stacked.items()}


def solve(
    job: Job, shard: Shard, step: Callable[[Client], Update], streams: dict[str, int]
) -> Iterator[Solved | tuple[int, str]]:
    """Run ``step`` for every client; yields their updates, or for one client the reason why it has none."""
    federation = job.federation.open()
    keep_pages()
    if federation.model.device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = job.training.precision == "tf32"
        torch.backends.cudnn.allow_tf32 = job.training.precision == "tf32"
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
) -> Iterator[Solved | tuple[int, str]]:
    """`solve` in calls of at most ``width`` clients, halved wherever the GPU runs out of memory."""
    # Neighbours in size share a call, so that little is wasted on padding.
    order = sorted(range(len(shard.clients)), key=lambda i: -federation.partition.sizes[shard.clients[i]])
    start, most = 0, len(order)
    while start < len(order):
        width = job.width or room(federation.model.device, BYTES.get(_about(job, step)))
        places = order[start : start + min(width, most)]
        finite, update = [False] * len(places), None
        try:
            finite, update = _vmapped(job, federation, shard, places, step, streams)
        except Exception as error:  # one client may be to blame: find it, and save the others
            if isinstance(error, torch.OutOfMemoryError) and len(places) > 1:
                most = (len(places) + 1) // 2
                continue
            _warn_of_fallback(job.method.name, error)
        good = [c for c, fine in enumerate(finite) if fine]
        if update is not None and good:
            whole = update if len(good) == len(places) else _mapped(update, itemgetter(good))
            yield Solved([shard.clients[places[c]] for c in good], whole)
        for c, i in enumerate(places):
            if not finite[c]:
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
) -> Solved | tuple[int, str]:
    k, reason = shard.clients[i], ""
    for _ in range(1 + RETRIES):
        try:
            federation.model.seed_noise(torch_seed(job.seed, "noise", shard.round, k))
            update = step(_client(job, federation, shard, i, streams))
        except Exception as error:  # any failure of one client must not end the round
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            continue
        if bool(_finite(update)):
            return Solved([k], _mapped(update, lambda t: t[None]))
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
    model, train = federation.model, federation.train
    compiled = compiled_gradient(model, train, job.training, job.compiled) if job.compiled else None
    client = Client(
        model, train, job.training, lr, index, None, schedule, received, kept, mean, compiled=compiled
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
) -> tuple[list[bool], Update]:
    """Which of the clients at ``places`` have a finite update, and the updates, stacked."""
    model, on_gpu = federation.model, federation.model.device.type == "cuda"
    call = _call(job, federation, shard, places, step, streams, round_shapes=on_gpu)
    steps = sum(t.shape[1] for name, t in call.inputs.items() if name.startswith("positions/"))
    with model.for_cohorts():
        if not on_gpu or steps > MOST_STEPS:
            return _unpacked(call())
        before = torch.cuda.memory_allocated(model.device)
        torch.cuda.reset_peak_memory_stats(model.device)
        outputs = COHORTS.run(call)
        if (name := _about(job, step)) not in BYTES:
            taken = torch.cuda.max_memory_allocated(model.device) - before
            BYTES[name] = taken // len(places)
        return _unpacked(outputs)


def _about(job: Job, step: Callable[[Client], Update]) -> tuple[str, ...]:
    """What a vmapped call computes, but for the values of its inputs."""
    method, settings = job.method, json.dumps([job.method.as_dict(), job.training.as_dict()], default=str)
    return method.name, step.__qualname__, settings, str(job.keep_trained), str(id(job.federation.open()))


def _call(
    job: Job,
    federation: Federation,
    shard: Shard,
    places: list[int],
    step: Callable[[Client], Update],
    streams: dict[str, int],
    round_shapes: bool,
) -> Call:
    """The call that trains the clients at ``places``; ``round_shapes`` so that it resembles others."""
    device, ids = federation.model.device, [shard.clients[i] for i in places]
    indices = [np.asarray(federation.partition.train(k)) for k in ids]
    sizes = [len(index) for index in indices]
    fit = rounded if round_shapes and min(sizes) < max(sizes) else int
    index = np.zeros((len(ids), fit(max(sizes))), dtype=np.int64)
    for row, own in zip(index, indices):
        row[: len(own)] = own
    inputs = {"index": torch.from_numpy(index)}
    if min(sizes) < index.shape[1]:
        inputs["real"] = torch.arange(index.shape[1]) < torch.tensor(sizes)[:, None]
    for stream, usual in streams.items():
        epochs = [_epochs(shard, i, usual) for i in places]
        steps = fit(max(job.training.steps(n, e) for n, e in zip(sizes, epochs)))
        padded = padded_batches(job.training, sizes, epochs, job.seed, stream, shard.round, ids, steps)
        inputs |= {f"{name}/{stream}": t for name, t in padded.items()}
    inputs = {name: t.to(device, non_blocking=True) for name, t in inputs.items()}
    each = set(inputs)
    for kind, names in (("received", shard.received), ("kept", shard.kept)):
        for name in names[places[0]]:
            at = [names[i][name] for i in places]
            one_for_all = len(set(at)) == 1
            key = f"{kind}/{name}"
            vectors = [shard.vectors[p] for p in at[: 1 if one_for_all else None]]
            value = vectors[0] if one_for_all else torch.stack(vectors)
            inputs[key] = value.to(device)  # a graph would read a tensor of the host only once
            each |= set() if one_for_all else {key}
    lr = round_lr(job.training, shard.round)
    if job.training.lr_decay < 1:
        inputs["lr"] = torch.full((), lr, dtype=torch.float64, device=device)

    def one(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        parts = _parts(inputs)
        client = Client(
            federation.model, federation.train, job.training, inputs.get("lr", lr), inputs["index"],
            inputs.get("real"),
            {
                stream: {name: parts[name][stream] for name in SCHEDULE if stream in parts.get(name, {})}
                for stream in streams
            },
            parts.get("received", {}), parts.get("kept", {}), federation.mean_samples, vmapped=True,
        )  # fmt: skip
        update = step(client)
        return {
            "finite": _finite(update), "weight": update.weight, "group": update.group,
            **{f"{kind}/{n}": t for kind in MANY for n, t in getattr(update, kind).items()},
        }  # fmt: skip

    return Call(_about(job, step), one, inputs, frozenset(each))


def _parts(tensors: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Tensors "kind/name" by kind, then by name; those without a kind are left out."""
    parts: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        kind, slash, name = key.partition("/")
        if slash:
            parts.setdefault(kind, {})[name] = value
    return parts


def _unpacked(outputs: dict[str, Tensor]) -> tuple[list[bool], Update]:
    """Which clients' updates are finite, and the updates, their numbers on the host after one transfer."""
    names = [name for name in outputs if not name.startswith(("vectors/", "keep/"))]
    numbers = dict(zip(names, torch.stack([outputs[name].double() for name in names]).cpu()))
    parts = _parts(outputs | numbers)
    update = Update(
        weight=numbers["weight"], group=numbers["group"].long(), **{k: parts.get(k, {}) for k in MANY}
    )
    return numbers["finite"].bool().tolist(), update


def _epochs(shard: Shard, i: int, usual: int) -> int:
    """Local epochs of the i-th client: its own where the method says how many."""
    return (shard.epochs[i] if shard.epochs else None) or usual


def _mapped(update: Update, change: Callable[[Tensor], Tensor]) -> Update:
    """The update with every tensor changed."""
    many = {kind: {name: change(t) for name, t in getattr(update, kind).items()} for kind in MANY}
    return Update(weight=change(update.weight), group=change(update.group), **many)


def _finite(update: Update) -> Tensor:
    tensors = [*update.vectors.values(), *update.keep.values(), *update.scalars.values()]
    return torch.stack([t.isfinite().all() for t in tensors]).all()


def round_lr(training: LocalTraining, round: int) -> float:
    """The client learning rate of a round (rounds count from 1)."""
    return training.lr * training.lr_decay ** (round - 1)
