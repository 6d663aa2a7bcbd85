"""The work on one shard of the clients in a round.

Everything in and out is plain data, so a shard runs the same in this process, in a thread, in another
process, or on another machine.
"""

import socket
import sysconfig
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedflow.data.examples import Examples
from fedflow.errors import FedflowError, returned
from fedflow.local.client import TRAIN_LOSS, TRAINED, Client, Update
from fedflow.local.fast.compiled import Gradient, compiled_gradient
from fedflow.local.samples import Samples
from fedflow.methods.protocols import Noisy, Onboarding
from fedflow.seeding import torch_seed
from fedflow.simulation.cohort import limit_width, train_cohort, width
from fedflow.simulation.federation import Federation
from fedflow.simulation.job import Job, OnboardingShard, Shard, Trained, task_of
from fedflow.simulation.levels import level, network
from fedflow.simulation.memory import keep_pages
from fedflow.simulation.updates.sending import Sending

RETRIES = 1  # of a client whose training raised an error; NaN would recur, from the same seed
WARNED_METHODS: set[str] = set()  # methods that fell back to the loop in this process
PACKAGE = str(Path(__file__).parents[1])
INSTALLED = [PACKAGE, *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))]
GPU_LOCK = threading.RLock()  # of the threads of this process that train cohorts


@dataclass
class TrainedClients:
    """Trained clients and their updates: tensors [C, ...], with weights, groups and scalars on the host.

    Valid until the iterator moves on.
    """

    clients: list[int]
    update: Update


def onboard_shard(job: Job, shard: OnboardingShard) -> Trained:
    """Run one turn of the onboarding for every client of the shard, and gather all answers."""
    method = job.method
    assert isinstance(method, Onboarding)

    def step(client: Client) -> Update:
        return method.onboarding_local(shard.step, client)

    return _sent(replace(job, cohort="loop"), Sending(job, shard, gathers=True), step)


def train_shard(job: Job, shard: Shard, gathers: bool = False) -> Trained:
    """Train every client of the shard; sum their vectors unless the server needs each (``gathers``)."""

    def step(client: Client) -> Update:
        hook, wanted = f"{job.method.name}.local", "client.update(...)"
        update = returned(job.method.local(client), Update, hook, wanted)
        numbers = {name: t for name, t in update.scalars.items() if t.is_floating_point()}  # no ids
        diagnostics = update.diagnostics | numbers | {TRAIN_LOSS: client.train_loss} | client.records
        trained = {} if client.trained is None or not job.keep_trained else {TRAINED: client.trained}
        return replace(update, diagnostics=diagnostics, keep=update.keep | trained)

    return _sent(job, Sending(job, shard, gathers), step)


def _sent(job: Job, sending: Sending, step: Callable[[Client], Update]) -> Trained:
    for outcome in train_clients(job, sending.shard, step, job.method.streams(job.training)):
        if isinstance(outcome, TrainedClients):
            sending.take(outcome.clients, outcome.update)
        else:
            sending.fail(*outcome)
    return sending.trained


def train_clients(
    job: Job, shard: Shard, step: Callable[[Client], Update], streams: dict[str, int]
) -> Iterator[TrainedClients | tuple[int, str]]:
    """Run ``step`` for every client; yields updates, or one client and the reason for its failure."""
    federation = job.federation.open()
    keep_pages()
    federation.model.prepare()
    why_alone = "their noise is keyed by client" if Noisy.of(job.method).alone else federation.model.why_alone
    together = vmapped(job, federation)
    if together and why_alone:
        _warn_of_fallback(job.method.name, why_alone)
    if together and not why_alone:
        # Held until the updates are taken: a call on a GPU overwrites the outputs of the previous one.
        with GPU_LOCK if federation.model.device.type == "cuda" else nullcontext():
            yield from _train_vmapped(job, federation, shard, step, streams)
    else:
        levels = [level(job.method, federation, k) for k in shard.clients]
        compiled = {name: _compiled(job, federation, name) for name in dict.fromkeys(levels) if job.compiled}
        for i, name in enumerate(levels):
            yield _train_one(job, federation, shard, i, step, streams, compiled.get(name))


def vmapped(job: Job, federation: Federation) -> bool:
    """True if the settings ask for cohorts under `torch.func.vmap`."""
    return job.cohort == "vmap" or (job.cohort == "auto" and federation.model.device.type == "cuda")


def _compiled(job: Job, federation: Federation, level: str) -> Gradient:
    model = network(job.method, federation, level)
    gradient = compiled_gradient(model, federation.train, job.training, job.compiled)
    if gradient is None:
        host = socket.gethostname()
        raise FedflowError(f"{host} cannot compile what the run compiled; use --set engine.compile=never")
    return gradient


