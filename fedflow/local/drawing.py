"""Draws on the host: the batches of a client's training, and the numbers of its extensions."""

import numpy as np
import torch

from fedflow.local.extensions.extension import Drawing
from fedflow.local.local_training import LocalTraining
from fedflow.local.schedule import STEP, Extra, Schedule, shuffled
from fedflow.seeding import generator


def draw_schedule(
    training: LocalTraining,
    samples: int,
    epochs: int,
    seed: int,
    stream: str,
    round: int,
    client: int,
    draws: int = 0,
    place: float = 1.0,
) -> Schedule:
    """The schedule of one client with ``samples`` samples in one round, with ``draws`` numbers per step.

    ``place`` as in `fedflow.seeding.place`.

    Draws of extensions and methods have other keys, so that an augmented run has the batches of a plain one,
    and so has a curriculum with all samples in use from the start.
    """

    def rng(purpose: str, every_stream: bool = False) -> np.random.Generator:
        return generator(seed, purpose if every_stream else f"{purpose}/{stream}", round, client)

    passes = training.passes(samples, epochs)
    schedule = shuffled(rng("batches"), samples, training.batch_size, passes)
    if draws:
        numbers = torch.from_numpy(rng("draws").random((len(schedule), draws)))
        schedule = schedule.having({"draws": Extra(numbers, STEP)})
    return Drawing(training.in_use, schedule, samples, passes, rng, place).complete()
