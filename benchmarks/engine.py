"""Client steps per second of the engine's loop against a hand-written eager PyTorch loop on the same work."""

import time

import torch
from torch.nn import functional as F

from benchmarks.workload import TRAINING, federation, spread
from fedflow.methods import build_method
from fedflow.models import build
from fedflow.simulation.federation import Federation
from fedflow.simulation.worker import Job, Shard, train_shard

CLIENTS, SAMPLES, REPEATS = 4, 500, 12


def hand_written(work: Federation) -> float:
    """Seconds for plain modules and ``torch.optim.SGD``, on images that are normalised beforehand."""
    x, y = work.train.inputs(torch.arange(CLIENTS * SAMPLES)), work.train.y
    module = build("lenet5", (3, 32, 32), 10)
    initial = {name: value.clone() for name, value in module.state_dict().items()}
    started = time.perf_counter()
    for k in range(CLIENTS):
        module.load_state_dict(initial)
        optimiser = torch.optim.SGD(module.parameters(), lr=TRAINING.lr)
        own_x, own_y = x[k * SAMPLES : (k + 1) * SAMPLES], y[k * SAMPLES : (k + 1) * SAMPLES]
        for batch in torch.randperm(SAMPLES).split(TRAINING.batch_size):
            optimiser.zero_grad()
            F.cross_entropy(module(own_x[batch]), own_y[batch]).backward()
            optimiser.step()
    return time.perf_counter() - started


def engine(work: Federation) -> float:
    """Seconds for one worker's shard: batches drawn, images normalised, updates checked and summed."""
    job = Job(work, build_method("fedavg"), TRAINING, seed=0, cohort="loop")
    shard = Shard(1, list(range(CLIENTS)), [work.model.init(0)], [{"model": 0}] * CLIENTS, [{}] * CLIENTS)
    started = time.perf_counter()
    trained = train_shard(job, shard)
    assert len(trained.sent) == CLIENTS
    return time.perf_counter() - started


def main() -> None:
    torch.set_num_threads(1)
    work, steps = federation(CLIENTS, SAMPLES), CLIENTS * SAMPLES // TRAINING.batch_size
    hand_written(work), engine(work)
    pairs = [(hand_written(work), engine(work)) for _ in range(REPEATS)]
    print(f"hand-written loop  {spread([steps / a for a, _ in pairs])} client steps per second")
    print(f"engine, loop       {spread([steps / b for _, b in pairs])} client steps per second")
    print(f"ratio              {spread([a / b for a, b in pairs])}   target: at least 0.95")


if __name__ == "__main__":
    main()
