"""Progress in the terminal: a bar over rounds or epochs, or plain lines if the output is not a terminal.

Text may contain anything (reasons of failures, names), so rich does not interpret brackets and colons.
"""

import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedflow.simulation.outcome import RoundReport


def plain() -> Console:
    """A console that prints text as it is."""
    return Console(markup=False, emoji=False, highlight=False, soft_wrap=True)


def say(line: str) -> None:
    """Print one plain line, also during a progress bar or a flow."""
    plain().print(line)


class RoundBar:
    """Shows a run's rounds or epochs, its accuracy when measured, and every client that is left out."""

    def __init__(self, title: str) -> None:
        self.title, self.console = title, plain()
        self.bar = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False), TimeRemainingColumn(),
            console=self.console, disable=not self.console.is_terminal,
        )  # fmt: skip
        self.task = self.bar.add_task(title, total=None, note="")
        self._first: tuple[int, float] | None = None  # the first step that was computed here, and when

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def round(self, report: RoundReport, rounds: int) -> None:
        """Advance the bar to ``report``, one of ``rounds`` rounds."""
        accuracy = report.values.get("local_accuracy")
        note = "" if accuracy is None else f"local accuracy {accuracy:.3f}"
        for k, reason in report.failed.items():
            self.console.print(f"{self.title}: round {report.round}: client {k} left out: {reason}")
        self.step("round", report.round, rounds, note, silent=report.replayed)

    def step(self, what: str, number: int, total: int, note: str, silent: bool = False) -> None:
        """Advance the bar; where there is none, print the ``note``, if any, unless ``silent``."""
        left = self._left(number, total, silent)
        if note and not silent and not self.console.is_terminal:
            self.console.print(f"{self.title}: {what} {number}/{total}, {note}{left}")
        if note:
            self.bar.update(self.task, note=note)
        self.bar.update(self.task, completed=number, total=total)

    def _left(self, number: int, total: int, silent: bool) -> str:
        """How long the rest will take, in words, if that is a minute or more."""
        now = time.monotonic()
        if silent or self._first is None:
            self._first = None if silent else (number, now)
            return ""
        first, then = self._first
        seconds = (now - then) / max(1, number - first) * (total - number)
        if seconds < 60:
            return ""
        return (
            f", about {seconds / 60:.0f} min left"
            if seconds < 5400
            else f", about {seconds / 3600:.1f} h left"
        )
