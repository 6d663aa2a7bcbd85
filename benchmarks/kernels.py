"""Gain of each hand-written kernel of compiled steps over `torch.compile` of the same function.

The gradient of one batch of 10 on one core, compiled with all kernels of `fedflow/local/fast/`, with none,
and without each one in turn. A kernel stays if it gains 10 % or more of a step in two of these networks.
"""

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.workload import TRAINING, federation, spread, summary
from fedflow.local.fast import compiled, winograd
from fedflow.local.fast.compiled import Gradient

NETWORKS = ("lenet5", "cnn_pfl", "resnet9")
KERNELS = ("CONVOLUTION", "POOLING", "NORMS", "DENSE")  # tables of `compiled`, and Winograd within the first
REPEATS, SECONDS = 12, 0.25  # of each form in turn


@contextmanager
def without(*kernels: str) -> Iterator[None]:
    """Steps that are compiled in this context do without these ``kernels``."""
    with ExitStack() as stack:
        for name in kernels:
            if name == "WINOGRAD":
                stack.enter_context(patch.object(winograd, "pays", lambda *_: False))
            else:
                stack.enter_context(patch.object(compiled, name, {}))
        yield


def gradient_of(network: str, *absent: str) -> tuple[Gradient, Any]:
    """The compiled gradient without some kernels, and its inputs."""
    work = federation(1, TRAINING.batch_size, network)
    with without(*absent), tempfile.TemporaryDirectory() as folder:
        found = compiled._compiled(work.model, work.train, TRAINING.batch_size, folder)
    assert found is not None, "the compiler failed"
    return found, compiled._example(work.model, work.train, TRAINING.batch_size)


def main() -> dict[str, Any]:
    torch.set_num_threads(1)
    measured: dict[str, Any] = {}
    for network in NETWORKS:
        forms = {"all kernels": (), "none": KERNELS}
        forms |= {f"without {name.lower()}": (name,) for name in ("WINOGRAD", *KERNELS)}
        made = {form: gradient_of(network, *absent) for form, absent in forms.items()}
        times: dict[str, list[float]] = {form: [] for form in forms}
        for _ in range(REPEATS):
            for form, (gradient, inputs) in made.items():
                times[form].append(step(gradient, inputs))
        measured[network] = {}
        for form, seconds in times.items():
            ratios = [own / every for own, every in zip(seconds, times["all kernels"])]
            ms = 1000 * statistics.median(seconds)
            print(f"{network:9} {form:20} {ms:8.3f} ms a step, of all kernels: {spread(ratios)}", flush=True)
            measured[network][form] = {"ms": summary([1000 * s for s in seconds]), "ratio": summary(ratios)}
    return measured


def step(gradient: Gradient, inputs: Any) -> float:
    """Seconds of one gradient, the mean over a quarter of a second."""
    count, started = 0, time.perf_counter()
    while (passed := time.perf_counter() - started) < SECONDS:
        gradient.pieces(*inputs)
        count += 1
    return passed / count
