"""Work that kills its worker process once: worker processes import this file."""

import os
import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedflow.simulation.job import Job
from tasks.shards import PrefectExecutor


class Lossy(PrefectExecutor):
    """An executor that loses one worker in the second round, half-way through its shard."""

    marker: Path

    def map(self, work: Callable, job: Job, shards: Sequence[Any], title: str) -> list[Any]:
        return super().map(partial(die_once, str(self.marker), work), job, shards, title)


def die_once(marker: str, work: Callable, job: Job, shard: Any) -> Any:
    """``work(job, shard)``, but in round 2 the first worker to come here dies after its work is done."""
    result = work(job, shard)
    if shard.round == 2:
        try:
            Path(marker).touch(exist_ok=False)
        except FileExistsError:
            return result
        os.kill(os.getpid(), signal.SIGKILL)
    return result
