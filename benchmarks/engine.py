"""Client steps per second of the engine's loop against a hand-written eager PyTorch loop on the same work."""

import time
from typing import Any

import torch
from torch.nn import functional as F

from benchmarks.workload import TRAINING, compiling, federation, spread, summary
from fedflow.local.local_training import LocalTraining
from fedflow.methods import build_method
from fedflow.simulation.federation import Federation
from fedflow.simulation.job import Job, Shard
from fedflow.simulation.worker import train_shard

CLIENTS, SAMPLES, REPEATS = 4, 500, 12
TARGETS = {"engine, loop": 0.95, "engine, compiled": 1.4}


def hand_written(work: Federation, clients: int = CLIENTS, training: LocalTraining = TRAINING) -> float:
    """Seconds for plain modules and ``torch.optim.SGD``, on images that are normalized beforehand."""
    device, samples = work.model.device, int(work.partition.sizes[0])
    positions = [torch.as_tensor(work.partition.train(k), device=device) for k in range(clients)]
    data = [(work.train.inputs(own), work.train.targets(own)) for own in positions]
    module = work.model.to_module(work.model.init(0)).to(device).train()
    initial = {name: value.clone() for name, value in module.state_dict().items()}
    if device.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    for x, y in data:
        module.load_state_dict(initial)
        optimizer = torch.optim.SGD(module.parameters(), lr=training.lr)
        for batch in torch.randperm(samples, device=device).split(training.batch_size):
            optimizer.zero_grad()
            F.cross_entropy(module(x[batch]), y[batch]).backward()
            optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def engine(work: Federation, **options: Any) -> float:
    """Seconds for one worker's shard: batches drawn, images normalized, updates checked and summed."""
    job = Job(work, build_method("fedavg"), TRAINING, seed=0, cohort="loop", **options)
    shard = Shard(1, list(range(CLIENTS)), [work.model.init(0)], [{"model": 0}] * CLIENTS, [{}] * CLIENTS)
    started = time.perf_counter()
    trained = train_shard(job, shard)
    assert len(trained.sent) == CLIENTS
    return time.perf_counter() - started


def main() -> dict[str, Any]:
    torch.set_num_threads(1)
    work, steps = federation(CLIENTS, SAMPLES), CLIENTS * SAMPLES // TRAINING.batch_size
    ways = {"engine, loop": {}}
    if compiled := compiling(work, TRAINING):
        ways["engine, compiled"] = compiled
    else:
        print("engine, compiled   skipped: the compiler failed", flush=True)
    hand_written(work)
    for options in ways.values():
        engine(work, **options)
    times: dict[str, list[float]] = {"hand-written loop": [], **{way: [] for way in ways}}
    for _ in range(REPEATS):  # in turn, so that a slow minute of the machine affects all
        times["hand-written loop"].append(hand_written(work))
        for way, options in ways.items():
            times[way].append(engine(work, **options))
    measured = {}
    for way, seconds in times.items():
        ratios = [bare / own for bare, own in zip(times["hand-written loop"], seconds)]
        rates = [steps / s for s in seconds]
        target = f"   target: at least {TARGETS[way]}" if way in TARGETS else ""
        print(f"{way:18} {spread(rates)} client steps per second, ratio {spread(ratios)}{target}", flush=True)
        measured[way] = {"client_steps_per_second": summary(rates), "ratio": summary(ratios)}
    return measured
