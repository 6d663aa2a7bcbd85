"""Vmapped cohorts: the clients of a shard in one call of `torch.func.vmap`, padded to equal sizes."""

import json
from collections.abc import Callable
from dataclasses import replace
from types import FunctionType, MethodType, NoneType

import numpy as np
import torch
from torch import Tensor

from fedflow.local.client import NAMED, Client, Update
from fedflow.local.samples import EVALUATION_BATCH, Samples
from fedflow.local.schedule import Schedule, pad_schedules
from fedflow.local.teacher import Teacher
from fedflow.models.noise import noise_key
from fedflow.seeding import torch_seed
from fedflow.settings import Settings
from fedflow.simulation.federation import Federation
from fedflow.simulation.graphs import About, Call
from fedflow.simulation.job import Job, Shard, task_of
from fedflow.simulation.levels import level, network

FIRST_WIDTH = 32  # clients per call until the memory per client is known
WIDEST = 256  # more than enough to keep a GPU busy
MEMORY = 0.4  # share of the free memory for one call: capturing it takes as much again

ClientStep = Callable[[Client], Update]


def width(job: Job, federation: Federation, shard: Shard, step: ClientStep, level: str) -> int:
    """Clients per call: the setting, or as many as fit in GPU memory, after a first call."""
    return federation.cohorts.widths.get(_about(job, shard, step, level), job.width or FIRST_WIDTH)


def limit_width(
    job: Job, federation: Federation, shard: Shard, step: ClientStep, level: str, clients: int
) -> None:
    """Limit later calls to ``clients`` clients."""
    federation.cohorts.widths[_about(job, shard, step, level)] = clients


def max_width_for_memory(free: int, per_client: int) -> int:
    """Clients per call that fit into ``free`` bytes: a power of two, so that there are few shapes."""
    return 1 << min(WIDEST, max(1, int(MEMORY * free / max(1, per_client)))).bit_length() - 1


