"""Dask: workers on this machine, one per GPU if it has several, and sums that are merged on the workers."""

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from distributed import Client, Future, Nanny, Scheduler, SpecCluster, get_worker
from prefect.states import State

from fedflow.simulation.federation import Stored
from fedflow.simulation.job import Trained, merged_sums
from tasks.contents import Files, store

HERE: dict[str, Any] = {"host": "127.0.0.1", "dashboard": False}  # of the scheduler and the workers


def environments(workers: int, on_gpus: bool) -> list[dict[str, str]]:
    """The environment variables of every local worker: with several GPUs one worker each, else ``workers``.

    CUDA numbers the visible GPUs from 0, so each of these workers trains on the first that it sees.
    """
    count = torch.cuda.device_count() if on_gpus else 0
    if count < 2:
        return [{} for _ in range(workers)]
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in visible[:count] or map(str, range(count))]


def local_cluster(environments: Sequence[dict[str, str]]) -> SpecCluster:
    """A cluster of this machine, with a worker process of one thread for each of ``environments``."""
    quiet = {"silence_logs": logging.WARNING}
    options = HERE | quiet | {"nthreads": 1, "memory_limit": 1 / len(environments)}  # of the whole memory
    workers = {i: {"cls": Nanny, "options": options | {"env": env}} for i, env in enumerate(environments)}
    return SpecCluster(workers, {"cls": Scheduler, "options": HERE | {"port": 0}}, **quiet)


def merged_on_workers(shards: Sequence[Future]) -> list[Future]:
    """The results of ``shards`` in order; the first result has the sums of all.

    Sums go from worker to worker, in pairs, and only the last one comes to this process. All other results
    stay on the workers until they are requested. The result of a failed shard raises its error.
    """

    def submit(*call: Any) -> Future:
        return shards[0].client.submit(*call, pure=False)

    sums = [submit(_sums, shard) for shard in shards]
    while len(sums) > 1:
        odd = sums[len(sums) // 2 * 2 :]
        sums = [submit(_merged, *pair) for pair in zip(sums[::2], sums[1::2])] + odd
    return [submit(_apart, shards[0], *sums), *(submit(_apart, shard) for shard in shards[1:])]


def _sums(shard: State) -> Trained:
    result = shard.result()
    return Trained([], [], result.sums if isinstance(result, Trained) else {})


def _merged(*parts: Trained) -> Trained:
    return Trained([], [], merged_sums(parts))


def _apart(shard: State, all_sums: Trained | None = None) -> Any:
    """The result of a shard with ``all_sums``, if it has sums, instead of its sums."""
    result = shard.result()
    if not isinstance(result, Trained):
        return result
    return replace(result, sums={} if all_sums is None else all_sums.sums)


class DaskCarrier:
    """Parts in the memory of a worker, from which the others get them."""

    def __init__(self, runner: Any) -> None:
        self.client: Client = runner.client

    @staticmethod
    def here() -> str:
        return get_worker().address

    def put(self, part: bytes) -> Any:
        return self.client.scatter([part], hash=False)[0]

    def store(self, workers: list[str], stored: Stored, files: Files) -> None:
        stores = [
            self.client.submit(store, stored, files, workers=[at], allow_other_workers=True, pure=False)
            for at in workers
        ]
        self.client.gather(stores)
