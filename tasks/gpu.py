"""One GPU without a cluster: runs take turns on it, and their rounds come in blocks."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from filelock import FileLock
from prefect import task
from prefect.cache_policies import NO_CACHE

from fedflow.files import cache, make_writable
from fedflow.project.waiting import held
from fedflow.simulation.executors import Share, Work
from fedflow.simulation.outcome import RoundReport

T = TypeVar("T")

BLOCK = 1.0  # seconds after which a block of rounds ends: a task costs 10 ms


@contextmanager
def gpu_in_turn() -> Iterator[None]:
    """Hold the GPU of this process, for which other runs of the user wait. A dead process frees it."""
    folder, name = cache(), card()
    make_writable(folder)
    with held(FileLock(folder / f"{name}.lock"), f"another process that uses {name}"):
        yield


def card() -> str:
    """The UUID of the GPU: jobs of a cluster share the folder of locks, and all call theirs 0."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
    return first if first.startswith(("GPU-", "MIG-")) else f"GPU-{torch.cuda.get_device_properties(0).uuid}"


class OneGpu:
    """Trains the whole cohort in this process; threads would take turns with parts of it."""

    workers = 1

    def map(
        self, work: Callable[[Any, Any], Any], job: Work, shards: Sequence[Share], title: str
    ) -> list[Any]:
        torch.set_num_threads(1)
        with gpu_in_turn():
            return [work(job, shard) for shard in shards]


@task(name="rounds", task_run_name="rounds from {first}", cache_policy=NO_CACHE, persist_result=False)
def run_block(rounds: Iterator[RoundReport], first: int) -> list[RoundReport]:
    """The next rounds, for `BLOCK` seconds. Not retried, as rounds change the state of the run."""
    done, ends = [], time.monotonic() + BLOCK
    for report in rounds:
        done.append(report)
        if time.monotonic() > ends:
            break
    return done


def in_blocks(rounds: Iterable[RoundReport]) -> Iterator[RoundReport]:
    """The rounds, computed in blocks, each of which is a Prefect task."""
    left, first = iter(rounds), 1
    while block := run_block(left, first):
        yield from block
        first = block[-1].round + 1
