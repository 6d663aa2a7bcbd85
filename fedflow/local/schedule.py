"""The order in which local steps see samples, drawn on the host before training starts.

A schedule depends only on its key (seed, stream, round, client). So the loop, vmapped cohorts, captured
graphs and compiled steps use the same batches.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

STEP, SAMPLE, ORDER = "step", "sample", "order"
FURTHER = "further"  # starts the names of further batches in a cohort


class Pass(NamedTuple):
    """``steps`` batches from one shuffle of the first ``prefix`` samples; the last batch may be smaller."""

    prefix: int
    steps: int


class Extra(NamedTuple):
    """Numbers that an extension draws for the training of one client.

    ``per`` says what they belong to, and so how those of a cohort are padded and which steps see them:
    `STEP` [S, ...]; `SAMPLE` of a step [S, B, ...]; or `ORDER` [n], all positions of the client, in which the
    padding of a cohort is last, and which no step sees.
    """

    values: Tensor
    per: str


@dataclass(frozen=True)
class Schedule:
    """The batches of one client's local steps.

    ``positions`` [S, B] count the client's samples from 0. In the loop, ``sizes`` [S] are the lengths of
    the batches; the rest of a row is padding. In a cohort, where rows cannot be cut, ``mask`` [S, B] marks
    real samples and ``active`` [S] the steps that this client takes. None means all.

    ``extra`` are the numbers that extensions drew, by name, and ``further`` batches that they drew for the
    same steps.
    """

    positions: Tensor
    sizes: tuple[int, ...] | None = None
    mask: Tensor | None = None
    active: Tensor | None = None
    extra: Mapping[str, Extra] = field(default_factory=dict)
    further: Mapping[str, "Schedule"] = field(default_factory=dict)

    @classmethod
    def of_cohort(cls, fields: Mapping[str, Tensor]) -> "Schedule":
        """One client's share of what `pad_schedules` returns."""
        own, extra, further = dict[str, Tensor](), dict[str, Extra](), dict[str, dict[str, Tensor]]()
        for key, values in fields.items():
            per, slash, name = key.partition("/")
            if per == FURTHER:
                name, _, part = name.partition("/")
                further.setdefault(name, {})[part] = values
            elif slash:
                extra[name] = Extra(values, per)
            else:
                own[key] = values
        batches = {name: cls.of_cohort(parts) for name, parts in further.items()}
        return cls(sizes=None, extra=extra, further=batches, **own)

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def smallest(self) -> int:
        """The samples of the smallest batch, further ones included; for schedules without padding."""
        own = min(self.sizes or (self.positions.shape[1],))
        return min(own, *(each.smallest for each in self.further.values())) if self.further else own

    def having(self, drawn: Mapping[str, "Extra | Schedule"]) -> "Schedule":
        """This schedule with what extensions drew, by name."""
        extra = {name: each for name, each in drawn.items() if isinstance(each, Extra)}
        further = {name: each for name, each in drawn.items() if isinstance(each, Schedule)}
        return replace(self, extra={**self.extra, **extra}, further={**self.further, **further})

    def to(self, device: torch.device) -> "Schedule":
        """This schedule on ``device``; for schedules without padding of a cohort."""
        extra = {name: Extra(each.values.to(device), each.per) for name, each in self.extra.items()}
        further = {name: each.to(device) for name, each in self.further.items()}
        return replace(self, positions=self.positions.to(device), extra=extra, further=further)

    def batches(self) -> Iterator[tuple[Tensor, Tensor | None, dict[str, Tensor]]]:
        """The positions [B] of each step, its mask [B] if any, and the numbers of extensions by name."""
        width = self.positions.shape[1]
        seen = {name: each for name, each in self.extra.items() if each.per != ORDER}
        numbers = zip(*(each.values.unbind(0) for each in seen.values())) if seen else repeat(())
        masks = repeat(None) if self.mask is None else self.mask.unbind(0)
        cut = [each.per == SAMPLE for each in seen.values()]
        for row, size, mask, values in zip(
            self.positions.unbind(0), self.sizes or repeat(width), masks, numbers
        ):
            if size != width:
                row, values = row[:size], tuple(v[:size] if each else v for v, each in zip(values, cut))
            yield row, mask, dict(zip(seen, values))

    def steps(self) -> Sequence[Tensor | None]:
        """Whether the client takes each step, scalar bool; None if the whole cohort does."""
        return [None] * len(self) if self.active is None else self.active.unbind(0)


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
    """The schedules of a cohort, stacked: what `Schedule.of_cohort` takes.

    ``steps`` S and ``samples`` n are by default those of the longest. "positions" [C, S, B]; "mask" [C, S, B]
    and "active" [C, S], absent if they would be true everywhere; "step/NAME" [C, S, ...], "sample/NAME"
    [C, S, B, ...] and "order/NAME" [C, n] of each `Extra`; "further/NAME/..." of further batches.
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
    for name, (_, per) in schedules[0].extra.items():
        drawn = [own.extra[name].values for own in schedules]
        if per == ORDER:
            stacked = torch.arange(samples or max(map(len, drawn))).repeat(len(drawn), 1)
        else:
            shape = (steps,) if per == STEP else (steps, width)
            stacked = drawn[0].new_zeros(len(drawn), *shape, *drawn[0].shape[len(shape) :])
        for row, values in zip(stacked, drawn):
            row[tuple(map(slice, values.shape))] = values
        padded[f"{per}/{name}"] = stacked
    for name in schedules[0].further:
        parts = pad_schedules([own.further[name] for own in schedules], steps)
        padded |= {f"{FURTHER}/{name}/{part}": t for part, t in parts.items() if part != "active"}
    return padded | {"positions": torch.from_numpy(positions)}
