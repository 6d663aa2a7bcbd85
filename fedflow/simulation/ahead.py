"""Batches drawn ahead: while a GPU trains a cohort, the host draws the batches of the next one.

Results do not depend on it: batches that were not expected are drawn later, with the same numbers.
"""

from collections.abc import Iterable
from typing import Any

from fedflow.local.drawing import draw_schedule
from fedflow.local.local_training import LocalTraining
from fedflow.local.schedule import Schedule


class Ahead:
    """The schedules of clients that are expected, by round and by the arguments of `draw_schedule`."""

    def __init__(self) -> None:
        self._training: LocalTraining | None = None
        self._drawn: dict[int, dict[tuple[Any, ...], Schedule]] = {}

    def draw(self, training: LocalTraining, t: int, expected: Iterable[tuple[Any, ...]]) -> None:
        """Draw schedules of round ``t``, unless they are drawn, by the other arguments of `draw_schedule`.

        Schedules of the round before are kept, as its last call may not have trained yet.
        """
        if self._training != training:
            self._training, self._drawn = training, {}
        self._drawn = {round: drawn for round, drawn in self._drawn.items() if round >= t - 1}
        drawn = self._drawn.setdefault(t, {})
        for args in expected:
            if args not in drawn:
                drawn[args] = draw_schedule(training, *args)

    def take(self, training: LocalTraining, t: int, *args: Any) -> Schedule:
        """The schedule of round ``t`` with these arguments, drawn now unless it was expected."""
        drawn = self._drawn.get(t, {}).get(args) if self._training == training else None
        return draw_schedule(training, *args) if drawn is None else drawn
