"""A cohort trained at once: clients of a shard as one call of `torch.func.vmap`, padded where they differ."""

import json
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fedflow.local.client import MANY, Client, Update
from fedflow.local.training import padded_batches
from fedflow.simulation.federation import Federation
from fedflow.simulation.graphs import MOST_STEPS, Call
from fedflow.simulation.job import Job, Shard

FIRST_WIDTH = 32  # clients of a call before it is known how much memory one takes
WIDEST = 256  # more than keep a GPU busy
MEMORY = 0.4  # of what is free, for one call: when it is captured it takes as much again
SCHEDULE = ("positions", "mask", "active")

Step = Callable[[Client], Update]


def width(job: Job, federation: Federation, shard: Shard, step: Step) -> int:
    """How many clients one call trains: as told, or as many as a GPU has memory for, once that is known."""
    return federation.cohorts.widths.get(_about(job, shard, step), job.width or FIRST_WIDTH)


def limit_width(job: Job, federation: Federation, shard: Shard, step: Step, clients: int) -> None:
    """Let later calls train so many clients at most: memory ran out."""
    federation.cohorts.widths[_about(job, shard, step)] = clients


def max_width_for_memory(free: int, each: int) -> int:
    """How many clients of so many bytes ``each`` a call may train: a power of two, so that shapes are few."""
    return 1 << min(WIDEST, max(1, int(MEMORY * free / max(1, each)))).bit_length() - 1


def train_cohort(
    job: Job,
    federation: Federation,
    shard: Shard,
    places: list[int],
    step: Step,
    streams: dict[str, int],
) -> tuple[list[bool], Update]:
    """Which of the clients at ``places`` have a finite update, and the updates, stacked."""
    model, on_gpu = federation.model, federation.model.device.type == "cuda"
    call = cohort_call(job, federation, shard, places, step, streams, round_shapes=on_gpu)
    steps = sum(t.shape[1] for name, t in call.inputs.items() if name.startswith("positions/"))
    with model.for_cohorts():
        if not on_gpu:
            return unpacked(call())
        before = torch.cuda.memory_allocated(model.device)
        torch.cuda.reset_peak_memory_stats(model.device)
        outputs = federation.cohorts.run(call) if steps <= MOST_STEPS else call()
        if job.width is None and _about(job, shard, step) not in federation.cohorts.widths:
            taken = torch.cuda.max_memory_allocated(model.device) - before
            unused = torch.cuda.memory_reserved(model.device) - torch.cuda.memory_allocated(model.device)
            free = torch.cuda.mem_get_info(model.device)[0] + unused
            limit_width(job, federation, shard, step, max_width_for_memory(free, taken // len(places)))
        return unpacked(outputs)


def _about(job: Job, shard: Shard, step: Step) -> tuple[str, ...]:
    """What a vmapped call computes, but for the values of its inputs."""
    method, settings = job.method, json.dumps([job.method.as_dict(), job.training.as_dict()], default=str)
    return method.name, step.__qualname__, settings, shard.phase, str(job.keep_trained)


def cohort_call(
    job: Job,
    federation: Federation,
    shard: Shard,
    places: list[int],
    step: Step,
    streams: dict[str, int],
    round_shapes: bool,
) -> Call:
    """The call that trains the clients at ``places``; ``round_shapes`` so that it resembles others.

    All of them receive and keep vectors of the same names and shapes.
    """
    device, ids = federation.model.device, [shard.clients[i] for i in places]
    indices = [np.asarray(federation.partition.train(k)) for k in ids]
    sizes = [len(index) for index in indices]
    ragged = min(sizes) < max(sizes) or shard.epochs is not None
    shape = rounded if round_shapes and ragged else int
    inputs = _padded(("index", "real"), indices, shape(max(sizes)))
    selection = [own for k in ids if (own := federation.partition.selection(k)) is not None]
    if selection:
        longest = max(map(len, selection))
        inputs |= _padded(("selection", "selection_real"), selection, shape(longest))
    for stream, usual in streams.items():
        epochs = [shard.epochs_of(i, usual) for i in places]
        steps = shape(max(job.training.steps(n, e) for n, e in zip(sizes, epochs)))
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
    lr = job.training.lr_in(shard.round)
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
            selection=(inputs["selection"], inputs.get("selection_real")) if selection else None,
            phase=shard.phase,
        )  # fmt: skip
        update = step(client)
        return {
            "finite": update.finite(), "weight": update.weight, "group": update.group,
            **{f"{kind}/{n}": t for kind in MANY for n, t in getattr(update, kind).items()},
        }  # fmt: skip

    return Call(_about(job, shard, step), one, inputs, frozenset(each))


def _padded(names: tuple[str, str], rows: list[np.ndarray], length: int) -> dict[str, Tensor]:
    """``rows`` as a table [C, length] and, where some are shorter, which of it is real, by ``names``."""
    table = np.zeros((len(rows), length), dtype=np.int64)
    for place, own in zip(table, rows):
        place[: len(own)] = own
    sizes = [len(own) for own in rows]
    padded = {names[0]: torch.from_numpy(table)}
    if min(sizes) < length:
        padded[names[1]] = torch.arange(length) < torch.tensor(sizes)[:, None]
    return padded


def _parts(tensors: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Tensors "kind/name" by kind, then by name; those without a kind are left out."""
    parts: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        kind, slash, name = key.partition("/")
        if slash:
            parts.setdefault(kind, {})[name] = value
    return parts


def unpacked(outputs: dict[str, Tensor]) -> tuple[list[bool], Update]:
    """Which clients' updates are finite, and the updates, their numbers on the host after one transfer."""
    names = [name for name in outputs if not name.startswith(("vectors/", "keep/"))]
    numbers = dict(zip(names, torch.stack([outputs[name].double() for name in names]).cpu()))
    parts = _parts(outputs | numbers)
    update = Update(
        weight=numbers["weight"], group=numbers["group"].long(), **{k: parts.get(k, {}) for k in MANY}
    )
    return numbers["finite"].bool().tolist(), update


def rounded(count: int) -> int:
    """``count`` or a little more, so that ragged cohorts have few shapes: 2^k or 1.5 * 2^k."""
    power = 1 << max(0, count - 1).bit_length()
    return power * 3 // 4 if count <= power * 3 // 4 else power