def train_cohort(
    job: Job,
    federation: Federation,
    shard: Shard,
    members: list[int],
    step: ClientStep,
    streams: dict[str, int],
) -> tuple[list[bool], Update]:
    """The acceptance of each client at the indices ``members``, and the stacked updates."""
    level_name = level(job.method, federation, shard.clients[members[0]])
    model = network(job.method, federation, level_name)
    on_gpu = model.device.type == "cuda"
    call = cohort_call(job, federation, shard, members, step, streams, round_shapes=on_gpu)
    for read in federation.inputs.values():
        if isinstance(read, Teacher):
            read.model.prepare()
    with model.for_cohorts():
        if not on_gpu:
            return unpacked(call())
        cohorts = federation.cohorts
        if job.width is not None or call.about in cohorts.widths:
            outputs = cohorts.run(call)
            job.draw_ahead(shard, streams)  # while the GPU trains
            return unpacked(outputs)
        before = torch.cuda.memory_allocated(model.device)
        torch.cuda.reset_peak_memory_stats(model.device)
        outputs = cohorts.run(call)  # the first call of its kind, as nothing limits its width
        taken = torch.cuda.max_memory_allocated(model.device) - before
        unused = torch.cuda.memory_reserved(model.device) - torch.cuda.memory_allocated(model.device)
        free = torch.cuda.mem_get_info(model.device)[0] + unused
        fitting = max_width_for_memory(free, taken // len(members))
        limit_width(job, federation, shard, step, level_name, fitting)
        return unpacked(outputs)


def _about(job: Job, shard: Shard, step: ClientStep, level: str) -> About:
    """The identity of a vmapped call, apart from the values of its inputs."""
    method, settings = job.method, json.dumps([job.method.as_dict(), job.training.as_dict()], default=str)
    run = job.rounds, job.keep_trained, *job.path(shard.steps).identity
    return method.name, type(method), *_code_of(step, job), settings, shard.phase, level, *run


def _code_of(step: ClientStep, job: Job) -> About:
    """The code of ``step`` and the settings that it closes over, other than the job's.

    Raises TypeError if it closes over anything else: its graph might be replayed for another step.
    """
    if isinstance(step, MethodType):
        code, closed = step.__func__.__code__, {"self": step.__self__}
    else:
        assert isinstance(step, FunctionType)
        code, cells = step.__code__, step.__closure__ or ()
        closed = {name: cell.cell_contents for name, cell in zip(code.co_freevars, cells)}
    values = {name: value for name, value in closed.items() if value is not job and value is not job.method}
    for name, value in values.items():
        if not isinstance(value, (Settings, str, int, float, NoneType)):
            raise TypeError(
                f"{step.__qualname__} closes over {name}; accepted: job, method, settings, numbers"
            )
    return code, repr(values)


def cohort_call(
    job: Job,
    federation: Federation,
    shard: Shard,
    members: list[int],
    step: ClientStep,
    streams: dict[str, int],
    round_shapes: bool,
) -> Call:
    """The call that trains the clients at the indices ``members``; ``round_shapes`` lets calls share shapes.

    These clients have one level, and receive and keep vectors of the same names and shapes.
    """
    device, partition = federation.model.device, federation.partition
    ids = [shard.clients[i] for i in members]
    indices = [np.asarray(partition.train(k)) for k in ids]
    sizes = [len(index) for index in indices]
    epochs_differ = any([*(shard.epochs or ()), *(shard.most or ())])
    ragged = min(sizes) < max(sizes) or epochs_differ or job.training.paced
    shape = rounded if round_shapes and ragged else int
    inputs = _padded("own", indices, shape(max(sizes)))
    examples, selection = job.selection(federation, ids)
    if selection:
        inputs |= _padded("selection", selection, shape(max(map(len, selection))))
    least = min(n % EVALUATION_BATCH or n for n in sizes)  # samples in a chunk or batch
    level_name = level(job.method, federation, ids[0])
    model = network(job.method, federation, level_name)
    for stream, usual in streams.items():
        schedules = [job.schedule(shard, i, n, stream, usual) for i, n in zip(members, sizes)]
        least = min(least, *(schedule.smallest for schedule in schedules))
        padded = pad_schedules(schedules, shape(max(map(len, schedules))), shape(max(sizes)))
        inputs |= {f"schedule {stream}/{name}": t for name, t in padded.items()}
    one_sample = torch.tensor(indices[0][:1], device=device)
    if least == 1 and model.needs_two(federation.train.inputs(one_sample, model.dtype)):
        raise ValueError("BatchNorm cannot normalize a batch of one sample")
    inputs = {name: t.to(device, non_blocking=True) for name, t in inputs.items()}
    by_client = set(inputs)
    for kind, names in (("received", shard.received), ("kept", shard.kept)):
        for name in names[members[0]]:
            at = [names[i][name] for i in members]
            one_for_all = len(set(at)) == 1
            key = f"{kind}/{name}"
            vectors = [shard.vectors[p] for p in at[: 1 if one_for_all else None]]
            value = vectors[0] if one_for_all else torch.stack(vectors)
            inputs[key] = value.to(device)  # a graph would read a host tensor only once
            by_client |= set() if one_for_all else {key}
    if model.draws_noise:
        keys = [noise_key(torch_seed(job.seed, "noise", shard.draw, k)) for k in ids]
        inputs["noise"] = torch.tensor(keys, dtype=torch.int32).to(device)
        by_client.add("noise")
    task, path = task_of(job, federation, shard, level_name, vmapped=True), job.path(shard.steps)
    # Values that change from round to round are inputs: a graph would replay the values of its capture.
    inputs["t"] = torch.full((), shard.round, dtype=torch.int64, device=device)
    if job.training.lr_decay < 1:
        inputs["lr"] = torch.full((), float(task.lr), dtype=torch.float64, device=device)

    def train_one(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        parts = _parts(inputs)
        if "noise" in inputs:
            model.seed_noise(inputs["noise"])
        client = Client(
            replace(task, t=inputs["t"], lr=inputs.get("lr", task.lr)),
            Samples(federation.train, **parts["own"]),
            {stream: Schedule.of_cohort(parts[f"schedule {stream}"]) for stream in streams},
            parts.get("received", {}),
            parts.get("kept", {}),
            Samples(examples, **parts["selection"]) if selection else None,
        )
        update = step(client)
        return {
            "accepted": path.accepts(update, client.received),
            "weight": update.weight,
            "group": update.group,
            **{f"{kind}/{n}": t for kind in NAMED for n, t in getattr(update, kind).items()},
        }

    return Call(_about(job, shard, step, level_name), train_one, inputs, frozenset(by_client))


def _padded(kind: str, rows: list[np.ndarray], length: int) -> dict[str, Tensor]:
    """The fields of `Samples`, stacked: "rows" [C, length] and, if some rows are shorter, "real"."""
    table = np.zeros((len(rows), length), dtype=np.int64)
    sizes = [len(row) for row in rows]
    for padded_row, row in zip(table, rows):
        padded_row[: len(row)] = row
    padded = {f"{kind}/rows": torch.from_numpy(table)}
    if min(sizes) < length:
        padded[f"{kind}/real"] = torch.arange(length) < torch.tensor(sizes)[:, None]
    return padded


def _parts(tensors: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Tensors "kind/name" by kind, then by name; those without a kind are dropped."""
    parts: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        kind, slash, name = key.partition("/")
        if slash:
            parts.setdefault(kind, {})[name] = value
    return parts


def unpacked(outputs: dict[str, Tensor]) -> tuple[list[bool], Update]:
    """The accepted clients, and the updates, with scalars on the host after one transfer."""
    names = [name for name in outputs if not name.startswith(("vectors/", "keep/"))]
    numbers = dict(zip(names, torch.stack([outputs[name].double() for name in names]).cpu()))
    parts = _parts(outputs | numbers)
    update = Update(
        weight=numbers["weight"], group=numbers["group"].long(), **{k: parts.get(k, {}) for k in NAMED}
    )
    return numbers["accepted"].bool().tolist(), update


def rounded(count: int) -> int:
    """``count`` rounded up to 2^k or 1.5 * 2^k, so that ragged cohorts have few shapes."""
    power = 1 << max(0, count - 1).bit_length()
    return power * 3 // 4 if count <= power * 3 // 4 else power
