"""Runs parts to their last steps: workers, checkpoints and record of central networks and procedures."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fedflow.procedures.base import Row, State
from fedflow.procedures.steps import Block, StepsJob, advance
from fedflow.simulation.checkpoint import load_checkpoint, save_checkpoint
from fedflow.simulation.executors import Executor
from fedflow.terminal import RoundBar
from fedflow.tracking import Record

BLOCK = 3.0  # seconds between checkpoints, unless a step takes longer

Listener = Callable[[int, int], None]  # called with the number of steps done and of all steps, of all parts


@dataclass
class Progress:
    """The parts so far: the state of each (None: not started), and the rows of its steps."""

    states: dict[str, State | None] = field(default_factory=dict)
    rows: dict[str, list[Row]] = field(default_factory=dict)

    @property
    def done(self) -> int:
        """Steps of all parts."""
        return sum(map(len, self.rows.values()))

    def row(self, number: int) -> Row:
        """The numbers of one step of all parts that have it, as ``<name>/<part>``."""
        return {
            f"{name}/{part}" if part else name: value
            for part, rows in self.rows.items()
            if number <= len(rows)
            for name, value in rows[number - 1].items()
        }


def load_progress(folder: Path) -> Progress | None:
    """The last checkpoint, if there is one."""
    saved = load_checkpoint(folder)
    if saved is None:
        return None
    tensors, facts = saved
    progress = Progress(rows=facts["rows"])
    for i, (part, started) in enumerate(facts["started"].items()):
        own = {name.partition("/")[2]: t for name, t in tensors.items() if name.startswith(f"{i}/")}
        progress.states[part] = own if started else None
    return progress


def save_progress(folder: Path, progress: Progress) -> None:
    """Replace the checkpoint."""
    states = list(progress.states.values())
    tensors = {f"{i}/{name}": t for i, state in enumerate(states) for name, t in (state or {}).items()}
    started = {part: state is not None for part, state in progress.states.items()}
    save_checkpoint(folder, tensors, {"rows": progress.rows, "started": started})


def run_steps(
    job: StepsJob,
    executor: Executor,
    checkpoint: Path,
    record: Record,
    bar: RoundBar,
    step_name: str,
    progress: Progress | None = None,
    note: Callable[[Row], str] = lambda row: "",
    listeners: tuple[Listener, ...] = (),
) -> Progress:
    """Advance all parts to their last steps, from ``progress``; every block leaves a checkpoint.

    A step is recorded when all parts that have it have done it, with the seconds that a step of its block
    took. ``note`` says what the terminal shows of a row.
    """
    parts = job.open()
    names = parts.names()
    steps = {part: parts.steps(part) for part in names}
    now = progress or Progress(dict.fromkeys(names), {part: [] for part in names})
    recorded, total = 0, sum(steps.values())
    seconds = 0.0
    while True:
        left = [part for part in names if len(now.rows[part]) < steps[part]]
        complete = min((len(now.rows[part]) for part in left), default=max(steps.values()))
        for number in range(recorded + 1, complete + 1):
            record.row(number, now.row(number) | {"seconds": seconds})
        recorded = complete
        if not left:
            return now
        began, before = time.monotonic(), now.done
        shards = [left[i :: executor.workers] for i in range(min(executor.workers, len(left)))]
        blocks = [
            Block(own, [len(now.rows[p]) for p in own], [now.states[p] for p in own], BLOCK) for own in shards
        ]
        found = executor.map(advance, job, blocks, f"{step_name} {complete + 1}")
        for own, results in zip(shards, found, strict=True):
            for part, result in zip(own, results, strict=True):
                now.states[part] = result.state
                now.rows[part] += result.rows
        save_progress(checkpoint, now)
        seconds = (time.monotonic() - began) / (now.done - before)
        bar.step(step_name, now.done, total, note(now.rows[left[0]][-1]))
        for listener in listeners:
            listener(now.done, total)
