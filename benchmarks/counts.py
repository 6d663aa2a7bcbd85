"""What one round of a vmapped cohort asks of a GPU, counted without one: kernel launches and bytes.

The call with which a worker trains the cohort runs on ``meta`` tensors, which have shapes but no values, and
every operation that would reach the device is counted. Bytes are those of the tensors that an operation reads
and writes, as if no cache held them. Not counted: the batches' way to the device, the exact sum of the
updates, and what a library launches beside its main kernel.

The host's processor time to prepare the call is measured, by turns with batches drawn now and drawn ahead.
"""

import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks import headline
from benchmarks.workload import TRAINING, federation, significant
from fedflow.local.local_training import LocalTraining
from fedflow.methods import build_method
from fedflow.simulation.ahead import Ahead
from fedflow.simulation.cohort import cohort_call
from fedflow.simulation.federation import Federation
from fedflow.simulation.graphs import Call
from fedflow.simulation.job import Job, Shard

PER_IMAGE = {"im2col"}  # kernels of PyTorch that take one image [C, H, W] of their input at a time
TURNS = 60  # of each form, when the host is timed
FREE = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view"}


class Workload(NamedTuple):
    """A cohort: ``clients`` of ``samples`` images each."""

    network: str
    clients: int
    samples: int
    training: LocalTraining = TRAINING


WORKLOADS = {
    "headline": Workload(headline.NETWORK, headline.COHORT, 50, headline.TRAINING),
    "lenet5": Workload("lenet5", 100, 100),
    "resnet9": Workload("resnet9", 100, 30),
}


class Counting(TorchDispatchMode):
    """Counts the launches by operation, and the bytes, of what runs within this context."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: Counter[str] = Counter()
        self.bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if not function.is_view and name not in FREE:
            self.launches[name] += args[0].shape[:-3].numel() if name in PER_IMAGE else 1
            for leaf in tree_leaves((args, kwargs, outputs)):
                if isinstance(leaf, Tensor):  # views may have an entry of their storage many times
                    self.bytes += min(leaf.nbytes, leaf.untyped_storage().nbytes())
        return outputs


def prepared(workload: Workload, device: str = "meta") -> tuple[Job, Federation, Shard, Callable[[], Call]]:
    """A round of this cohort, by default on tensors without values, and what prepares its call."""
    work = federation(workload.clients, workload.samples, workload.network, device)
    job = Job(work, build_method("fedavg"), workload.training, seed=0)
    clients, start = range(workload.clients), torch.zeros(work.model.size, device=device)
    shard = Shard(1, [*clients], [start], [{"model": 0} for _ in clients], [{} for _ in clients])
    streams = job.method.streams(job.training)

    def call() -> Call:
        return cohort_call(job, work, shard, [*clients], job.method.local, streams, round_shapes=True)

    return job, work, shard, call


def count(workload: Workload) -> Counting:
    """What one round of this cohort launches and moves."""
    _, work, _, prepare = prepared(workload)
    call = prepare()
    with work.model.for_cohorts(), Counting() as counting:
        call()
    return counting


def host_times(workload: Workload) -> dict[str, float]:
    """Median processor milliseconds to prepare a call: with batches drawn now, and drawn ahead."""
    job, work, shard, prepare = prepared(workload)
    streams, times = job.method.streams(job.training), dict[str, list[float]]()
    before = replace(shard, round=shard.round - 1, ahead=shard.clients)
    for _ in range(TURNS):
        for name in ("now", "ahead"):
            work.ahead = Ahead()
            if name == "ahead":
                job.draw_ahead(before, streams)
            start = time.thread_time()
            prepare()
            times.setdefault(name, []).append(1000 * (time.thread_time() - start))
    return {name: significant(statistics.median(own)) for name, own in times.items()}


def main() -> dict[str, Any]:
    """Count every workload."""
    measured = {}
    for name, workload in WORKLOADS.items():
        found, steps = count(workload), workload.training.workload(workload.samples).steps
        launches, gigabytes = found.launches.total(), significant(found.bytes / 1e9)
        most, host = dict(found.launches.most_common(5)), host_times(workload)
        print(
            f"{name:9} {workload.clients:4} clients, {steps:2} steps each  {launches:6,} launches  "
            f"{gigabytes:6.1f} GB  most: {', '.join(f'{n} {op}' for op, n in most.items())}"
        )
        times = f"{host['now']:.2f} ms, {host['ahead']:.2f} with batches drawn ahead"
        print(f"{'':9} prepared by the host in {times}")
        measured[name] = {
            "clients": workload.clients,
            "steps": steps,
            "launches": launches,
            "gigabytes": gigabytes,
            "most": most,
            "host_ms": host,
        }
    return measured
