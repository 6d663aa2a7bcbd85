"""On a GPU: clients of a cohort at once (vmap) against one by one, by the width of a vmapped call.

Timed is a worker's whole shard: batches drawn, images normalized, local SGD, updates checked
and summed. A cell says if its clients trained one by one after all, without a graph, or fewer in a call
than asked. Beside client steps per second it reports the arithmetic rate: floating-point operations of the
forward and the backward pass (counted on the plain network; updates and sums are not counted) over the
rate of a large matrix product, measured in the same run.
"""

import re
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.engine import hand_written
from benchmarks.workload import CLASSES, SHAPE, TRAINING, federation, significant, summary
from fedflow.local.local_training import LocalTraining
from fedflow.methods import build_method
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.simulation.job import Job, Shard
from fedflow.simulation.worker import WARNED_METHODS, train_shard

LOOP_CLIENTS, IMAGES = 4, 20_000
STEPS = {"lenet5": 10, "resnet9": 3}  # per client and call; without BatchNorm, which vmap does not take
WARM_UPS, CALLS = 3, 7  # per cell: calls that do not count (the engine captures a graph), and that do
CELL_SECONDS = 5.0  # after which no further call is measured
VARIED = 64  # clients of the cells with other forms of convolution and other precisions
FELL_BACK = re.compile("one by one|without a CUDA graph|performance drop")
FORMS = (("grouped", "float32"), ("matmul", "tf32"), ("grouped", "tf32"), ("matmul", "bf16"))


def measure(device: str, model: str, batch: int, widths: Sequence[int], seconds: float) -> dict[str, Any]:
    """All cells; those that do not fit into ``seconds`` are named as skipped."""
    ends = time.perf_counter() + seconds
    rates = matrix_rates(device)
    print("matrix product  " + "  ".join(f"{n} {r / 1e12:.1f} TFLOP/s" for n, r in rates.items()), flush=True)
    cells = _cells(model, batch, widths, device, rates, ends)
    rounded = {name: significant(rate) for name, rate in rates.items()}
    return {"matrix_flops_per_second": rounded, "cells": cells}


def _cells(
    model: str, batch: int, widths: Sequence[int], device: str, rates: dict[str, float], ends: float
) -> list[dict[str, Any]]:
    """The eager loop, the engine's loop, every width, and every form, for one network and batch size."""
    steps = STEPS[model]
    clients = max(*widths, LOOP_CLIENTS, VARIED)
    work = federation(clients, steps * batch, model, device, IMAGES)
    grouped = replace(work, model=FlatModel(work.model.factory, device=device, convolution="grouped"))
    start, operations = work.model.init(0), flops(model, batch)

    def bare() -> None:
        torch.backends.cudnn.allow_tf32 = False  # as the engine does unless training.precision asks for it
        hand_written(work, LOOP_CLIENTS, LocalTraining(epochs=1, batch_size=batch, lr=TRAINING.lr))

    def engine(cohort: str, clients: int, form: str = "matmul", precision: str = "float32") -> None:
        training = LocalTraining(epochs=1, batch_size=batch, lr=TRAINING.lr, precision=precision)
        own = grouped if form == "grouped" else work
        job = Job(own, build_method("fedavg"), training, seed=0, cohort=cohort, width=clients)
        shard = Shard(1, list(range(clients)), [start], [{"model": 0}] * clients, [{}] * clients)
        trained = train_shard(job, shard)
        assert not trained.failures, trained.failures

    ways: list[tuple[dict[str, Any], Callable[[], None]]] = [
        ({"way": "eager loop", "clients": LOOP_CLIENTS}, bare),
        ({"way": "loop", "clients": LOOP_CLIENTS}, partial(engine, "loop", LOOP_CLIENTS)),
    ]
    for width in widths:
        ways.append(({"way": "vmap", "clients": width}, partial(engine, "vmap", width)))
    for form, precision in FORMS if VARIED in widths else ():
        about = {"way": "vmap", "clients": VARIED, "convolution": form, "precision": precision}
        ways.append((about, partial(engine, "vmap", VARIED, form, precision)))
    cells, loop = [], 0.0
    for about, call in ways:
        cell = {"model": model, "batch": batch, "convolution": "matmul", "precision": "float32"} | about
        cells.append(cell)
        label = (
            f"{model:7} batch {batch:2}  {cell['way']:10} {cell['clients']:3} clients  "
            f"{cell['convolution']:7} {cell['precision']:7}"
        )
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        for own in (work, grouped):
            own.cohorts.widths.clear()  # limits of another cell
        WARNED_METHODS.clear()
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always", UserWarning)
            seconds = timed(call, device, ends)
        for line in slower_than_asked(heard):
            cell.setdefault("fell_back", []).append(line)
            print(f"{label}  warned: {line}", flush=True)
        if not seconds:
            cell["skipped"] = "no time left"
            print(f"{label}  skipped: no time left", flush=True)
            continue
        cell["client_steps_per_second"] = summary([cell["clients"] * steps / s for s in seconds])
        if cell["way"] == "vmap":  # fewer where memory did not allow all of them in a call
            limits = [*work.cohorts.widths.values(), *grouped.cohorts.widths.values()]
            cell["width"] = min([cell["clients"], *limits])
        best = cell["client_steps_per_second"]["median"]
        loop = best if cell["way"] == "loop" else loop
        cell["against_loop"] = significant(best / loop) if loop else None
        cell["share_of_matrix_rate"] = {n: significant(best * operations / r) for n, r in rates.items()}
        if device == "cuda":
            cell["gpu_peak_gib"] = significant(torch.cuda.max_memory_reserved() / 2**30)
        shares = "  ".join(f"{100 * share:.2f} % of {n}" for n, share in cell["share_of_matrix_rate"].items())
        width = cell.get("width", cell["clients"])
        narrow = f"  {width} in a call" if width < cell["clients"] else ""
        print(f"{label}  {best:9.0f} client steps/s  {shares}{narrow}", flush=True)
    return cells


def slower_than_asked(heard: Sequence[warnings.WarningMessage]) -> list[str]:
    """First lines of the warnings that say that clients trained one by one, or without a graph."""
    lines = {str(each.message).splitlines()[0] for each in heard}
    return sorted(line for line in lines if FELL_BACK.search(line))


def timed(call: Callable[[], Any], device: str, ends: float = float("inf")) -> list[float]:
    """Seconds of each measured call, at most `CALLS` within `CELL_SECONDS`; none where time ran out."""
    seconds: list[float] = []
    for i in range(WARM_UPS + CALLS):
        if time.perf_counter() > ends or sum(seconds) > CELL_SECONDS:
            break
        _wait(device)
        started = time.perf_counter()
        call()
        _wait(device)
        if i >= WARM_UPS:
            seconds.append(time.perf_counter() - started)
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
        seconds = timed(lambda a=a, b=b: [a @ b for _ in range(5)], device)
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
