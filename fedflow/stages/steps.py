"""Runs parts to their last steps: workers, checkpoints and record of central networks and procedures."""

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedflow.errors import FedflowError
from fedflow.procedures.interface import Row, State
from fedflow.procedures.steps import Block, StepsJob, advance
from fedflow.project.terminal import RoundBar
from fedflow.simulation.checkpoint import load_checkpoint, save_checkpoint
from fedflow.simulation.executors import Executor
from fedflow.tracking import Record

BLOCK = 3.0  # seconds between checkpoints, unless a step takes longer

Listener = Callable[[int, int], None]  # called with the number of steps done and of all steps, of all parts


@dataclass
class Progress:
    """The parts so far: the state of each (None: not started), and the rows of its steps.

    ``seconds``: what each step took that all parts that have it have done.
    """

    states: dict[str, State | None] = field(default_factory=dict)
    rows: dict[str, list[Row]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)

    @property
    def done(self) -> int:
        """Steps of all parts."""
        return sum(map(len, self.rows.values()))

    def row(self, number: int) -> Row:
        """The numbers of one step of all parts that have it, as ``<name>/<part>``, if they were measured."""
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
        own = {name.partition("/")[2]: t for name, t in tensors.items() if name.startswith(f"{i}/")}
        progress.states[part] = own if started else None
    return progress


def save_progress(folder: Path, progress: Progress) -> None:
    """Replace the checkpoint."""
    states = list(progress.states.values())
    # Copies, because a file cannot hold a tensor that several parts share, such as their first model.
    parts = ({f"{i}/{name}": t.clone() for name, t in (s or {}).items()} for i, s in enumerate(states))
    tensors = {name: tensor for part in parts for name, tensor in part.items()}
    started = {part: state is not None for part, state in progress.states.items()}
    facts = {"rows": progress.rows, "seconds": progress.seconds, "started": started}
    save_checkpoint(folder, tensors, facts)


def run_steps(
    job: StepsJob,
    executor: Executor,
    checkpoint: Path,
    record: Record,
    bar: RoundBar,
    step_name: str,
    progress: Progress | None = None,
    listeners: Sequence[Listener] = (),
    note: Callable[[Row], str] | None = None,
    seconds: float | None = None,
) -> Progress:
    """Advance all parts to their last steps, from ``progress``; every block leaves a checkpoint.

    A block lasts ``seconds`` (default: `BLOCK`; 0: one step). A step is recorded when all parts that have it
    have done it, with the seconds that a step of its block took. ``note`` says what the terminal shows of
    the last row (default: how many parts are complete, when one is).
    """
    parts = job.open()
    names = parts.names()
    for part in names:
        if names.count(part) > 1 or re.search(r"[^\w.-]", part, re.ASCII):
            raise FedflowError(
                f"part {part!r}: not a name of letters, digits and - _ . that no other part has"
            )
    steps = {part: parts.steps(part) for part in names}
    total = sum(steps.values())
    now = progress or Progress(dict.fromkeys(names), {part: [] for part in names})
    for number, took in enumerate(now.seconds, 1):  # a killed process may not have sent them
        record.row(number, now.row(number) | {Record.ALWAYS: took})
    while left := [part for part in names if len(now.rows[part]) < steps[part]]:
        began, before = time.monotonic(), now.done
        shards = [left[i :: executor.workers] for i in range(min(executor.workers, len(left)))]
        blocks = [
            Block(
                own,
                [len(now.rows[part]) for part in own],
                [now.states[part] for part in own],
                BLOCK if seconds is None else seconds,
            )
            for own in shards
        ]
        found = executor.map(advance, job, blocks, f"{step_name} {len(now.seconds) + 1}")
        for own, results in zip(shards, found, strict=True):
            for part, result in zip(own, results, strict=True):
                now.states[part] = result.state
                now.rows[part] += result.rows
        took = (time.monotonic() - began) / (now.done - before)
        behind = [len(now.rows[part]) for part in left if len(now.rows[part]) < steps[part]]
        first, last = len(now.seconds) + 1, min(behind, default=max(steps.values()))
        now.seconds += [took] * (last - first + 1)
        save_progress(checkpoint, now)
        for number in range(first, last + 1):
            record.row(number, now.row(number) | {Record.ALWAYS: took})
        complete = f"{len(names) - len(behind)} of {len(names)} parts" if len(behind) < len(left) else ""
        text = note(now.rows[left[0]][-1]) if note else complete
        bar.step(step_name, now.done, total, text)
        for listener in listeners:
            listener(now.done, total)
    return now
