"""fedflow: its round loop in one process; with ``compiled``, compiled steps.

Clients train one after the other on a CPU, at once on a GPU, as users have it.
"""

import sys
from functools import partial

import numpy as np
import torch

from benchmarks.peers.work import (
    BATCH,
    COHORT,
    DEVICE,
    LR,
    MEAN,
    SAMPLES,
    SEED,
    STD,
    Laps,
    Network,
    drive,
    place,
    raw_images,
)
from benchmarks.workload import compiling
from fedflow.data import Examples
from fedflow.local.local_training import LocalTraining
from fedflow.methods import build_method
from fedflow.models.flat import FlatModel
from fedflow.partition import Partition
from fedflow.simulation.federation import Federation
from fedflow.simulation.job import Job
from fedflow.simulation.loop import Simulation
from fedflow.simulation.settings import RunSettings
from fedflow.simulation.worker import vmapped


def run(clients: int, rounds: int, laps: Laps, compiled: bool = False, cohort: str = "auto") -> None:
    x, y = raw_images()
    train = Examples(x, y, (MEAN,) * 3, (STD,) * 3)
    lists = [np.arange(place(k).start, place(k).stop) for k in range(clients)]
    partition = Partition.from_lists(lists, [np.arange(SAMPLES)], [np.zeros(1, np.int64)] * clients)
    test = train.only(torch.arange(SAMPLES, device=DEVICE))
    work = Federation(FlatModel(Network, device=DEVICE), train, test, partition)
    # One round more, which is never asked for: the last one is always evaluated, and peers evaluate none.
    settings = RunSettings(
        rounds=rounds + 1, evaluate_every=rounds + 1, participation=COHORT / clients, fine_tune=False
    )
    training = LocalTraining(epochs=1, batch_size=BATCH, lr=LR)
    laps.lap()
    engine = compiling(work, training) if compiled else {}
    if compiled and not engine:
        sys.exit("the compiler failed")
    job = Job(work, build_method("fedavg"), training, seed=SEED, cohort=cohort, **engine)
    reports, steps = Simulation(job, settings).rounds(), 0
    # Such steps call the network that counts never, or once for a cohort: count the clients that trained.
    bypassed = compiled or vmapped(job, work)
    for _ in range(rounds):
        report = next(reports)
        steps += (len(report.cohort) - len(report.failed)) * training.workload(SAMPLES).steps
        laps.lap(steps if bypassed else None)


if __name__ == "__main__":
    wanted = "compiled" in sys.argv
    sys.argv = [word for word in sys.argv if word != "compiled"]
    drive(partial(run, compiled=wanted), "fedflow")
