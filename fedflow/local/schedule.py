"""The order in which local steps see samples, drawn on the host before training starts.

A schedule depends only on its key (seed, stream, round, client). So the loop, vmapped cohorts, captured
graphs and compiled steps use the same batches.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedflow.local.augment import draw_views
from fedflow.local.curriculum import Pass
from fedflow.local.training import LocalTraining
from fedflow.seeding import generator


@dataclass(frozen=True)
class Schedule:
    """The batches of one client's local steps.

    ``positions`` [S, B] are places among the client's samples. In the loop, ``sizes`` [S] are the lengths of
    the batches; the rest of a row is padding. In a cohort, where rows cannot be cut, ``mask`` [S, B] marks
    real samples and ``active`` [S] the steps that this client takes. None means all. ``views`` [S, B, V, 3 or
    5] are V views of each sample from `draw_views`, None where samples are not augmented.

    With a curriculum, ``ranked`` [S] marks steps whose positions are ranks by difficulty until `in_order`
    replaces them, and ``ties`` [n] is the order of samples of equal difficulty. Both are None without.
    """

    positions: Tensor
    sizes: tuple[int, ...] | None = None
    mask: Tensor | None = None
    active: Tensor | None = None
    views: Tensor | None = None
    ranked: Tensor | None = None
    ties: Tensor | None = None

    @classmethod
    def of_cohort(cls, fields: Mapping[str, Tensor]) -> "Schedule":
        """One client's share of what `pad_schedules` returns."""
        return cls(sizes=None, **fields)

    def __len__(self) -> int:
        return len(self.positions)

    def to(self, device: torch.device) -> "Schedule":
        """This schedule on ``device``; for schedules without padding of a cohort."""
        tensors: dict[str, Any] = {n: t.to(device) for n, t in vars(self).items() if isinstance(t, Tensor)}
        return replace(self, **tensors)

    def with_views(self, training: LocalTraining, rngs: Sequence[np.random.Generator]) -> "Schedule":
        """This schedule with a view of each sample from each of ``rngs``."""
        shape, cutout = tuple(self.positions.shape), training.augment == "flip_crop_cutout"
        return replace(self, views=torch.stack([draw_views(rng, shape, cutout) for rng in rngs], dim=-2))

    def in_order(self, order: Tensor) -> "Schedule":
        """This schedule with places in place of ranks: ``order`` [n] has the place of each rank."""
        assert self.ranked is not None
        return replace(
            self, positions=torch.where(self.ranked[:, None], order[self.positions], self.positions)
        )

    def batches(self) -> Iterator[tuple[Tensor, Tensor | None, Tensor | None]]:
        """The positions [B] of each step, its mask [B] and its views [B, V, 3 or 5], if any."""
        width = self.positions.shape[1]
        masks, views = (repeat(None) if each is None else each.unbind(0) for each in (self.mask, self.views))
        for row, size, mask, view in zip(self.positions.unbind(0), self.sizes or repeat(width), masks, views):
            whole = size == width
            yield (row if whole else row[:size]), mask, (view if whole or view is None else view[:size])

    def steps(self) -> Sequence[Tensor | None]:
        """Whether the client takes each step, scalar bool; None if the whole cohort does."""
        return [None] * len(self) if self.active is None else self.active.unbind(0)


def draw_schedule(
    training: LocalTraining, samples: int, epochs: int, seed: int, stream: str, round: int, client: int
) -> Schedule:
    """The schedule of one client with ``samples`` samples in one round.

    Views and ties have other keys, so that an augmented run has the batches of a plain one, and so has a
    curriculum with all samples in use from the start. The first of two views are those of a run with one.
    """
    passes, curriculum = training.passes(samples, epochs), training.curriculum
    rng = generator(seed, f"batches/{stream}", round, client)
    schedule = shuffled(rng, samples, training.batch_size, passes)
    if curriculum is not None and not curriculum.whole:
        ranked = np.repeat([each.prefix < samples for each in passes], [each.steps for each in passes])
        ties = curriculum.draw_ties(samples, generator(seed, "ties", round, client))
        schedule = replace(schedule, ranked=torch.from_numpy(ranked), ties=torch.from_numpy(ties))
    if training.augment == "none":
        return schedule
    purposes = ("views", "other views")[: training.views]
    rngs = [generator(seed, f"{purpose}/{stream}", round, client) for purpose in purposes]
    return schedule.with_views(training, rngs)


def shuffled(rng: np.random.Generator, samples: int, batch_size: int, passes: Sequence[Pass]) -> Schedule:
    """A new permutation of the prefix in each pass, cut into batches; size 0 means all samples."""
    width = min(batch_size or samples, samples)
    positions = np.zeros((sum(each.steps for each in passes), width), dtype=np.int64)
    sizes: list[int] = []
    for prefix, steps in passes:
        shown = min(prefix, steps * width)
        positions[len(sizes) : len(sizes) + steps].reshape(-1)[:shown] = rng.permutation(prefix)[:shown]
        sizes += [width] * (steps - 1) + [shown - (steps - 1) * width]
    return Schedule(torch.from_numpy(positions), tuple(sizes))


def pad_schedules(
    schedules: Sequence[Schedule], steps: int | None = None, samples: int | None = None
) -> dict[str, Tensor]:
    """The schedules of a cohort, stacked: fields of `Schedule`.

    ``steps`` S and ``samples`` n are by default those of the longest. "positions" [C, S, B]; "mask" [C, S, B]
    and "active" [C, S], absent if they would be true everywhere; "views" [C, S, B, V, 3 or 5], absent without
    augmentation; "ranked" [C, S] and "ties" [C, n], absent without a curriculum.
    """
    steps = steps or max(map(len, schedules))
    width = max(own.positions.shape[1] for own in schedules)
    positions = np.zeros((len(schedules), steps, width), dtype=np.int64)
    sizes = np.zeros((len(schedules), steps), dtype=np.int64)
    for table, lengths, own in zip(positions, sizes, schedules):
        table[: len(own), : own.positions.shape[1]] = own.positions.numpy()
        lengths[: len(own)] = own.positions.shape[1] if own.sizes is None else own.sizes
    fields = {"mask": np.arange(width) < sizes[..., None], "active": sizes > 0}
    padded = {name: torch.from_numpy(values) for name, values in fields.items() if not values.all()}
    if (views := schedules[0].views) is not None:
        padded["views"] = torch.zeros(*positions.shape, *views.shape[2:], dtype=views.dtype)
        for table, own in zip(padded["views"], schedules):
            table[: len(own), : own.positions.shape[1]] = own.views
    ranks = [(own.ranked, own.ties) for own in schedules if own.ranked is not None and own.ties is not None]
    if ranks:
        padded["ranked"] = torch.zeros(positions.shape[:2], dtype=torch.bool)
        padded["ties"] = torch.arange(samples or max(len(ties) for _, ties in ranks)).repeat(len(ranks), 1)
        for c, (ranked, ties) in enumerate(ranks):
            padded["ranked"][c, : len(ranked)], padded["ties"][c, : len(ties)] = ranked, ties
    return padded | {"positions": torch.from_numpy(positions)}