def _train_vmapped(
    job: Job, federation: Federation, shard: Shard, step: Callable[[Client], Update], streams: dict[str, int]
) -> Iterator[TrainedClients | tuple[int, str]]:
    """`train_clients` in calls of at most ``width`` clients, halved when the GPU runs out of memory."""
    for left in _stackable(job, federation, shard):
        name = level(job.method, federation, shard.clients[left[0]])
        while left:
            indices = left[: width(job, federation, shard, step, name)]
            accepted, update = [False] * len(indices), None
            try:
                accepted, update = train_cohort(job, federation, shard, indices, step, streams)
            except Exception as error:  # one client may be the cause: retry each alone
                if isinstance(error, torch.OutOfMemoryError) and len(indices) > 1:
                    limit_width(job, federation, shard, step, name, (len(indices) + 1) // 2)
                    continue
                _warn_of_fallback(job.method.name, f"vmap failed ({_in_one_line(error)})")
            good = [c for c, fine in enumerate(accepted) if fine]
            if update is not None and good:
                whole = update if len(good) == len(indices) else update.map(itemgetter(good))
                yield TrainedClients([shard.clients[indices[c]] for c in good], whole)
            for c, i in enumerate(indices):
                if not accepted[c]:
                    yield _train_one(job, federation, shard, i, step, streams)
            left = left[len(indices) :]


def _in_one_line(error: Exception) -> str:
    """The error, and the last line of code outside fedflow and the installed libraries that led to it."""
    kind = "" if isinstance(error, FedflowError) else f"{type(error).__name__}: "
    text = f"{kind}{error}".splitlines()[0]
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if _written_here(frame.filename)]
    return f"{text} ({Path(lines[-1].filename).name}, line {lines[-1].lineno})" if lines else text


def _written_here(file: str) -> bool:
    inside = any(Path(file).is_relative_to(folder) for folder in INSTALLED)
    return not inside and not file.startswith("<frozen")


def _stackable(job: Job, federation: Federation, shard: Shard) -> list[list[int]]:
    """Indices of clients, grouped by level and by the names and shapes of messages: they agree in a call."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    sizes = federation.partition.sizes
    # Neighbors in size share a call, so that little is wasted on padding.
    for i in np.argsort(-sizes[shard.clients], kind="stable").tolist():
        messages = shard.received[i], shard.kept[i]
        form = tuple(
            frozenset((name, shard.vectors[at].shape) for name, at in message.items()) for message in messages
        )
        name = level(job.method, federation, shard.clients[i])
        groups.setdefault((name, *form), []).append(i)
    return list(groups.values())


def _warn_of_fallback(method: str, reason: str) -> None:
    """Warn once per process and method: the run is many times slower."""
    if method not in WARNED_METHODS:
        WARNED_METHODS.add(method)
        warnings.warn(f"{method}: clients train one by one, because {reason}", stacklevel=2)


def _train_one(
    job: Job,
    federation: Federation,
    shard: Shard,
    i: int,
    step: Callable[[Client], Update],
    streams: dict[str, int],
    compiled: Gradient | None = None,
) -> TrainedClients | tuple[int, str]:
    k, reason = shard.clients[i], ""
    for _ in range(1 + RETRIES):
        try:
            client = client_of(job, federation, shard, i, streams, compiled)
            client.model.seed_noise(torch_seed(job.seed, "noise", shard.draw, k))
            if Noisy.of(job.method).alone:
                seed = torch_seed(job.seed, "method noise", shard.draw, k)
                client.noise = torch.Generator(client.model.device).manual_seed(seed)
            update = step(client)
            fault = job.path(shard.steps).fault(update, client.received)
        except Exception as error:  # any failure of one client must not end the round
            reason = _in_one_line(error)
            continue
        return (k, fault) if fault else TrainedClients([k], update.map(lambda t: t[None]))
    return k, reason


def client_of(
    job: Job,
    federation: Federation,
    shard: Shard,
    i: int,
    streams: dict[str, int],
    compiled: Gradient | None = None,
) -> Client:
    """The i-th client of the shard, for the plain loop."""
    k, device = shard.clients[i], federation.model.device

    def samples(examples: Examples, rows: np.ndarray) -> Samples:
        return Samples(examples, torch.as_tensor(rows, device=device))

    training = samples(federation.train, federation.partition.train(k))
    examples, selection = job.selection(federation, [k])
    count = len(training.rows)
    schedules = {
        stream: job.schedule(shard, i, count, stream, usual, device) for stream, usual in streams.items()
    }
    received, kept = (
        {name: shard.vectors[at].to(device) for name, at in message.items()}
        for message in (shard.received[i], shard.kept[i])
    )
    client = Client(
        task_of(job, federation, shard, level(job.method, federation, k), compiled=compiled),
        training,
        schedules,
        received,
        kept,
        *(samples(examples, rows) for rows in selection),
    )
    if isinstance(shard, OnboardingShard):
        client.times = torch.from_numpy(job.timing.times(job.seed, k, job.training.batches(count)))
    return client
