"""Runs procedures and central networks, whose steps belong to parts: workers, checkpoints, record."""

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from fedflow.errors import FedflowError, returned
from fedflow.procedures.interface import Row, State
from fedflow.procedures.steps import Block, StepsJob, advance
from fedflow.project.terminal import RoundBar
from fedflow.simulation.checkpoint import drop_checkpoint, load_checkpoint, save_checkpoint
from fedflow.simulation.executors import Executor
from fedflow.stages.driver import Description, Result, drive
from fedflow.tracking.record import Record

BLOCK = 3.0  # seconds between checkpoints, unless a step takes longer

Listener = Callable[[int, int], None]  # called with the number of steps done and of all steps, of all parts


@dataclass
class Progress:
    """The state of every part (None: not started), and the rows of its steps.

    ``seconds`` has the duration of every step that all parts with this step have done.
    """

    states: dict[str, State | None] = field(default_factory=dict)
    rows: dict[str, list[Row]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)

    @property
    def done(self) -> int:
        """Steps of all parts."""
        return sum(map(len, self.rows.values()))

    def row(self, number: int) -> Row:
        """The measured numbers of one step of all parts that have it, as ``<name>/<part>``."""
        return {
            f"{name}/{part}" if part else name: value
            for part, rows in self.rows.items()
            if number <= len(rows)
            for name, value in rows[number - 1].items()
            if not math.isnan(value)
        }


def load_progress(folder: Path) -> Progress | None:
    """The last checkpoint, if there is one. Raises `FedflowError` if it cannot be read."""
    saved = load_checkpoint(folder)
    if saved is None:
        return None
    tensors, facts = saved
    if not {"rows", "seconds", "started"} <= facts.keys():
        raise FedflowError(f"the checkpoint {folder} is of another version; delete this folder to start over")
    progress = Progress(rows=facts["rows"], seconds=facts["seconds"])
    for i, (part, started) in enumerate(facts["started"].items()):
        state = {name.partition("/")[2]: t for name, t in tensors.items() if name.startswith(f"{i}/")}
        progress.states[part] = state if started else None
    return progress


def save_progress(folder: Path, progress: Progress) -> None:
    """Replace the checkpoint."""
    # Copies, because a file cannot hold a tensor that several parts share, such as their first model.
    tensors = {
        f"{i}/{name}": tensor.clone()
        for i, state in enumerate(progress.states.values())
        for name, tensor in (state or {}).items()
    }
    started = {part: state is not None for part, state in progress.states.items()}
    facts = {"rows": progress.rows, "seconds": progress.seconds, "started": started}
    save_checkpoint(folder, tensors, facts)


@dataclass
class Advance:
    """The progress of a block of steps: the ``rows`` by number of step, and steps ``done`` of all parts."""

    rows: dict[int, Row]
    done: int
    text: str = ""  # for the terminal
    replayed: bool = False  # from the checkpoint

    def record(self, record: Record) -> None:
        """Record the rows."""
        for number, row in self.rows.items():
            record.row(number, row)


@dataclass
class PartWork:
    """The steps of all parts of a job, from the checkpoint in ``folder``; every block writes one.

    ``finish`` makes the result. A block lasts ``seconds`` (default: `BLOCK`), at least one step. A step is
    recorded when all parts that have it have done it, with the mean duration of a step of its block. ``note``
    is the text in the terminal for the last row (default: the number of complete parts, when it grows).
    """

    job: StepsJob
    executor: Executor
    folder: Path
    step_name: str
    finish: Callable[[Progress], Result]
    note: Callable[[Row], str] | None = None
    seconds: float | None = None

    @cached_property
    def parts(self) -> dict[str, int]:
        """The number of steps of every part."""
        opened = self.job.open()
        names = returned(opened.names(), list, "parts", "a list of names")
        for part in names:
            if names.count(part) > 1 or re.search(r"[^\w.-]", part, re.ASCII):
                raise FedflowError(
                    f"part {part!r}: not a name of letters, digits and - _ . that no other part has"
                )
        steps = {part: returned(opened.steps(part), int, "steps", "a whole number") for part in names}
        if empty := [part for part, number in steps.items() if number < 1]:
            raise FedflowError(f"part {empty[0]!r}: has no step")
        return steps

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    @cached_property
    def _saved(self) -> Progress | None:
        return load_progress(self.folder)

    @property
    def resumes(self) -> bool:
        return self._saved is not None

    @cached_property
    def progress(self) -> Progress:
        return self._saved or Progress(dict.fromkeys(self.parts), {part: [] for part in self.parts})

    def steps(self) -> Iterator[Advance]:
        """Every block; first the rows of the checkpoint, as a killed process may not have sent them."""
        now = self.progress
        if now.seconds:
            yield Advance(self._rows(1, len(now.seconds)), now.done, replayed=True)
        while left := self._left():
            began, before = time.monotonic(), now.done
            self._advance(left)
            took = (time.monotonic() - began) / (now.done - before)
            behind = [len(now.rows[part]) for part in self._left()]
            first, last = len(now.seconds) + 1, min(behind, default=max(self.parts.values()))
            now.seconds += [took] * (last - first + 1)
            save_progress(self.folder, now)
            complete = f"{len(self.parts) - len(behind)} of {len(self.parts)} parts"
            text = complete if len(behind) < len(left) else ""
            text = self.note(now.rows[left[0]][-1]) if self.note else text
            yield Advance(self._rows(first, last), now.done, text)

    def result(self) -> Result:
        return self.finish(self.progress)

    def forget(self) -> None:
        drop_checkpoint(self.folder)

    def _left(self) -> list[str]:
        """The parts that are not complete."""
        return [part for part, steps in self.parts.items() if len(self.progress.rows[part]) < steps]

    def _rows(self, first: int, last: int) -> dict[int, Row]:
        now = self.progress
        numbers = range(first, last + 1)
        return {i: now.row(i) | {Record.ALWAYS: now.seconds[i - 1]} for i in numbers}

    def _advance(self, left: list[str]) -> None:
        """One block of steps of these parts."""
        now, workers = self.progress, self.executor.workers
        seconds = BLOCK if self.seconds is None else self.seconds
        shards = [left[i::workers] for i in range(min(workers, len(left)))]
        blocks = [
            Block(parts, [len(now.rows[p]) for p in parts], [now.states[p] for p in parts], seconds)
            for parts in shards
        ]
        done = self.executor.map(advance, self.job, blocks, f"{self.step_name} {len(now.seconds) + 1}")
        for parts, results in zip(shards, done, strict=True):
            for part, result in zip(parts, results, strict=True):
                now.states[part] = result.state
                now.rows[part] += result.rows


def run_parts(
    described: Description,
    work: PartWork,
    listeners: Sequence[Listener] = (),
    begun: Callable[[Record], object] = lambda record: None,
) -> Result:
    """`drive`, with a bar in the terminal; ``listeners`` are called with the steps done and all steps."""
    with RoundBar(described.title) as bar:

        def show(block: Advance, total: int) -> None:
            if block.replayed:
                return
            bar.step(work.step_name, block.done, total, block.text)
            for listener in listeners:
                listener(block.done, total)

        return drive(described, work, Record, lambda record, block: block.record(record), [show], begun)
