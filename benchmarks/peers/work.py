"""The work of every driver: clients of 500 images, 10 of them a round, LeNet-5, batch 10, one local epoch.

With BENCH_WORK=pfl in the environment it is that of pfl-research's speed comparison (arXiv:2404.06430):
clients of 50 images, 50 of them a round, a CNN of 1,626,442 parameters with two dropouts. BENCH_WORK=tiny
only shows that a driver works.

Needs torch only, because every peer has a separate environment. The images are random ones of CIFAR-10's
shape; clients share them where there are more, so that 1,000 clients need no more memory. They
and the networks are on the device that BENCH_DEVICE names (default: cpu).
"""

import argparse
import functools
import json
import os
import runpy
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.machine import WARM_UP_ROUNDS

WORKS = {"lenet5": (500, 10, 0.05, 50_000), "pfl": (50, 50, 0.1, 50_000), "tiny": (20, 2, 0.05, 200)}
WORK = os.environ.get("BENCH_WORK", "lenet5")
if WORK not in WORKS:
    sys.exit(f"BENCH_WORK={WORK!r}: one of {', '.join(WORKS)}")
SAMPLES, COHORT, LR, IMAGES = WORKS[WORK]
BATCH, SEED = 10, 0
MEAN, STD = 0.5, 0.25
DEVICE = torch.device(os.environ.get("BENCH_DEVICE", "cpu"))
WARM_UP = WARM_UP_ROUNDS["cuda" if DEVICE.type == "cuda" else "cpu"]
STEPS = COHORT * SAMPLES // BATCH  # of all clients in a round
if DEVICE.type == "cuda":  # float32 in all drivers, as in fedflow, and in all processes of a driver
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False

LeNet5 = runpy.run_path(str(Path(__file__).parents[2] / "fedflow" / "models" / "lenet.py"))["LeNet5"]


class SimpleCNN(nn.Sequential):
    """``simple_cnn`` of pfl-research; `cnn_pfl` of fedflow."""

    def __init__(self, *_: object) -> None:
        super().__init__(
            nn.Conv2d(3, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(12_544, 128),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(128, 10),
        )


class Network(SimpleCNN if WORK == "pfl" else LeNet5):  # type: ignore[misc]
    """The network, which counts the batches that it is trained on in this process."""

    steps = 0

    def __init__(self) -> None:
        super().__init__((3, 32, 32), 10)

    def forward(self, x: Tensor) -> Tensor:
        Network.steps += self.training
        return super().forward(x)


def network() -> Network:
    """The initial network, the same in every driver."""
    torch.manual_seed(SEED)
    return Network().to(DEVICE)


def raw_images() -> tuple[Tensor, Tensor]:
    """Images uint8 [N, 3, 32, 32] and labels [N] in 0..9, the same in every driver."""
    rng = torch.Generator().manual_seed(SEED)
    x = torch.randint(0, 256, (IMAGES, 3, 32, 32), dtype=torch.uint8, generator=rng)
    y = torch.randint(0, 10, (IMAGES,), generator=rng)
    return x.to(DEVICE), y.to(DEVICE)


@functools.cache
def images() -> tuple[Tensor, Tensor]:
    """The same, normalized once and for all to float32; once in every process."""
    x, y = raw_images()
    return x.float().div_(255).sub_(MEAN).div_(STD), y


def shuffled() -> Tensor:
    """The positions of a client's images in a random order, drawn where the images are."""
    return torch.randperm(SAMPLES, device=DEVICE)


def place(client: int) -> slice:
    """Which of the images a client holds."""
    start = client * SAMPLES % IMAGES
    return slice(start, start + SAMPLES)


class Laps:
    """When rounds ended, and how many batches had been trained by then."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.steps: list[int] = []

    def lap(self, steps: int | None = None) -> None:
        """Note that a round ends; ``steps`` counts all batches so far if other processes trained them."""
        if DEVICE.type == "cuda":
            torch.cuda.synchronize(DEVICE)
        self.ends.append(time.perf_counter())
        self.steps.append(Network.steps if steps is None else steps)


def drive(run: Callable[[int, int, Laps], None], package: str | None = None) -> None:
    """Call ``run(clients, rounds, laps)`` and print what it took as the last line, in JSON.

    ``run`` calls ``laps.lap()`` once before the first of its ``rounds`` rounds, and after each. The first
    `WARM_UP` rounds are reported separately. ``package`` is the installed distribution that does the work.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True, help="measured rounds")
    given = parser.parse_args()
    torch.set_num_threads(1)
    laps = Laps()
    run(given.clients, WARM_UP + given.rounds, laps)
    seconds = [after - before for before, after in zip(laps.ends, laps.ends[1:])]
    measured = {
        "package": f"{package} {version(package)}" if package else None,
        "torch": torch.__version__,
        "steps": [after - before for before, after in zip(laps.steps, laps.steps[1:])][WARM_UP:],
        "warm_up_seconds": seconds[:WARM_UP],
        "seconds": seconds[WARM_UP:],
    }
    if os.environ.get("RANK", "0") == "0":  # of the processes of one run
        print(json.dumps(measured), flush=True)
