"""Cross-device scale: 100 clients a round out of 1,000 and out of 100,000, and the memory that these take.

Clients hold 30 random images each, of CIFAR-10's shape, that they share with others; or 20 of MNIST, two
labels to a client, where FEDFLOW_DATA has it: 60,000 clients, as many as images. Both federations take
turns, round by round, so that whatever else the machine does slows both. Checkpoints every 5 rounds
are part of them; the evaluation at the end, of 100 clients, is reported separately.
"""

import os
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.memory import peak_memory, separately
from benchmarks.workload import CLASSES, TRAINING, random_images, significant
from fedflow.data import DatasetParams, Examples, prepare, source
from fedflow.methods import build_method
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.partition import Partition, PartitionParams, Samples, make_partition
from fedflow.simulation.federation import Federation
from fedflow.simulation.job import Job
from fedflow.simulation.loop import Simulation
from fedflow.simulation.settings import RunSettings

FEW, MANY, COHORT, ROUNDS, CHECKPOINT_EVERY = 1000, 100_000, 100, 21, 5
METHODS = ("fedavg", "scaffold", "ditto")


def main() -> dict[str, Any]:
    """Every method in a separate process, so that memory is measured separately."""
    measured: dict[str, Any] = {}
    for images in ("random", "mnist") if _has_mnist() else ("random",):
        for method in METHODS:
            measured[f"{method}, {images}"] = found = separately(f"scale.one({method!r}, {images!r})")
            few, many = found["runs"]
            sizes = " and ".join(f"{run['clients']:,}" for run in found["runs"])
            rounds = f"{few['round_s']:.3f} and {many['round_s']:.3f}"
            evaluations = " and ".join(f"{run['evaluation_processor_s']:.2f}" for run in found["runs"])
            print(f"{method}, {images} images, {sizes} clients")
            print(f"  seconds a round      {rounds}, ratio {found['ratio']:.3f}   target: at most 1.05")
            print(f"  of processor time    ratio {found['processor_ratio']:.3f}, to evaluate {evaluations} s")
            print(
                f"  peak memory          {found['mib_above_images']:,} MiB above the images   "
                "target: under 2,048",
                flush=True,
            )
    return measured


def one(method: str, images: str) -> dict[str, Any]:
    """The measurements of both federations, run in turns in this process."""
    torch.set_num_threads(1)
    train, test = _mnist() if images == "mnist" else (random_images(60_000), random_images(1000))
    partition, most = (_of_groups, len(train)) if images == "mnist" else (_random, MANY)
    model = FlatModel(partial(build, "lenet5", tuple(train.x.shape[1:]), CLASSES))
    before = peak_memory()
    with ExitStack() as stack:
        runs = []
        for clients in (FEW, most):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            settings = RunSettings(
                rounds=ROUNDS,
                participation=COHORT / clients,
                checkpoint_every=CHECKPOINT_EVERY,
                evaluate_every=ROUNDS,
                evaluate_clients=COHORT,
                fine_tune=False,
            )
            work = Federation(model, train, test, partition(train, test, clients))
            job = Job(work, build_method(method), TRAINING, seed=0)
            runs.append(Simulation(job, settings, checkpoints=folder))
        wall, processor = _in_turns(runs)
    round_s, processor_s = _per_round(wall), _per_round(processor)
    saved = _checkpoints(wall)
    measured = [
        {
            "clients": run.clients,
            "round_s": significant(round_s[i]),
            "evaluation_processor_s": significant(processor[-1, i] - np.median(processor[saved, i])),
        }
        for i, run in enumerate(runs)
    ]
    return {
        "runs": measured,
        "ratio": significant(round_s[1] / round_s[0]),
        "processor_ratio": significant(processor_s[1] / processor_s[0]),
        "mib_above_images": round(peak_memory() - before),
    }


def _in_turns(runs: list[Simulation]) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of every round of every run [T, 2], of the clock and of the processor."""
    iterators = [run.rounds() for run in runs]
    wall, processor = (np.zeros((ROUNDS, len(runs))) for _ in range(2))
    for t in range(ROUNDS):
        for i in (0, 1) if t % 2 else (1, 0):  # the first one finds another cache
            started, used = time.perf_counter(), time.process_time()
            next(iterators[i])
            wall[t, i], processor[t, i] = time.perf_counter() - started, time.process_time() - used
    return wall, processor


def _per_round(seconds: np.ndarray) -> np.ndarray:
    """Seconds of a round [2] with its share of a checkpoint: medians, without the first and last round."""
    saved = _checkpoints(seconds)
    plain = np.setdiff1d(np.arange(1, len(seconds) - 1), saved)
    share = 1 / CHECKPOINT_EVERY
    return (1 - share) * np.median(seconds[plain], axis=0) + share * np.median(seconds[saved], axis=0)


def _checkpoints(seconds: np.ndarray) -> np.ndarray:
    """The rounds [.], from 0, that end with a checkpoint, without the last one."""
    return np.arange(CHECKPOINT_EVERY - 1, len(seconds) - 1, CHECKPOINT_EVERY)


def _random(train: Examples, test: Examples, clients: int) -> Partition:
    """Clients of 30 images, each tested on the labels that it has."""
    labels, test_labels = train.y.numpy(), test.y.numpy()
    lists = np.sort(np.arange(clients * 30).reshape(clients, 30) % len(train))
    pools = [np.flatnonzero(test_labels == c) for c in range(CLASSES)]
    return Partition.from_lists(list(lists), pools, [np.unique(labels[rows]) for rows in lists])


def _of_groups(train: Examples, test: Examples, clients: int) -> Partition:
    """Clients of two labels, who draw 10 images of each, whatever others draw."""
    params = PartitionParams.parse(
        {
            "dataset": "mnist",
            "clients": clients,
            "scheme": "label_groups",
            "groups": 5,
            "sampler": "independent",
            "samples_per_label": 10,
        }
    )
    return make_partition(params, Samples(train.y.numpy(), test.y.numpy()))


def _has_mnist() -> bool:
    return "FEDFLOW_DATA" in os.environ and bool(source("mnist").where())


def _mnist() -> tuple[Examples, Examples]:
    with tempfile.TemporaryDirectory() as folder:
        dataset = prepare(DatasetParams.parse({"source": "mnist"}, section="data"), folder)
        return dataset.train, dataset.test
