"""The headline setting: 1,500 rounds of FedAvg on CIFAR-10 with 1,000 clients, 50 a round.

IID clients of 50 images, one local epoch, batch 10, client lr 0.1, a CNN of 1.63 M parameters with
two dropouts (`cnn_pfl`), an evaluation on the complete test set every 10 rounds. On a GPU all rounds
are run; on a CPU a few, from which the time of all is scaled. Images are real if FEDFLOW_DATA has
CIFAR-10, else random.
Source of the setting: the speed comparison of pfl-research (Granqvist et al. 2024, arXiv:2404.06430).
"""

import functools
import os
import statistics
import tempfile
import time
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.machine import WARM_UP_ROUNDS
from benchmarks.workload import CLASSES, SHAPE, compiling, one_test_set, random_images, significant, summary
from fedflow.data import DatasetParams, Examples, prepare, source
from fedflow.local.local_training import LocalTraining
from fedflow.methods import build_method
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.seeding import generator
from fedflow.simulation.federation import Federation
from fedflow.simulation.job import Job
from fedflow.simulation.loop import Simulation
from fedflow.simulation.outcome import RoundReport
from fedflow.simulation.settings import RunSettings

CLIENTS, COHORT, ROUNDS, EVALUATE_EVERY = 1000, 50, 1500, 10
NETWORK = "cnn_pfl"
TRAINING = LocalTraining(epochs=1, batch_size=10, lr=0.1)


def main() -> dict[str, Any]:
    """A few rounds on the CPU."""
    torch.set_num_threads(1)
    return measure("cpu", rounds=5)


def measure(
    device: str, rounds: int = ROUNDS, seconds: float = float("inf"), precision: str = "float32"
) -> dict[str, Any]:
    """Run ``rounds`` rounds, fewer if they would take longer than ``seconds``, and return what they took."""
    examples, real = _images()
    train, test = (part.to(device) for part in examples)
    lists = np.array_split(generator(0, "benchmark").permutation(len(train)), CLIENTS)
    model = FlatModel(partial(build, NETWORK, SHAPE, CLASSES), device=device)
    work = Federation(model, train, test, one_test_set(lists, len(test)))
    settings = RunSettings(
        rounds=rounds, participation=COHORT / CLIENTS, evaluate_every=EVALUATE_EVERY, fine_tune=False
    )
    training = LocalTraining.parse({**TRAINING.as_dict(), "precision": precision})
    compiled = compiling(work, training) if device == "cpu" else {}  # as any run of this length is
    job = Job(work, build_method("fedavg"), training, seed=0, **compiled)
    done, started, said = [], time.perf_counter(), 0.0
    for report in Simulation(job, settings).rounds():
        done.append(report)
        spent = time.perf_counter() - started
        if spent - said > 10 or report.round == rounds:
            said = spent
            print(f"round {report.round:5} of {rounds}   {spent:6.1f} s", flush=True)
        if spent > seconds:
            break
    total = time.perf_counter() - started
    warm = done[WARM_UP_ROUNDS[device] :] or done
    measured = _numbers(done, warm, total, len(train) // CLIENTS, model.size, real)
    return {"network": NETWORK, "precision": precision, "compiled": bool(compiled)} | measured


def _numbers(
    done: list[RoundReport], warm: list[RoundReport], total: float, samples: int, parameters: int, real: bool
) -> dict[str, Any]:
    accuracies = [r.values["global_accuracy"] for r in warm if "global_accuracy" in r.values]
    evaluated = [r.seconds for r in warm if "global_accuracy" in r.values]
    plain = [r.seconds for r in warm if "global_accuracy" not in r.values]
    training = statistics.median(plain)
    evaluation = max(0.0, statistics.median(evaluated) - training) if evaluated else 0.0
    steps = COHORT * TRAINING.workload(samples).steps
    complete = len(done) == ROUNDS
    scaled = total if complete else training * ROUNDS + evaluation * ROUNDS / EVALUATE_EVERY
    how = "measured" if complete else f"scaled from {len(done)}"
    print(f"{parameters:,} parameters, {'real' if real else 'random'} images, {COHORT} of {CLIENTS} clients")
    print(f"a round       {training:.4f} s, an evaluation {evaluation:.4f} s more")
    print(f"throughput    {steps / training:.0f} client steps per second")
    print(f"{ROUNDS} rounds   {scaled:.1f} s = {scaled / 60:.2f} min ({how})", flush=True)
    measured = {
        "parameters": parameters,
        "real_images": real,
        "clients": CLIENTS,
        "cohort": COHORT,
        "rounds_run": len(done),
        "seconds": significant(total),
        "seconds_per_round": summary(plain),
        "first_round_seconds": significant(done[0].seconds),
        "seconds_per_evaluation": significant(evaluation),
        "client_steps_per_second": significant(steps / training),
        "seconds_for_1500_rounds": significant(scaled),
        "scaled": not complete,
    }
    if real and accuracies:
        measured["accuracy"] = significant(accuracies[-1])
        print(f"accuracy      {measured['accuracy']} on the complete test set", flush=True)
    if torch.cuda.is_available():  # reserved, as a graph allocates nothing that the allocator counts
        measured["gpu_peak_gib"] = significant(torch.cuda.max_memory_reserved() / 2**30)
    return measured


@functools.cache
def _images() -> tuple[tuple[Examples, Examples], bool]:
    """Training and test images, and whether they are real; without a download."""
    if "FEDFLOW_DATA" not in os.environ or not source("cifar10").where():
        return (random_images(50_000), random_images(10_000)), False
    with tempfile.TemporaryDirectory() as folder:
        dataset = prepare(DatasetParams.parse({"source": "cifar10"}, section="data"), folder)
        return (dataset.train, dataset.test), True
