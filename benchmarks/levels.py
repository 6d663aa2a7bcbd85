"""What levels and masks cost: whole runs with them, against uniform FedAvg without, in turn in one process.

Methods with masks serve personal models; FedPer shows what it costs to score these. Levels without effect
(one level, the network of the run) show the cost of the mechanism; with SAMPLES samples a client and a small
network, local steps hide little of it. Measured is processor time of one thread.
"""

import time
from typing import Any, ClassVar

import numpy as np
import torch

from benchmarks.workload import federation, spread, summary
from fedflow.local.local_training import LocalTraining
from fedflow.methods import build_method
from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.methods.method import Method
from fedflow.methods.protocols import Leveled
from fedflow.partition import Partition
from fedflow.simulation.federation import Federation
from fedflow.simulation.job import Job
from fedflow.simulation.loop import Simulation
from fedflow.simulation.settings import RunSettings

CLIENTS, SAMPLES, ROUNDS, REPEATS = 40, 50, 6, 5
TRAINING = LocalTraining.parse({"epochs": 2, "batch_size": 10, "lr": 0.01})


class OneLevel(Leveled, FedAvg):
    """Uniform FedAvg with one level, whose network is that of the run."""

    name = "one_level"
    serves: ClassVar[str] = "level"

    def networks(self) -> dict[str, dict[str, Any]]:
        return {"whole": {}}

    def level(self, client: int, clients: int) -> str:
        return "whole"


def seconds(work: Federation, method: Method) -> float:
    """Processor time of a whole run, evaluations included."""
    settings = RunSettings.parse({"rounds": ROUNDS, "participation": 0.25, "fine_tune": False})
    started = time.process_time()
    simulation = Simulation(Job(work, method, TRAINING, seed=0, cohort="loop"), settings)
    for _ in simulation.rounds():
        pass
    simulation.outcome()
    return time.process_time() - started


def main() -> dict[str, Any]:
    torch.set_num_threads(1)
    work = federation(CLIENTS, SAMPLES)
    rows = [np.arange(k * SAMPLES, (k + 1) * SAMPLES) for k in range(CLIENTS)]
    tests = [np.zeros(1, dtype=np.int64)] * CLIENTS
    work.partition = Partition.from_lists(rows, [np.arange(100)], tests, [own[:10] for own in rows])
    methods = {
        "no levels": build_method("fedavg", {"weighting": "uniform"}),
        "one level": OneLevel.parse({"weighting": "uniform"}),
        "personal models": build_method("fedper"),  # every client has its own to be scored
        "masks, no pruning": build_method("subfedavg_un", {"target": 0.0}),
        "masks that prune": build_method("subfedavg_un", {"threshold": 0.0}),
    }
    times: dict[str, list[float]] = {name: [] for name in methods}
    for repeat in range(REPEATS + 1):  # in turn, so that a slow minute of the machine affects all
        for name, method in methods.items():
            taken = seconds(work, method)
            times[name] += [taken] if repeat else []  # the first run warms up
    measured = {}
    for name, own in times.items():
        ratios = [mine / plain for mine, plain in zip(own, times["no levels"])]
        print(f"{name:20} {spread(own)} s, ratio {spread(ratios)}", flush=True)
        measured[name] = {"seconds": summary(own), "ratio": summary(ratios)}
    return measured
