"""``pfl_driver`` in the processes that torchrun starts; several may share one GPU.

Where there is a GPU, pfl takes NCCL, which refuses one that two processes share. Here it always takes gloo.
"""

import os
import runpy
from typing import Any

import torch
import torch.distributed as dist

start = dist.init_process_group


def over_gloo(backend: str, **how: Any) -> None:
    """Replaces ``init_process_group``."""
    start(backend="gloo", **how)


if __name__ == "__main__":
    gpus = max(1, torch.cuda.device_count())
    os.environ["LOCAL_RANK"] = str(int(os.environ["LOCAL_RANK"]) % gpus)
    dist.init_process_group = over_gloo
    runpy.run_module("benchmarks.peers.pfl_driver", run_name="__main__")
