"""Parts and their steps: what travels to workers, and how they advance.

A block is some steps of some parts. Workers keep no state: a block brings the states of its parts, and their
states and rows come back. So any worker can compute any block, and compute it again.
"""

import time
from dataclasses import dataclass
from typing import Protocol

from fedflow.procedures.interface import Row, State


class Parts(Protocol):
    """Independent parts, each a sequence of steps: a `Procedure` with what it has opened, for example."""

    def names(self) -> list[str]: ...

    def steps(self, part: str) -> int: ...

    def start(self, part: str) -> State: ...

    def step(self, part: str, state: State, number: int) -> tuple[State, Row]: ...


class StepsJob(Protocol):
    """What all workers need: how to open the parts, which a process does once."""

    @property
    def device(self) -> str: ...

    def open(self) -> Parts: ...


@dataclass(frozen=True)
class Here:
    """A job of this process only."""

    parts: Parts
    device: str = "cpu"

    def open(self) -> Parts:
        return self.parts


@dataclass(frozen=True)
class Block:
    """One worker's share: parts, the number of steps that each has done, and their states; None: not started.

    It ends after ``seconds``, divided among the parts, but not before one step of each.
    """

    parts: list[str]
    done: list[int]
    states: list[State | None]
    seconds: float

    @property
    def content(self) -> str:
        """What the name of its Prefect task says."""
        return f"{len(self.parts)} {'part' if len(self.parts) == 1 else 'parts'}"


@dataclass(frozen=True)
class Advanced:
    """A part after a block: its state, on the CPU, and the rows of the steps of the block."""

    state: State
    rows: list[Row]


def advance(job: StepsJob, block: Block) -> list[Advanced]:
    """Compute a block. It has no side effects."""
    parts, share = job.open(), block.seconds / len(block.parts)
    return [
        _advance(parts, part, done, state, share)
        for part, done, state in zip(block.parts, block.done, block.states, strict=True)
    ]


def _advance(parts: Parts, part: str, done: int, state: State | None, seconds: float) -> Advanced:
    now, rows, last = parts.start(part) if state is None else state, list[Row](), parts.steps(part)
    deadline = time.monotonic() + seconds
    while done + len(rows) < last:
        now, row = parts.step(part, now, done + len(rows) + 1)
        rows.append({name: float(value) for name, value in row.items()})
        if time.monotonic() >= deadline:
            break
    return Advanced({name: tensor.cpu() for name, tensor in now.items()}, rows)
