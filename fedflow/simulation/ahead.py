"""Batches drawn ahead: while a GPU trains a cohort, the host draws the batches of the next one.

Nothing depends on it: what was not expected is drawn when it is needed, with the same numbers.
"""

from collections.abc import Iterable
from typing import Any

from fedflow.local.schedule import Schedule, draw_schedule
from fedflow.local.training import LocalTraining


class Ahead:
    """The schedules of an expected cohort, by the arguments of `draw_schedule`."""

    def __init__(self) -> None:
        self._training: LocalTraining | None = None
        self._drawn: dict[tuple[Any, ...], Schedule] = {}

    def draw(self, training: LocalTraining, expected: Iterable[tuple[Any, ...]]) -> None:
        """Draw schedules by the other arguments of `draw_schedule`; those of earlier calls are dropped."""
        wanted = list(expected)
        if self._training is training and wanted and wanted[0] in self._drawn:
            return  # by an earlier call of the same shard
        self._training, self._drawn = training, {args: draw_schedule(training, *args) for args in wanted}

    def take(self, training: LocalTraining, *args: Any) -> Schedule:
        """The schedule with these arguments, drawn now unless it was expected."""
        found = self._drawn.get(args) if self._training is training else None
        return draw_schedule(training, *args) if found is None else found
