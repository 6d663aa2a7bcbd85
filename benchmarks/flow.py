"""A whole run of ``flows.federate``, as users start it, against the bare engine, in turn.

Rounds of a second on a CPU, and rounds of 40 ms on a device that is a stub: it sleeps.
"""

import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import chdir, contextmanager, nullcontext, redirect_stdout
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from benchmarks.workload import spread, summary

if TYPE_CHECKING:
    from fedflow.stages.experiment import Experiment

ROUNDS, TURNS = 7, 3
REPEATS, SHORT, DEVICE = 5, 200, 0.04  # runs of short rounds, their rounds, and seconds of a device in one
PARAMS: dict[str, Any] = {
    "data": {"mnist5k": {"source": "mnist5k"}},
    "models": {"mnist5k": "lenet5"},
    "partitions": {"iid": {"dataset": "mnist5k", "scheme": "iid", "clients": 10}},
    "training": {"epochs": 2, "batch_size": 10, "lr": 0.02},
    "run": {
        "rounds": ROUNDS,
        "participation": 1.0,
        "evaluate_every": ROUNDS,
        "checkpoint_every": 1,
        "fine_tune": False,
    },
    "grid": {"datasets": ["mnist5k"], "partitions": ["iid"], "methods": ["fedavg"], "seeds": [0]},
    "engine": {"executor": "threads", "workers": 1},
}


@contextmanager
def prepared() -> Iterator["Experiment"]:
    """The experiment of `PARAMS` with its data, in a temporary folder, and a Prefect server."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        Path("params.yaml").write_text(json.dumps(PARAMS))  # JSON is YAML
        os.environ |= {
            "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "WARNING",
            "PREFECT_LOGGING_TO_API_ENABLED": "false",
        }
        import torch

        from fedflow.config import load_params
        from fedflow.stages.experiment import Experiment
        from fedflow.stages.partition import prepare_partition
        from fedflow.stages.prepare import prepare_dataset
        from flows.server import prefect_api, stop

        torch.set_num_threads(1)
        params, root = load_params(), Path(folder)
        prepare_dataset(params, "mnist5k", root)
        prepare_partition(params, "iid", root)
        try:
            with prefect_api():
                yield Experiment(params, "iid", "fedavg", 0, root)
        finally:
            stop()


def main() -> dict[str, Any]:
    with prepared() as experiment:
        pairs = [pair for turn in range(TURNS) for pair in _pairs(experiment, turn)]
        short = [_short(experiment, TURNS + turn) for turn in range(REPEATS)]
    measured = {}
    for name, found, target in (
        ("rounds of a second", pairs, "at most 1.05"),
        (f"rounds of {1000 * DEVICE:.0f} ms on a device", short, "at most 1.2"),
    ):
        bare, whole, ratios = [a for a, _ in found], [b for _, b in found], [b / a for a, b in found]
        print(name)
        print(f"  bare engine  {spread(bare)} s a round")
        print(f"  whole flow   {spread(whole)} s a round")
        print(f"  ratio        {spread(ratios)}   target: {target}")
        measured[name] = {
            "bare_seconds": summary(bare),
            "flow_seconds": summary(whole),
            "ratio": summary(ratios),
        }
    first, second = measured.values()
    return {**first, "target": 1.05, "short_rounds": {**second, "target": 1.2}}


def federated(experiment: "Experiment", seed: int, settings: list[str], device: Any = None) -> list[float]:
    """When every round of ``flows.federate.federate``, which users run, was recorded and shown.

    ``device`` trains the clients instead of the executor of the settings.
    """
    from flows import federate as users
    from tasks.progress import PrefectProgress

    ends: list[float] = []

    class Timed(PrefectProgress):
        def round(self, report: Any, rounds: int) -> None:
            super().round(report, rounds)
            ends.append(time.perf_counter())

    executor = users.executor_for if device is None else lambda engine: nullcontext(device)
    with (
        patch.object(users, "PrefectProgress", Timed),
        patch.object(users, "executor_for", executor),
        redirect_stdout(None),
    ):
        users.federate(experiment.partition, "fedavg", seed, settings, str(experiment.root))
    return ends


def _short(experiment: "Experiment", seed: int) -> tuple[float, float]:
    """Seconds of a round of the bare engine and of a whole run, on a device that only takes time."""
    from fedflow.simulation.loop import Simulation
    from tasks.gpu import OneGpu

    class Device(OneGpu):
        """Trains and evaluates once; from then on it sleeps, and returns the same results."""

        def __init__(self) -> None:
            self.done: dict[Any, list[Any]] = {}
            self.started = 0.0

        def map(self, work: Any, job: Any, shards: Any, title: str) -> list[Any]:
            self.started = self.started or time.perf_counter()
            kind = work, title.startswith("round")  # the last evaluation also returns models
            if kind not in self.done:
                self.done[kind] = super().map(work, job, shards, title)
            time.sleep(DEVICE)
            return self.done[kind]

    device = Device()
    settings = replace(experiment.run, rounds=SHORT, evaluate_every=10, checkpoint_every=5)
    for _ in range(2):  # the first one trains
        device.started = 0.0
        for _ in Simulation(experiment.job, settings, device).rounds():
            bare = time.perf_counter() - device.started
    device.started = 0.0
    asked = [f"run.rounds={SHORT}", "run.evaluate_every=10", "run.checkpoint_every=5"]
    whole = federated(experiment, seed, asked, device)[-1] - device.started
    return bare / SHORT, whole / SHORT


def _pairs(experiment: "Experiment", seed: int) -> list[tuple[float, float]]:
    """Seconds of every round but the first of the bare engine and of a whole run, one after the other."""
    from fedflow.simulation.loop import Simulation

    ends = [time.perf_counter() for _ in Simulation(experiment.job, experiment.run).rounds()]
    each = (pairwise(ends), pairwise(federated(experiment, seed, [])))
    return [(b - a, d - c) for (a, b), (c, d) in zip(*each, strict=True)]
