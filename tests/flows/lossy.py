"""Work that kills its worker process once, or is slow: worker processes import this file."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedflow.simulation.job import Job
from tasks.shards import PrefectExecutor


class Lossy(PrefectExecutor):
    """An executor that, with a marker, loses a worker in the second round, half-way through its shard."""

    marker: str

    def map(self, work: Callable, job: Job, shards: Sequence[Any], title: str) -> list[Any]:
        return super().map(partial(die_once, self.marker, work), job, shards, title)


def die_once(marker: str, work: Callable, job: Job, shard: Any) -> Any:
    """``work(job, shard)``, but in round 2 the first worker to come here dies after its work is done.

    A worker with a file ``slow`` in its data folder sleeps as many seconds as the file says.
    """
    slow = Path(os.environ.get("FEDFLOW_CACHE", "")) / "slow"
    if slow.exists():
        time.sleep(float(slow.read_text()))
    result = work(job, shard)
    if shard.round == 2 and marker:
        try:
            Path(marker).touch(exist_ok=False)
        except FileExistsError:
            return result
        os.kill(os.getpid(), signal.SIGKILL)
    return result
