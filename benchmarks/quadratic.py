"""Client steps with a quadratic penalty relative to steps without: its gradient added, or differentiated.

LeNet-5, 10 clients of 100 images, all in every round; CPU seconds of their local training. Before: autograd
differentiates the penalty over the whole vector, kept here as `differentiated`. The yardstick, before and
after take turns of a few rounds in one process.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.workload import federation, spread, summary
from fedflow.local.client import Client, Update
from fedflow.local.local_training import LocalTraining
from fedflow.local.optimizer import Pull
from fedflow.local.samples import Batch
from fedflow.local.trainer import Trainer
from fedflow.methods import build_method
from fedflow.simulation.federation import Federation
from fedflow.simulation.job import Job
from fedflow.simulation.loop import Simulation
from fedflow.simulation.settings import RunSettings

METHODS = ("fedprox", "ditto", "feddyn", "fedac", "mtl", "fedsplit", "fedsc", "pfldyn")
YARDSTICKS = {"pfldyn": "pavg"}  # the same steps without the penalty; otherwise FedAvg
TURNS, ROUNDS, CLIENTS, SAMPLES = 3, 4, 10, 100
TRAINING = LocalTraining.parse({"epochs": 1, "batch_size": 10, "lr": 0.01})
FIT = Trainer.fit


def differentiated(self: Trainer, loss: Any = None, *, start: Tensor, **options: Any) -> Tensor:
    """`Trainer.fit` whose penalty is part of the loss; a method without one has a penalty of weight 0."""
    plain, pull = loss or self.loss, options.pop("pull", None) or Pull(0.0, start)
    cost = options.pop("cost", None) or torch.clone

    def penalized(w: Tensor, batch: Batch) -> Tensor:
        return cost(plain(w, batch)) + (pull.weight / 2 * (w - pull.center).square()).sum()

    return FIT(self, penalized, start=start, **options)


class Timed:
    """Rounds of a method whose client steps are timed."""

    def __init__(self, work: Federation, name: str, fit: Callable[..., Tensor] = FIT) -> None:
        method = build_method(name)
        local, self.fit, self.seconds = method.local, fit, 0.0

        def timed(client: Client) -> Update:
            started = time.process_time()
            update = local(client)
            self.seconds += time.process_time() - started
            return update

        object.__setattr__(method, "local", timed)
        rounds = ROUNDS * (1 + TURNS)
        settings = RunSettings(rounds=rounds, participation=1.0, evaluate_every=rounds, fine_tune=False)
        self.rounds = Simulation(Job(work, method, TRAINING, seed=0, cohort="loop"), settings).rounds()

    def turn(self) -> float:
        """CPU seconds of client steps in the next rounds."""
        self.seconds = 0.0
        Trainer.fit = self.fit  # type: ignore[method-assign]
        for _ in range(ROUNDS):
            next(self.rounds)
        Trainer.fit = FIT  # type: ignore[method-assign]
        return self.seconds


def main() -> dict[str, Any]:
    torch.set_num_threads(1)
    work = federation(CLIENTS, SAMPLES)
    measured: dict[str, Any] = {}
    for name in METHODS:
        ways = (
            Timed(work, YARDSTICKS.get(name, "fedavg")),
            Timed(work, name, differentiated),
            Timed(work, name),
        )
        turns = [[way.turn() for way in ways] for _ in range(1 + TURNS)][1:]  # the first one warms up
        ratios = {
            "before": [before / plain for plain, before, _ in turns],
            "after": [after / plain for plain, _, after in turns],
            "before / after": [before / after for _, before, after in turns],
        }
        print(name, ", ".join(f"{kind} {spread(values)}" for kind, values in ratios.items()), flush=True)
        measured[name] = {kind: summary(values) for kind, values in ratios.items()}
    return measured
