"""The common work: CIFAR-10-shaped images, LeNet-5, batch 10, one local epoch of 500 images a client."""

import statistics
from functools import partial

import numpy as np
import torch

from fedflow.data import Examples
from fedflow.local.training import LocalTraining
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.partition import Partition
from fedflow.simulation.federation import Federation

TRAINING = LocalTraining(epochs=1, batch_size=10, lr=0.05)


def federation(clients: int, samples: int) -> Federation:
    """``clients`` with ``samples`` random images each, and 1,000 test images for all."""
    rng = torch.Generator().manual_seed(0)
    count = clients * samples

    def examples(n: int) -> Examples:
        x = torch.randint(0, 256, (n, 3, 32, 32), dtype=torch.uint8, generator=rng)
        return Examples(x, torch.randint(0, 10, (n,), generator=rng), (0.5,) * 3, (0.25,) * 3)

    model = FlatModel(partial(build, "lenet5", (3, 32, 32), 10))
    lists = np.split(np.arange(count), clients)
    pools, own = [np.arange(1000)], [np.zeros(1, dtype=np.int64)] * clients
    return Federation(model, examples(count), examples(1000), Partition.from_lists(lists, pools, own))


def spread(values: list[float]) -> str:
    """Median with the smallest and the largest value."""
    return f"{statistics.median(values):.3f} (min {min(values):.3f}, max {max(values):.3f})"
