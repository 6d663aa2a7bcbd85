"""The common work: CIFAR-10-shaped images, LeNet-5, batch 10, one local epoch of 500 images a client."""

import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedflow.data import Examples
from fedflow.local.fast.compiled import compiled_gradient
from fedflow.local.local_training import LocalTraining
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.partition import Partition
from fedflow.simulation.federation import Federation

SHAPE, CLASSES = (3, 32, 32), 10
COMPILED = str(Path(__file__).parents[1] / ".bench" / "compiled")
TRAINING = LocalTraining(epochs=1, batch_size=10, lr=0.05)


def federation(
    clients: int,
    samples: int,
    model: str = "lenet5",
    device: str = "cpu",
    images: int | None = None,
    **options: Any,
) -> Federation:
    """``clients`` with ``samples`` random images each, and 1,000 test images for all.

    With fewer ``images`` than ``clients * samples`` clients share them, which saves memory and no work.
    ``options`` are those of the architecture.
    """
    images = images or clients * samples
    positions = np.arange(clients * samples).reshape(clients, samples) % images
    flat = FlatModel(partial(build, model, SHAPE, CLASSES, **options), device=device)
    train, test = (random_images(n).to(device) for n in (images, 1000))
    return Federation(flat, train, test, one_test_set(list(positions), 1000))


def compiling(work: Federation, training: LocalTraining) -> dict[str, str]:
    """The option of `Job` with which local steps are compiled machine code, which is made now.

    Empty where they cannot be compiled: without a C++ compiler, say.
    """
    return {"compiled": COMPILED} if compiled_gradient(work.model, work.train, training, COMPILED) else {}


def random_images(count: int) -> Examples:
    """``count`` random images and labels, the same every time."""
    rng = torch.Generator().manual_seed(count)
    x = torch.randint(0, 256, (count, *SHAPE), dtype=torch.uint8, generator=rng)
    return Examples(x, torch.randint(0, CLASSES, (count,), generator=rng), (0.5,) * 3, (0.25,) * 3)


def one_test_set(clients: Sequence[np.ndarray], test: int) -> Partition:
    """Clients with these training positions, each scored on all ``test`` test samples."""
    own = [np.zeros(1, dtype=np.int64)] * len(clients)
    return Partition.from_lists([np.sort(c) for c in clients], [np.arange(test)], own)


def spread(values: Sequence[float]) -> str:
    """Median with the smallest and the largest value."""
    return f"{statistics.median(values):.3f} (min {min(values):.3f}, max {max(values):.3f})"


def summary(values: Sequence[float]) -> dict[str, float]:
    """The same for a results file."""
    found = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: significant(value) for name, value in found.items()}


def significant(value: float) -> float:
    """Four significant digits: more than a timing reproduces."""
    return float(f"{value:.4g}")
