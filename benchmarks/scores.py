"""Savings by remembered scores: evaluated rounds with and without them, in turn in one process.

CIFAR-10's sizes: 100 clients of 500 images, 10 a round, each scored on 2,000 of 10,000 test images. From
the start, every client of Ditto has its own model, as after many rounds. Without: the scores are forgotten
before every round. Both runs must report the same numbers.
"""

import time
from typing import Any

import numpy as np
import torch

from benchmarks.workload import federation, random_images, spread, summary
from fedflow.local.local_training import LocalTraining
from fedflow.methods import build_method
from fedflow.partition import Partition
from fedflow.simulation.federation import Federation
from fedflow.simulation.job import Job
from fedflow.simulation.loop import Simulation
from fedflow.simulation.outcome import RoundReport
from fedflow.simulation.remembered import RememberedScores
from fedflow.simulation.settings import RunSettings

METHODS, TURNS, ROUNDS = ("ditto", "fedavg"), 3, 2
CLIENTS, SAMPLES, TESTS, POOLS = 100, 500, 2000, 5
TRAINING = LocalTraining.parse({"epochs": 1, "batch_size": 10, "lr": 0.01})
CLOCKS = {"cpu": time.process_time, "wall": time.perf_counter}


class Timed:
    """A run whose rounds are timed: whole rounds and their evaluations, by clock."""

    def __init__(self, work: Federation, method: str, remembers: bool) -> None:
        settings = RunSettings(rounds=1 + ROUNDS, participation=0.1, evaluate_every=1, fine_tune=False)
        job = Job(work, build_method(method), TRAINING, seed=0, cohort="loop")
        self.simulation, self.remembers = Simulation(job, settings), remembers
        state = self.simulation.state
        state.participations[:] = 1
        for name, first in state.store.first.items():
            for k in range(CLIENTS):
                state.store.put(k, {name: first + 1e-3 * (1 + k)})
        self.rounds = self.simulation.rounds()
        self.evaluation: dict[str, float] = {}
        evaluate = self.simulation.scoring.evaluate
        self.simulation.scoring.evaluate = lambda report: self.evaluation.update(  # type: ignore[method-assign]
            seconds(lambda: evaluate(report))
        )

    def round(self) -> tuple[RoundReport, dict[str, float]]:
        """The next round: its report and its seconds."""
        if not self.remembers:
            self.simulation.state.scores = RememberedScores(CLIENTS)
        found: list[RoundReport] = []
        whole = seconds(lambda: found.append(next(self.rounds)))
        times = {f"round_{clock}": value for clock, value in whole.items()}
        return found[0], times | {f"evaluation_{clock}": value for clock, value in self.evaluation.items()}


def seconds(call: Any) -> dict[str, float]:
    """The seconds of a call, by clock."""
    started = {name: clock() for name, clock in CLOCKS.items()}
    call()
    return {name: clock() - started[name] for name, clock in CLOCKS.items()}


def times(work: Federation, method: str) -> dict[str, list[tuple[float, float]]]:
    """Seconds of all measured rounds by what was timed: without remembered scores, and with them."""
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(TURNS):
        ways = [Timed(work, method, remembers) for remembers in (False, True)]
        for t in range(1 + ROUNDS):
            (one, without), (other, own) = (way.round() for way in ways)
            assert one.values == other.values
            for name in own if t else ():  # before the first round, there are no scores
                found.setdefault(name, []).append((without[name], own[name]))
    return found


def main() -> dict[str, Any]:
    torch.set_num_threads(1)
    work = federation(CLIENTS, SAMPLES)
    work.test = random_images(TESTS * POOLS)
    rows = [np.arange(k * SAMPLES, (k + 1) * SAMPLES) for k in range(CLIENTS)]
    pools = [np.arange(p * TESTS, (p + 1) * TESTS) for p in range(POOLS)]
    work.partition = Partition.from_lists(rows, pools, [np.array([k % POOLS]) for k in range(CLIENTS)])
    measured: dict[str, Any] = {}
    for method in METHODS:
        measured[method] = {}
        for name, pairs in times(work, method).items():
            kinds = {"forgotten": [pair[0] for pair in pairs], "remembered": [pair[1] for pair in pairs]}
            kinds["ratio"] = [forgotten / remembered for forgotten, remembered in pairs]
            print(method, name, ", ".join(f"{kind} {spread(own)}" for kind, own in kinds.items()), flush=True)
            measured[method][name] = {kind: summary(own) for kind, own in kinds.items()}
    return measured
