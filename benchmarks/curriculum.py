"""What a data curriculum costs: time per client and round of each order, score and mode, against none.

Measured is processor time of one thread, which other programs on the machine disturb less than the clock.
"""

import time
from dataclasses import replace
from typing import Any

import torch

from benchmarks.workload import TRAINING, federation, spread, summary
from fedflow.local.client import TRAINED
from fedflow.local.extensions.curriculum import Curriculum
from fedflow.methods import build_method
from fedflow.simulation.federation import Federation
from fedflow.simulation.job import Job, Shard
from fedflow.simulation.worker import train_shard

CLIENTS, SAMPLES = 2, 500
REPEATS = {1: 15, 10: 9}  # by local epochs: about six minutes in all
WAYS: dict[str, dict[str, Any]] = {
    "curriculum, score global": {},
    "anti, score global": {"order": "anti"},
    "random": {"order": "random"},
    "curriculum, score local": {"score": "local"},
    "curriculum, score both": {"score": "both"},
    "curriculum, score global_pred": {"score": "global_pred"},
    "curriculum, score both_pred": {"score": "both_pred"},
    "curriculum, score expert": {"score": "expert", "expert": "expert"},
    "curriculum, mode per_step": {"mode": "per_step"},
    "curriculum, mode lazy_epoch": {"mode": "lazy_epoch"},
}


def seconds(work: Federation, epochs: int, curriculum: Curriculum | None) -> float:
    """Seconds per client of one worker's shard: batches drawn, samples scored and sorted, local steps."""
    training = replace(TRAINING, epochs=epochs, curriculum=curriculum)
    job = Job(work, build_method("fedavg"), training, seed=0, cohort="loop")
    vectors = [work.model.init(0), work.model.init(1)]  # the model of the server, and the client's last
    kept = {TRAINED: 1} if training.compares else {}
    shard = Shard(1, list(range(CLIENTS)), vectors, [{"model": 0}] * CLIENTS, [kept] * CLIENTS)
    started = time.process_time()
    trained = train_shard(job, shard)
    assert len(trained.sent) == CLIENTS, trained.failures
    return (time.process_time() - started) / CLIENTS


def main() -> dict[str, Any]:
    torch.set_num_threads(1)
    work = federation(CLIENTS, SAMPLES)
    work = replace(
        work, inputs={"expert": torch.rand(len(work.train), generator=torch.Generator().manual_seed(0))}
    )
    ways = {way: Curriculum(**options) for way, options in WAYS.items()}
    return {f"epochs_{epochs}": measure(work, epochs, ways) for epochs in REPEATS}


def measure(work: Federation, epochs: int, ways: dict[str, Curriculum]) -> dict[str, Any]:
    """All ways with this number of local epochs."""
    print(f"{epochs} local epochs of {SAMPLES} samples, batches of {TRAINING.batch_size}", flush=True)
    times: dict[str, list[float]] = {name: [] for name in ("vanilla", *ways)}
    for repeat in range(REPEATS[epochs] + 1):  # in turn, so that a slow minute of the machine affects all
        for name, own in times.items():
            taken = seconds(work, epochs, ways.get(name))
            own += [taken] if repeat else []  # the first call warms up
    measured: dict[str, Any] = {}
    for name, own in times.items():
        extra = [1000 * (mine - plain) for mine, plain in zip(own, times["vanilla"])]
        ratios = [mine / plain for mine, plain in zip(own, times["vanilla"])]
        steps = replace(TRAINING, epochs=epochs, curriculum=ways.get(name)).workload(SAMPLES).steps
        print(f"{name:30} {steps} steps, {spread(extra)} ms more, ratio {spread(ratios)}", flush=True)
        measured[name] = {
            "steps": steps,
            "seconds": summary(own),
            "extra_milliseconds": summary(extra),
            "ratio": summary(ratios),
        }
    return measured
