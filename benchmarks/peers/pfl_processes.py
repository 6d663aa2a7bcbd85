"""``pfl_driver`` in the processes that torchrun starts, which take the GPUs by turns; several may share one.

Where there is a GPU, pfl takes NCCL, which refuses one that two processes share. Here it always takes gloo.
"""

import os
import runpy
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

start = dist.init_process_group


def place(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables with which this process takes one GPU: without them all would take the first."""
    if environment.get("BENCH_DEVICE") != "cuda":
        return {}
    rank = int(environment["LOCAL_RANK"]) % torch.cuda.device_count()
    return {"LOCAL_RANK": str(rank), "BENCH_DEVICE": f"cuda:{rank}", "PFL_PYTORCH_DEVICE": f"cuda:{rank}"}


def over_gloo(backend: str, **how: Any) -> None:
    """Replaces ``init_process_group``."""
    start(backend="gloo", **how)


if __name__ == "__main__":
    os.environ |= place(os.environ)
    dist.init_process_group = over_gloo
    runpy.run_module("benchmarks.peers.pfl_driver", run_name="__main__")
