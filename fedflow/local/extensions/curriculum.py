"""Data curricula: local steps see a growing prefix of a client's samples, sorted by their difficulty.

Source: Vahidian et al., "When Do Curricula Work in Federated Learning?", ICCV 2023, Algorithm 1.

The host draws passes over prefixes, whose sizes depend on the number of samples and the pacing only. The
client sorts its samples once per training, by the model that this training starts from.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedflow.data.examples import Examples
from fedflow.errors import BadInput
from fedflow.local import measures
from fedflow.local.extensions.extension import Drawing, Extension, Host, Reads
from fedflow.local.pacing import EXPERT, Pacing, need_expert, read_expert
from fedflow.local.schedule import ORDER, STEP, Extra, Pass, Schedule
from fedflow.models.flat import FlatModel
from fedflow.settings import option

SCORES = ("global", "local", "both", "global_pred", "local_pred", "both_pred", EXPERT)
DIFFICULTY = "difficulty"  # the mean over the samples at the start of the first training, recorded
RANKED, TIES = "ranked", "ties"


class Curriculum(Pacing, Extension):
    """The samples that a client trains on in each of its T local steps, counted in every participation.

    The difficulty of a sample is its loss in evaluation mode, or, with ``_pred``, 1 for a wrong prediction:
    under the model that this training starts from (``global``), under the model that the client trained in
    its last participation, if any (``local``), or the mean of the two (``both``). Difficulties by ``expert``
    never change. The order ``random`` needs no score.

    Fine-tuning of served models and training of a server have no curriculum.
    """

    section = "training.curriculum"
    records: ClassVar[tuple[str, ...]] = (DIFFICULTY,)
    needs_batches: ClassVar[bool] = True
    needs_clients: ClassVar[bool] = True

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
        if self.expert is None and self.score == EXPERT:
            raise BadInput(f"{self.section}.expert", None, "a name of `central`, as score is expert")
        if self.expert is not None and self.score != EXPERT:
            raise BadInput(f"{self.section}.expert", self.expert, f"null, as score is {self.score}")
        if self.reading != "disagreement" and self.score != "both_pred":
            raise BadInput(f"{self.section}.reading", self.reading, f"disagreement, as score is {self.score}")

    @property
    def compares(self) -> bool:
        return self.scores and self.score.startswith(("local", "both"))

    @property
    def reads(self) -> tuple[Reads, ...]:
        return read_expert(self)

    @property
    def evaluations(self) -> int:
        if not self.scores or self.score == EXPERT:
            return 0
        return 2 if self.score.startswith("both") else 1

    def check_training(self, training: Any) -> None:
        if self.mode == "lazy_epoch" and (not training.batch_size or training.steps is not None):
            why = "steps" if training.batch_size else "batch_size 0"
            raise BadInput(f"{self.section}.mode", self.mode, f"queue or per_step with training.{why}")

    def check(self, model: FlatModel, examples: Examples, inputs: Mapping[str, Any]) -> None:
        if self.score.endswith("_pred") and not examples.labeled:
            accepted = "a score by losses, as the samples do not have one label each"
            raise BadInput(f"{self.section}.score", self.score, accepted)
        need_expert(self, inputs)

    def warnings(self, training: Any, sizes: Sequence[int], epochs: Sequence[int]) -> Iterator[str]:
        short = sum(any(max(training.passes(n, e)).prefix < n for e in epochs) for n in sizes)
        if short:
            reason = "has too few local steps in a round to reach all samples"
            yield f"the curriculum of {short} of {len(sizes)} clients {reason}"

    def epoch_steps(self, samples: Any, batch_size: int) -> Any:
        return samples // batch_size + 1 if self.mode == "lazy_epoch" else None

    @functools.lru_cache(4096)  # noqa: B019 (these objects are few and small)
    def passes(self, samples: int, batch_size: int, steps: int) -> tuple[Pass, ...]:
        """The passes over ``samples`` samples in ``steps`` local steps; lazy_epoch may need more."""
        passes, t = [], 0
        while t < steps:
            prefix = max(self.size(t, steps, samples), min(self.least, samples))
            taken = 1 if self.mode == "per_step" else -(-prefix // batch_size)
            if self.mode == "queue":
                taken = min(taken, steps - t)
            passes.append(Pass(prefix, taken))
            t += taken
        return tuple(passes)

    def draw(self, drawing: Drawing) -> Mapping[str, Extra]:
        """The steps [S] with ranks for positions until `begin`, and the order [n] of equal samples."""
        if self.whole:
            return {}
        prefixes, steps = zip(*drawing.passes)
        ranked = np.repeat(np.array(prefixes) < drawing.samples, steps)
        ties = self.draw_ties(drawing.samples, drawing.rng(TIES, every_stream=True))
        return {RANKED: Extra(torch.from_numpy(ranked), STEP), TIES: Extra(torch.from_numpy(ties), ORDER)}

    def draw_ties(self, samples: int, rng: np.random.Generator) -> np.ndarray:
        """All positions [n], in the order of samples with equal difficulty."""
        if self.ties == "random" or self.order == "random":
            return rng.permutation(samples)
        positions = np.arange(samples)
        return positions[::-1].copy() if self.order == "anti" else positions

    def begin(self, host: Host, schedules: list[Schedule], start: Tensor) -> list[Schedule]:
        """Positions for ranks, by the difficulty under the first vector ``start`` [D]."""
        if self.whole:
            return schedules
        order = schedules[0].extra[TIES].values
        if self.scores:
            difficulty = self.difficulty(host, start)
            order = self.sorted(difficulty, order)
            if DIFFICULTY not in host.records:
                host.records[DIFFICULTY] = difficulty.nansum() / host.samples
        return [in_order(schedule, order) for schedule in schedules]

    def sorted(self, difficulty: Tensor, ties: Tensor) -> Tensor:
        """The positions ``ties`` [n] sorted by ``difficulty``; padding, which is NaN, stays last."""
        keys = (-difficulty if self.order == "anti" else difficulty)[ties]
        return ties[keys.where(~keys.isnan(), torch.inf).argsort(stable=True)]

    def difficulty(self, host: Host, start: Tensor) -> Tensor:
        """The difficulty [n] of a trainer's samples; NaN for the padding of a cohort."""
        if self.score == EXPERT:
            losses: Tensor = host.inputs[EXPERT][host.own.rows].to(host.model.dtype)
            real = host.own.real
            return losses if real is None else losses.where(real, torch.nan)
        last = start if host.last is None else host.last
        if self.score == "both_pred" and self.reading == "disagreement":
            return measures.disagreement(host.model, host.own, start, last)
        kind, _, predictions = self.score.partition("_")
        both = [start] if host.last is None else [start, last]
        models = {"global": [start], "local": [last], "both": both}[kind]
        measure = measures.mistakes if predictions else measures.losses
        return torch.stack([measure(host.model, host.own, w) for w in models]).mean(0)


def in_order(schedule: Schedule, order: Tensor) -> Schedule:
    """The schedule with positions in place of ranks; ``order`` [n] has the position of each rank."""
    ranked, positions = schedule.extra[RANKED].values, schedule.positions
    return replace(schedule, positions=torch.where(ranked[:, None], order[positions], positions))


def normalized(losses: Tensor) -> Tensor:
    """The scores [n] of samples with these ``losses``, which sum to 1: the higher, the easier."""
    inverse = 1 / losses.clamp(min=1e-12)
    return inverse / inverse.sum()
