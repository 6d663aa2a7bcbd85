"""Executors of a round's shards: the protocol and the plain loop. Prefect's are in ``tasks/``."""

import os
from collections.abc import Callable, Sequence
from multiprocessing import parent_process
from threading import Thread
from typing import Any, Protocol

import numpy as np


class Work(Protocol):
    """The settings that all shards share: a `Job`, or the job of a procedure."""

    @property
    def device(self) -> str: ...


class Share(Protocol):
    """The share of one worker: a `Shard` of clients, or a block of steps."""

    @property
    def content(self) -> str: ...


class Executor(Protocol):
    """Runs ``work(job, shard)`` for every shard; returns the results in the order of the shards."""

    workers: int

    def map(
        self, work: Callable[[Any, Any], Any], job: Work, shards: Sequence[Share], title: str
    ) -> list[Any]: ...


class Inline:
    """One shard after the other in this process: no server, no scheduler."""

    workers = 1

    def map(
        self, work: Callable[[Any, Any], Any], job: Work, shards: Sequence[Share], title: str
    ) -> list[Any]:
        return [work(job, shard) for shard in shards]


def balanced(clients: Sequence[int], load: np.ndarray, workers: int) -> list[list[int]]:
    """Split ``clients`` into at most ``workers`` shards of about equal load, each in client order.

    ``load`` [N] is the work of every client; the largest is assigned first, to the least loaded worker.
    """
    shards: list[list[int]] = [[] for _ in range(min(workers, len(clients)))]
    loads = [0.0] * len(shards)
    for k in sorted(clients, key=lambda k: (-load[k], k)):
        lightest = loads.index(min(loads))
        shards[lightest].append(k)
        loads[lightest] += float(load[k])
    return [sorted(shard) for shard in shards]


def end_with_parent() -> None:
    """End this worker process when its parent ends, even if the kernel kills the parent."""
    parent = parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    Thread(target=wait, daemon=True).start()
