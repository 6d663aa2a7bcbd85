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
from fedflow.local.local_training import LocalTraining
from fedflow.seeding import generator

SUPPORT = "support_"  # starts the names of its fields in a cohort


@dataclass(frozen=True)
class Schedule:
    """The batches of one client's local steps.

    ``positions`` [S, B] count the client's samples from 0. In the loop, ``sizes`` [S] are the lengths of
    the batches; the rest of a row is padding. In a cohort, where rows cannot be cut, ``mask`` [S, B] marks
    real samples and ``active`` [S] the steps that this client takes. None means all. ``views`` [S, B, V, 3 or
    5] are V views of each sample from `draw_views`, None where samples are not augmented.

    With a curriculum, ``ranked`` [S] marks steps whose positions are ranks by difficulty until `in_order`
    replaces them, and ``ties`` [n] is the order of samples of equal difficulty. Both are None without.

    ``support`` are the batches of `training.adaptation`, ``draws`` [S, q] the uniform numbers in [0, 1) of
    `Noisy.draws`; None without.
    """

    positions: Tensor
    sizes: tuple[int, ...] | None = None
    mask: Tensor | None = None
    active: Tensor | None = None
    views: Tensor | None = None
    ranked: Tensor | None = None
    ties: Tensor | None = None
    support: "Schedule | None" = None
    draws: Tensor | None = None

    @classmethod
    def of_cohort(cls, fields: Mapping[str, Tensor]) -> "Schedule":
        """One client's share of what `pad_schedules` returns."""
        own = {name: t for name, t in fields.items() if not name.startswith(SUPPORT)}
        support = {name.removeprefix(SUPPORT): t for name, t in fields.items() if name not in own}
        return cls(sizes=None, support=cls.of_cohort(support) if support else None, **own)

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def smallest(self) -> int:
        """The samples of the smallest batch, or support; of schedules without padding of a cohort."""
        own = min(self.sizes or (self.positions.shape[1],))
        return own if self.support is None else min(own, self.support.smallest)

    def to(self, device: torch.device) -> "Schedule":
        """This schedule on ``device``; for schedules without padding of a cohort."""
        parts = ((n, part) for n, part in vars(self).items() if isinstance(part, Tensor | Schedule))
        moved: dict[str, Any] = {name: part.to(device) for name, part in parts}
        return replace(self, **moved)

    def with_views(self, training: LocalTraining, rngs: Sequence[np.random.Generator]) -> "Schedule":
        """This schedule with a view of each sample from each of ``rngs``."""
        shape, cutout = tuple(self.positions.shape), training.augment == "flip_crop_cutout"
        return replace(self, views=torch.stack([draw_views(rng, shape, cutout) for rng in rngs], dim=-2))

    def in_order(self, order: Tensor) -> "Schedule":
        """This schedule with positions in place of ranks: ``order`` [n] has the position of each rank."""
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
    training: LocalTraining,
    samples: int,
    epochs: int,
    seed: int,
    stream: str,
    round: int,
    client: int,
    draws: int = 0,
) -> Schedule:
    """The schedule of one client with ``samples`` samples in one round, with ``draws`` numbers per step.

    Views, ties, support and draws have other keys, so that an augmented run has the batches of a plain one,
    and so has a curriculum with all samples in use from the start. The first of two views are those of a run
    with one.
    """
    passes, curriculum = training.passes(samples, epochs), training.curriculum
    rng = generator(seed, f"batches/{stream}", round, client)
    schedule = shuffled(rng, samples, training.batch_size, passes)
    if curriculum is not None and not curriculum.whole:
        ranked = np.repeat([each.prefix < samples for each in passes], [each.steps for each in passes])
        ties = curriculum.draw_ties(samples, generator(seed, "ties", round, client))
        schedule = replace(schedule, ranked=torch.from_numpy(ranked), ties=torch.from_numpy(ties))
    if draws:
        numbers = generator(seed, f"draws/{stream}", round, client).random((len(schedule), draws))
        schedule = replace(schedule, draws=torch.from_numpy(numbers))
    augment, purposes = training.augment != "none", ("views", "other views")[: training.views]
    if augment:
        rngs = [generator(seed, f"{purpose}/{stream}", round, client) for purpose in purposes]
        schedule = schedule.with_views(training, rngs)
    if training.adaptation is not None:
        support = draw_support(generator(seed, f"support/{stream}", round, client), schedule, samples)
        if augment:
            support = support.with_views(
                training, [generator(seed, f"support views/{stream}", round, client)]
            )
        schedule = replace(schedule, support=support)
    return schedule


def draw_support(rng: np.random.Generator, query: Schedule, samples: int) -> Schedule:
    """For every step, as many of the other samples as a whole ``query`` batch has, or all of them if fewer.

    All samples, if the query has all of them. They are the first that are not in the query of a draw that has
    enough others: O(width), as a permutation of all samples in every step would be slow.
    """
    width, free = query.positions.shape[1], np.ones(samples, dtype=bool)
    positions, sizes = np.zeros((len(query), width), dtype=np.int64), list[int]()
    for row, (batch, _, _) in zip(positions, query.batches()):
        own = batch.numpy()
        if len(own) == samples:
            drawn = np.arange(samples)
        else:
            free[own] = False
            drawn = rng.choice(samples, min(samples, len(own) + width), replace=False)
            drawn = drawn[free[drawn]][:width]
            free[own] = True
        row[: len(drawn)] = drawn
        sizes.append(len(drawn))
    return Schedule(torch.from_numpy(positions), tuple(sizes))


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
    augmentation; "ranked" [C, S] and "ties" [C, n], absent without a curriculum; "draws" [C, S, q], absent
    without. Those of `Schedule.support` start with `SUPPORT`.
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
    if (draws := schedules[0].draws) is not None:
        padded["draws"] = torch.zeros(*positions.shape[:2], draws.shape[1], dtype=draws.dtype)
        for table, own in zip(padded["draws"], schedules):
            table[: len(own)] = own.draws
    supports = [own.support for own in schedules if own.support is not None]
    if supports:
        padded |= {
            f"{SUPPORT}{name}": t for name, t in pad_schedules(supports, steps).items() if name != "active"
        }
    return padded | {"positions": torch.from_numpy(positions)}
