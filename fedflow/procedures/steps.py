"""Parts and their steps, and blocks of steps for workers.

A block is some steps of some parts. Workers keep no state: a block contains the states of its parts, and
their new states and rows are returned. So any worker can compute any block, and repeat it.
"""

import time
from dataclasses import dataclass
from typing import Protocol

from fedflow.errors import returned
from fedflow.procedures.interface import Row, State


class Parts(Protocol):
    """Independent parts, each a sequence of steps, such as an opened `Procedure`."""

    def names(self) -> list[str]: ...

    def steps(self, part: str) -> int: ...

    def start(self, part: str) -> State: ...

    def step(self, part: str, state: State, number: int) -> tuple[State, Row]: ...


class StepsJob(Protocol):
    """A job for workers: parts that every process opens once."""

    @property
    def device(self) -> str: ...

    def open(self) -> Parts: ...


@dataclass(frozen=True)
class Here:
    """A job for this process only."""

    parts: Parts
    device: str = "cpu"

    def open(self) -> Parts:
        return self.parts


@dataclass(frozen=True)
class Block:
    """A worker's share: parts, their numbers of finished steps, and their states (None: not started).

    It ends after ``seconds``, divided among the parts, but not before one step of each part.
    """

    parts: list[str]
    done: list[int]
    states: list[State | None]
    seconds: float

    @property
    def content(self) -> str:
        """Description in the name of its Prefect task."""
        return f"{len(self.parts)} {'part' if len(self.parts) == 1 else 'parts'}"


@dataclass(frozen=True)
class Advanced:
    """A part after a block: its state on the CPU, and the rows of the block's steps."""

    state: State
    rows: list[Row]


def advance(job: StepsJob, block: Block) -> list[Advanced]:
    """Compute a block, without side effects."""
    parts, share = job.open(), block.seconds / len(block.parts)
    return [
        _advance(parts, part, done, state, share)
        for part, done, state in zip(block.parts, block.done, block.states, strict=True)
    ]


def _advance(parts: Parts, part: str, done: int, state: State | None, seconds: float) -> Advanced:
    now, rows, last = parts.start(part) if state is None else state, list[Row](), parts.steps(part)
    deadline = time.monotonic() + seconds
    while done + len(rows) < last:
        stepped = parts.step(part, now, done + len(rows) + 1)
        now, row = returned(stepped, tuple, "step", "the next state and its row")
        rows.append({name: float(value) for name, value in row.items()})
        if time.monotonic() >= deadline:
            break
    return Advanced({name: tensor.cpu() for name, tensor in now.items()}, rows)
