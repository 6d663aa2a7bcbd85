"""Small calls of `fedflow.run`: arrays, a network and two methods."""

from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

import fedflow as ff
from fedflow.local.local_training import LocalTraining
from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.methods.protocols import Adapting

SMALL: dict[str, Any] = {"rounds": 2, "progress": False, "compile": "never", "device": "cpu"}


def blobs(rows: int = 60, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Three classes that a linear model separates: features [rows, 5], labels [rows]."""
    labels = np.arange(rows) % 3
    noise = np.random.default_rng(seed).normal(scale=0.1, size=(rows, 5))
    return (noise + np.eye(3, 5)[labels]).astype(np.float32), labels


def own(**changes: Any) -> Any:
    (x, y), (x_test, y_test) = blobs(), blobs(30, 1)
    return ff.dataset(**{"x": x, "y": y, "x_test": x_test, "y_test": y_test} | changes)


class Halved(FedAvg):
    """FedAvg whose global model moves half of the way."""

    step: float = ff.option(0.5, "share of the way", gt=0, le=1)

    def aggregate(self, now: Any, server: Any, cohort: Any) -> Any:
        after, numbers = super().aggregate(now, server, cohort)
        return type(after)(server.model + self.step * (after.model - server.model)), numbers


class Faster(Adapting, FedAvg):
    """FedAvg with twice the learning rate of the run."""

    def trains(self, training: LocalTraining) -> LocalTraining:
        return replace(training, lr=2 * training.lr)


def two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
