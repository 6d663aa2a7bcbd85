"""A hand-written loop whose clients train side by side on CUDA streams, a step of each in turn.

BENCH_STREAMS in the environment is their number (default: 8). On a CPU clients only take turns.
"""

import os
import random
from collections.abc import Iterator
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.peers.work import (
    BATCH,
    COHORT,
    DEVICE,
    LR,
    SEED,
    Laps,
    drive,
    images,
    network,
    place,
    shuffled,
)

STREAMS = int(os.environ.get("BENCH_STREAMS", "8"))


def trained(k: int, module: nn.Module, server: dict[str, Tensor], total: dict[str, Tensor]) -> Iterator[None]:
    """Train client ``k``, a step at a time, and add its share to ``total``."""
    x, y = images()
    own_x, own_y = x[place(k)], y[place(k)]
    module.load_state_dict(server)
    optimizer = torch.optim.SGD(module.parameters(), lr=LR)
    for batch in shuffled().split(BATCH):
        optimizer.zero_grad()
        F.cross_entropy(module(own_x[batch]), own_y[batch]).backward()
        optimizer.step()
        yield
    for name, value in module.state_dict().items():
        total[name] += value / COHORT


def run(clients: int, rounds: int, laps: Laps) -> None:
    draw, gpu = random.Random(SEED), DEVICE.type == "cuda"
    modules = [network() for _ in range(min(STREAMS, COHORT))]
    streams = [torch.cuda.Stream(DEVICE) if gpu else None for _ in modules]
    server = {name: value.clone() for name, value in modules[0].state_dict().items()}
    images()
    laps.lap()
    for _ in range(rounds):
        cohort = sorted(draw.sample(range(clients), COHORT))
        totals = [{name: torch.zeros_like(value) for name, value in server.items()} for _ in modules]
        main = torch.cuda.current_stream(DEVICE) if gpu else None
        lanes = []
        for i, (module, stream, total) in enumerate(zip(modules, streams, totals)):
            if stream is not None:
                stream.wait_stream(main)
            steps = [trained(k, module, server, total) for k in cohort[i :: len(modules)]]
            lanes.append((chain.from_iterable(steps), stream))
        while lanes:
            unfinished = []
            for lane, stream in lanes:
                with torch.cuda.stream(stream):
                    unfinished += [(lane, stream)] if next(lane, "end") is None else []
            lanes = unfinished
        for stream in filter(None, streams):
            main.wait_stream(stream)
        server = {name: torch.stack([total[name] for total in totals]).sum(0) for name in server}
        laps.lap()


if __name__ == "__main__":
    drive(run)
