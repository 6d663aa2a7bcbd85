"""The order in which local steps see samples, drawn on the host before training starts.

A schedule depends only on its key (seed, stream, round, client), so the loop, vmapped cohorts, captured
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

    ``per`` is `STEP` [S, ...]; `SAMPLE` of a step [S, B, ...]; or `ORDER` [n]: all positions of the client,
    with the padding of a cohort last, which no step sees.
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
        """One client's share of the tensors of `pad_schedules`."""
        plain, extra, further = dict[str, Tensor](), dict[str, Extra](), dict[str, dict[str, Tensor]]()
        for key, values in fields.items():
            per, slash, name = key.partition("/")
            if per == FURTHER:
                name, _, part = name.partition("/")
                further.setdefault(name, {})[part] = values
            elif slash:
                extra[name] = Extra(values, per)
            else:
                plain[key] = values
        batches = {name: cls.of_cohort(parts) for name, parts in further.items()}
        return cls(sizes=None, extra=extra, further=batches, **plain)

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def smallest(self) -> int:
        """The samples of the smallest batch, further ones included; for schedules without padding."""
        sizes = self.sizes or (self.positions.shape[1],)
        return min(*sizes, *(batches.smallest for batches in self.further.values()), self.positions.shape[1])

    def having(self, drawn: Mapping[str, "Extra | Schedule"]) -> "Schedule":
        """This schedule with draws of extensions, by name."""
        extra = {name: item for name, item in drawn.items() if isinstance(item, Extra)}
        further = {name: item for name, item in drawn.items() if isinstance(item, Schedule)}
        return replace(self, extra={**self.extra, **extra}, further={**self.further, **further})

    def to(self, device: torch.device) -> "Schedule":
        """This schedule on ``device``; for schedules without padding of a cohort."""
        extra = {name: Extra(values.to(device), per) for name, (values, per) in self.extra.items()}
        further = {name: batches.to(device) for name, batches in self.further.items()}
        return replace(self, positions=self.positions.to(device), extra=extra, further=further)

    def batches(self) -> Iterator[tuple[Tensor, Tensor | None, dict[str, Tensor]]]:
        """The positions [B] of each step, its mask [B] if any, and the numbers of extensions by name."""
        width = self.positions.shape[1]
        seen = {name: extra for name, extra in self.extra.items() if extra.per != ORDER}
        numbers = zip(*(extra.values.unbind(0) for extra in seen.values())) if seen else repeat(())
        masks = repeat(None) if self.mask is None else self.mask.unbind(0)
        cut = [extra.per == SAMPLE for extra in seen.values()]
        for row, size, mask, values in zip(
            self.positions.unbind(0), self.sizes or repeat(width), masks, numbers
        ):
            if size != width:
                row, values = row[:size], tuple(v[:size] if short else v for v, short in zip(values, cut))
            yield row, mask, dict(zip(seen, values))

    def steps(self) -> Sequence[Tensor | None]:
        """True for each step that the client takes, scalar bool, or None if the whole cohort takes it."""
        return [None] * len(self) if self.active is None else self.active.unbind(0)


def shuffled(rng: np.random.Generator, samples: int, batch_size: int, passes: Sequence[Pass]) -> Schedule:
    """A new permutation of the prefix in each pass, cut into batches; size 0 means all samples."""
    width = min(batch_size or samples, samples)
    positions = np.zeros((sum(steps for _, steps in passes), width), dtype=np.int64)
    sizes: list[int] = []
    for prefix, steps in passes:
        shown = min(prefix, steps * width)
        positions[len(sizes) : len(sizes) + steps].reshape(-1)[:shown] = rng.permutation(prefix)[:shown]
        sizes += [width] * (steps - 1) + [shown - (steps - 1) * width]
    return Schedule(torch.from_numpy(positions), tuple(sizes))


def pad_schedules(
    schedules: Sequence[Schedule], steps: int | None = None, samples: int | None = None
) -> dict[str, Tensor]:
    """The schedules of a cohort, stacked, for `Schedule.of_cohort`.

    ``steps`` S and ``samples`` n are by default the largest ones. "positions" [C, S, B]; "mask" [C, S, B]
    and "active" [C, S], absent if they would be true everywhere; "step/NAME" [C, S, ...], "sample/NAME"
    [C, S, B, ...] and "order/NAME" [C, n] of each `Extra`; "further/NAME/..." of further batches.
    """
    steps = steps or max(map(len, schedules))
    width = max(schedule.positions.shape[1] for schedule in schedules)
    positions = np.zeros((len(schedules), steps, width), dtype=np.int64)
    sizes = np.zeros((len(schedules), steps), dtype=np.int64)
    for table, lengths, schedule in zip(positions, sizes, schedules):
        count, batch = schedule.positions.shape
        table[:count, :batch] = schedule.positions.numpy()
        lengths[:count] = schedule.sizes or batch
    fields = {"mask": np.arange(width) < sizes[..., None], "active": sizes > 0}
    padded = {name: torch.from_numpy(values) for name, values in fields.items() if not values.all()}
    for name, (_, per) in schedules[0].extra.items():
        drawn = [schedule.extra[name].values for schedule in schedules]
        if per == ORDER:
            stacked = torch.arange(samples or max(map(len, drawn))).repeat(len(drawn), 1)
        else:
            shape = (steps,) if per == STEP else (steps, width)
            stacked = drawn[0].new_zeros(len(drawn), *shape, *drawn[0].shape[len(shape) :])
        for row, values in zip(stacked, drawn):
            row[tuple(map(slice, values.shape))] = values
        padded[f"{per}/{name}"] = stacked
    for name in schedules[0].further:
        parts = pad_schedules([schedule.further[name] for schedule in schedules], steps)
        padded |= {f"{FURTHER}/{name}/{part}": t for part, t in parts.items() if part != "active"}
    return padded | {"positions": torch.from_numpy(positions)}
