"""Data curricula: local steps see a growing prefix of a client's samples, sorted by their difficulty.

Source: Vahidian et al., "When Do Curricula Work in Federated Learning?", ICCV 2023, Algorithm 1.

The host draws passes over prefixes, whose sizes depend on the number of samples and the pacing only. The
client sorts its samples once per training, by the model that this training starts from.
"""

import functools
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fedflow.errors import BadInput
from fedflow.local import measures
from fedflow.local.pacing import Pacing
from fedflow.local.samples import Samples
from fedflow.models.flat import FlatModel
from fedflow.settings import option

SCORES = ("global", "local", "both", "global_pred", "local_pred", "both_pred", "expert")


class Pass(NamedTuple):
    """``steps`` batches from one shuffle of the first ``prefix`` samples; the last batch may be smaller."""

    prefix: int
    steps: int


class Scored(Protocol):
    """What a curriculum needs of a `Trainer`."""

    model: FlatModel
    own: Samples
    last: Tensor | None  # the model [D] of the client's last participation, or what stands for it

    @property
    def expert_losses(self) -> Tensor: ...


class Curriculum(Pacing):
    """Which samples a client trains on in each of its T local steps, counted in every participation.

    The difficulty of a sample is its loss in evaluation mode, or, with ``_pred``, whether its prediction is
    wrong: under the model that this training starts from (``global``), under the model that the client
    trained in its last participation, if there was one (``local``), or the mean of the two (``both``). That
    of ``expert`` never changes. The order ``random`` needs no score.

    Fine-tuning of served models and training of a server have no curriculum.
    """

    section = "training.curriculum"
    score: str = option("global", "the difficulty by which samples are sorted", choices=SCORES)
    reading: str = option(
        "disagreement",
        "difficult samples of both_pred: those whose two predictions differ, or those with "
        "more wrong predictions of the two",
        choices=("disagreement", "mistakes"),
        source="disagreement: thesis; mistakes: authors' code",
    )
    mode: str = option(
        "queue",
        "queue: batches of a shuffled prefix, as many as without a curriculum; per_step: each batch "
        "drawn from its own prefix; lazy_epoch: whole passes, at least E (floor(n_k / B) + 1) batches",
        choices=("queue", "per_step", "lazy_epoch"),
        source="per_step: thesis; lazy_epoch: authors' code",
    )
    ties: str = option(
        "random",
        "samples of equal difficulty: in a new order in every round, or as in the data (stable)",
        choices=("random", "stable"),
        source="stable: authors' code",
    )
    least: int = option(1, "the smallest prefix", ge=1, source="authors' code: 32")
    expert: str | None = option(None, "the network of `central` whose losses are the difficulty (expert)")

    def validate(self) -> None:
        if self.expert is None and self.score == "expert":
            raise BadInput(f"{self.section}.expert", None, "a name of `central`, as score is expert")
        if self.expert is not None and self.score != "expert":
            raise BadInput(f"{self.section}.expert", self.expert, f"null, as score is {self.score}")
        if self.reading != "disagreement" and self.score != "both_pred":
            raise BadInput(f"{self.section}.reading", self.reading, f"disagreement, as score is {self.score}")

    @property
    def compares(self) -> bool:
        """Whether the score needs the model that the client trained last."""
        return self.scores and self.score.startswith(("local", "both"))

    @property
    def evaluations(self) -> int:
        """Passes over all samples, without gradients, that one score needs."""
        if not self.scores or self.score == "expert":
            return 0
        return 2 if self.score.startswith("both") else 1

    @functools.lru_cache(4096)  # noqa: B019 (these objects are few and small)
    def passes(self, samples: int, batch_size: int, steps: int) -> tuple[Pass, ...]:
        """The passes over ``samples`` samples in ``steps`` local steps; lazy_epoch may need more."""
        found, t = [], 0
        while t < steps:
            prefix = max(self.size(t, steps, samples), min(self.least, samples))
            taken = 1 if self.mode == "per_step" else -(-prefix // batch_size)
            if self.mode == "queue":
                taken = min(taken, steps - t)
            found.append(Pass(prefix, taken))
            t += taken
        return tuple(found)

    def draw_ties(self, samples: int, rng: np.random.Generator) -> np.ndarray:
        """All positions [n], in the order in which samples of equal difficulty come."""
        if self.ties == "random" or self.order == "random":
            return rng.permutation(samples)
        positions = np.arange(samples)
        return positions[::-1].copy() if self.order == "anti" else positions

    def sorted(self, difficulty: Tensor, ties: Tensor) -> Tensor:
        """The positions ``ties`` [n] by ``difficulty``, in which padding is NaN: it stays last."""
        keys = (-difficulty if self.order == "anti" else difficulty)[ties]
        return ties[keys.where(~keys.isnan(), torch.inf).argsort(stable=True)]

    def difficulty(self, trainer: Scored, start: Tensor) -> Tensor:
        """The difficulty [n] of a trainer's samples; NaN for the padding of a cohort."""
        if self.score == "expert":
            return trainer.expert_losses
        last = start if trainer.last is None else trainer.last
        if self.score == "both_pred" and self.reading == "disagreement":
            return measures.disagreement(trainer.model, trainer.own, start, last)
        which, _, predictions = self.score.partition("_")
        both = [start] if trainer.last is None else [start, last]
        models = {"global": [start], "local": [last], "both": both}[which]
        measure = measures.mistakes if predictions else measures.losses
        return torch.stack([measure(trainer.model, trainer.own, w) for w in models]).mean(0)


def normalized(losses: Tensor) -> Tensor:
    """The scores [n] of samples with these ``losses``, which sum to 1: the higher, the easier."""
    inverse = 1 / losses.clamp(min=1e-12)
    return inverse / inverse.sum()
