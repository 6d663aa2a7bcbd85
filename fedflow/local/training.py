"""How clients train: the settings that every method shares, and the order in which batches come."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from fedflow.random import generator
from fedflow.settings import Settings, option


class LocalTraining(Settings):
    """Local SGD of one client in one round. The optimiser state is fresh in every round."""

    section = "training"
    epochs: int = option(1, "local epochs", symbol="E", ge=1)
    batch_size: int = option(
        10, "samples per batch; the last one may be smaller; 0 = full gradient", symbol="B", ge=0
    )
    lr: float = option(0.05, "client learning rate", symbol="eta", gt=0)
    momentum: float = option(0.0, "SGD momentum", symbol="rho", ge=0, lt=1)
    weight_decay: float = option(0.0, "L2 penalty in the gradient", ge=0)
    clip_norm: float | None = option(None, "largest norm of a gradient; longer ones are scaled down", gt=0)
    lr_decay: float = option(1.0, "factor on the learning rate after every round", gt=0, le=1)

    def steps(self, samples: int, epochs: int | None = None) -> int:
        """Local steps tau of a client with so many samples: ``epochs * ceil(n / B)``."""
        return (epochs or self.epochs) * math.ceil(samples / (self.batch_size or samples))


def batches(
    training: LocalTraining, samples: int, epochs: int, seed: int, stream: str, round: int, client: int
) -> Iterator[np.ndarray]:
    """Positions of each batch of one client in one round: every epoch a fresh permutation, cut in order."""
    rng = generator(seed, f"batches/{stream}", round, client)
    size = training.batch_size or samples
    for _ in range(epochs):
        order = rng.permutation(samples)
        yield from (order[start : start + size] for start in range(0, samples, size))


def padded_batches(
    training: LocalTraining,
    samples: list[int],
    epochs: int | Sequence[int],
    seed: int,
    stream: str,
    round: int,
    clients: list[int],
) -> tuple[Tensor, Tensor]:
    """The same batches for a cohort of ragged clients and epochs: positions [C, S, B] and mask [C, S, B].

    Steps that a client does not have are all masked.
    """
    each = [epochs] * len(samples) if isinstance(epochs, int) else epochs
    steps = max(training.steps(n, e) for n, e in zip(samples, each))
    width = min(training.batch_size or max(samples), max(samples))
    positions = np.zeros((len(clients), steps, width), dtype=np.int64)
    mask = np.zeros((len(clients), steps, width), dtype=bool)
    for c, (client, n, e) in enumerate(zip(clients, samples, each)):
        for s, batch in enumerate(batches(training, n, e, seed, stream, round, client)):
            positions[c, s, : len(batch)] = batch
            mask[c, s, : len(batch)] = True
    return torch.from_numpy(positions), torch.from_numpy(mask)
