"""Progress in the terminal: a bar over rounds or epochs, or plain lines if the output is not a terminal.

Text may contain anything (reasons of failures, names), so rich does not interpret brackets and colons.
"""

import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from io import TextIOWrapper
from typing import Any, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


def replace_characters() -> None:
    """Let stdout print "?" for a character that its encoding lacks, such as "·" in ASCII."""
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")


class Terminal(Console):
    """A console that prints and raises nothing once its terminal, or the reader of a pipe, is gone."""

    def print(self, *objects: Any, **options: Any) -> None:
        try:
            replace_characters()
            super().print(*objects, **options)
        except OSError:
            self.on_broken_pipe()  # else Python would write the rest at its end, and fail

    def on_broken_pipe(self) -> None:
        """Print nothing more; rich would end the process."""
        self.quiet = True
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def plain() -> Console:
    """A console that prints text as it is."""
    return Terminal(markup=False, emoji=False, highlight=False, soft_wrap=True)


def say(line: str) -> None:
    """Print one plain line, also during a progress bar or a flow."""
    plain().print(line)


def time_left(began: float, done: int, total: int) -> str:
    """The remaining time at the pace since ``began``: ", about 5 min left"; empty below a minute.

    ``began`` is in seconds of `time.monotonic`.
    """
    seconds = (time.monotonic() - began) / max(1, done) * (total - done)
    if done == 0 or seconds < 60:
        return ""
    left = f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
    return f", about {left} left"


class Reported(Protocol):
    """One round of a run, such as a `RoundReport`."""

    @property
    def round(self) -> int: ...
    @property
    def values(self) -> Mapping[str, float]: ...
    @property
    def failed(self) -> Mapping[int, str]: ...
    @property
    def replayed(self) -> bool: ...


class RoundBar:
    """A progress bar over rounds or epochs, with accuracies and with clients that are left out."""

    def __init__(self, title: str) -> None:
        self.title, self.console = title, plain()
        self.bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.task = self.bar.add_task(title, total=None, note="")
        self._first: tuple[int, float] | None = None  # the first step that was computed here, and its time
        self._estimated = False  # an estimate of the remaining time was printed

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def round(self, report: Reported, rounds: int) -> None:
        """Advance the bar to ``report``, one of ``rounds`` rounds."""
        accuracy = report.values.get("local_accuracy")
        note = "" if accuracy is None else f"local accuracy {accuracy:.3f}"
        for k, reason in report.failed.items():
            self.console.print(f"{self.title}: round {report.round}: client {k} left out: {reason}")
        self.step("round", report.round, rounds, note, silent=report.replayed)

    def step(self, what: str, number: int, total: int, note: str, silent: bool = False) -> None:
        """Advance the bar, or print the ``note``, if any, unless the output is a terminal or ``silent``."""
        left = self._left(number, total, silent)
        news = note or (left and not self._estimated)  # the first estimate does not wait for an evaluation
        self._estimated |= bool(left)
        if news and not silent and not self.console.is_terminal:
            self.console.print(f"{self.title}: {what} {number}/{total}{', ' * bool(note)}{note}{left}")
        if note:
            self.bar.update(self.task, note=note)
        self.bar.update(self.task, completed=number, total=total)

    def _left(self, number: int, total: int, silent: bool) -> str:
        """The remaining time, without the first step that is computed here, which is slower."""
        if silent or self._first is None:
            self._first = None if silent else (number, time.monotonic())
            return ""
        first, then = self._first
        return time_left(then, number - first, total - first)
