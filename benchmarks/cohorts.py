"""On a GPU: clients of a cohort at once (vmap) against one by one, by the width of a vmapped call.

What is timed is a worker's whole shard: batches drawn, images normalised, local SGD, updates checked
and summed. Beside client steps per second stands the arithmetic rate: floating-point operations of the
forward and the backward pass (counted on the plain network; updates and sums are not counted) over the
rate of a large matrix product, measured in the same run.
"""

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.engine import hand_written
from benchmarks.workload import CLASSES, SHAPE, TRAINING, federation, significant, summary
from fedflow.local.training import LocalTraining
from fedflow.methods import build_method
from fedflow.models import build
from fedflow.simulation.worker import Job, Shard, train_shard

WIDTHS, BATCHES, LOOP_CLIENTS, IMAGES = (1, 4, 16, 64, 256), (10, 64), 4, 20_000
STEPS = {"lenet5": 10, "resnet9": 3}  # per client and call; without BatchNorm, which vmap does not take
WARM_UPS, CALLS, CELL_SECONDS = 2, 7, 6.0  # per cell: calls that do not count, and at most so many that do


def measure(
    device: str = "cuda",
    models: Sequence[str] = tuple(STEPS),
    batches: Sequence[int] = BATCHES,
    widths: Sequence[int] = WIDTHS,
    seconds: float = 150.0,
) -> dict[str, Any]:
    """All cells; those that find no time left of ``seconds`` are named as skipped."""
    ends = time.perf_counter() + seconds
    rates = matrix_rates(device)
    print("matrix product  " + "  ".join(f"{n} {r / 1e12:.1f} TFLOP/s" for n, r in rates.items()), flush=True)
    cells = []
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", UserWarning)
        for model in models:
            for batch in batches:
                cells += _cells(model, batch, widths, device, rates, ends)
    fell_back = sorted({str(w.message) for w in heard if "vmap failed" in str(w.message)})
    for line in fell_back:
        print(f"vmap was left: {line}", flush=True)
    precision = {
        "float32_matmul": torch.get_float32_matmul_precision(),
        "convolutions_tf32": torch.backends.cudnn.allow_tf32,
    }
    return {
        "matrix_flops_per_second": {name: significant(rate) for name, rate in rates.items()},
        "precision": precision,
        "cells": cells,
        "fell_back": fell_back,
    }


def _cells(
    model: str, batch: int, widths: Sequence[int], device: str, rates: dict[str, float], ends: float
) -> list[dict[str, Any]]:
    """The eager loop, the engine's loop, and every width, for one network and batch size."""
    steps, training = STEPS[model], LocalTraining(epochs=1, batch_size=batch, lr=TRAINING.lr)
    work = federation(max(*widths, LOOP_CLIENTS), steps * batch, model, device, IMAGES)
    job = Job(work, build_method("fedavg"), training, seed=0)
    operations = flops(model, batch)

    def shard(cohort: str, clients: int) -> Callable[[], None]:
        own = replace(job, cohort=cohort, width=clients)
        share = Shard(1, list(range(clients)), [work.model.init(0)], [{"model": 0}] * clients, [{}] * clients)
        return lambda: _whole(train_shard(own, share))

    ways: list[tuple[str, int, Callable[[], Any]]] = [
        ("eager loop", LOOP_CLIENTS, lambda: hand_written(work, LOOP_CLIENTS, training)),
        ("loop", LOOP_CLIENTS, shard("loop", LOOP_CLIENTS)),
        *(("vmap", width, shard("vmap", width)) for width in widths),
    ]
    cells, loop = [], 0.0
    for way, clients, call in ways:
        cell: dict[str, Any] = {"model": model, "batch": batch, "way": way, "clients": clients}
        cells.append(cell)
        label = f"{model:8} batch {batch:3}  {way:10} {clients:4} clients"
        if time.perf_counter() > ends:
            cell["skipped"] = "no time left"
            print(f"{label}  skipped: no time left", flush=True)
            continue
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        rate = [clients * steps / s for s in timed(call, device, ends)]
        cell["client_steps_per_second"] = summary(rate)
        best = cell["client_steps_per_second"]["median"]
        loop = best if way == "loop" else loop
        cell["against_loop"] = significant(best / loop) if loop else None
        cell["share_of_matrix_rate"] = {n: significant(best * operations / r) for n, r in rates.items()}
        if device == "cuda":
            cell["gpu_peak_gib"] = significant(torch.cuda.max_memory_allocated() / 2**30)
        shares = "  ".join(f"{100 * share:.2f} % of {n}" for n, share in cell["share_of_matrix_rate"].items())
        print(f"{label}  {best:10.0f} client steps/s  {shares}", flush=True)
    return cells


def _whole(trained: Any) -> None:
    assert not trained.failures, trained.failures


def timed(call: Callable[[], Any], device: str, ends: float) -> list[float]:
    """Seconds of each measured call, up to `CALLS` of them within `CELL_SECONDS`."""
    seconds: list[float] = []
    for i in range(WARM_UPS + CALLS):
        _wait(device)
        started = time.perf_counter()
        call()
        _wait(device)
        if i >= WARM_UPS:
            seconds.append(time.perf_counter() - started)
        if seconds and (sum(seconds) > CELL_SECONDS or time.perf_counter() > ends):
            break
    return seconds


def matrix_rates(device: str, side: int | None = None) -> dict[str, float]:
    """Floating-point operations per second of a large product, by kind of number; on a CPU fp32 only."""
    side = side or (8192 if device == "cuda" else 1024)
    kinds = {"fp32": (torch.float32, False)}
    if device == "cuda":
        kinds |= {"tf32": (torch.float32, True), "bf16": (torch.bfloat16, False)}
    before, rates = torch.backends.cuda.matmul.allow_tf32, {}
    for name, (dtype, tf32) in kinds.items():
        torch.backends.cuda.matmul.allow_tf32 = tf32
        a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
        seconds = timed(lambda a=a, b=b: [a @ b for _ in range(5)], device, float("inf"))  # type: ignore[misc]
        rates[name] = 5 * 2 * side**3 / sorted(seconds)[len(seconds) // 2]
    torch.backends.cuda.matmul.allow_tf32 = before
    return rates


def flops(model: str, batch: int) -> int:
    """Floating-point operations of one local step: forward and backward pass of one batch."""
    module = build(model, SHAPE, CLASSES)
    with FlopCounterMode(display=False) as counter:
        outputs = module(torch.zeros(batch, *SHAPE))
        F.cross_entropy(outputs, torch.zeros(batch, dtype=torch.int64)).backward()
    return counter.get_total_flops()


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
