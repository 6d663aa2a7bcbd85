"""Which runs of a project are running on this machine, and how to stop them."""

import json
import signal
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import psutil

STARTED = 1.0  # seconds by which a process may seem to start after its own note


@dataclass(frozen=True)
class Running:
    """A run that a process of this machine computes; ``name`` is PARTITION/METHOD/SEED or PROCEDURE/SEED."""

    name: str
    pid: int
    since: float  # seconds since 1970

    @property
    def started(self) -> str:
        return f"{datetime.fromtimestamp(self.since):%Y-%m-%d %H:%M}"

    def interrupt(self) -> None:
        """What Ctrl-C does: the run can be resumed from its last checkpoint."""
        with suppress(psutil.NoSuchProcess):
            psutil.Process(self.pid).send_signal(signal.SIGINT)

    def terminate(self) -> None:
        """End a process that ignores interrupts, as those started in the background of a script do."""
        with suppress(psutil.NoSuchProcess):
            psutil.Process(self.pid).terminate()


def running(root: Path) -> list[Running]:
    """The runs of a project that are running, by name; notes of killed processes are left out."""
    found = []
    for note in sorted((root / ".fedflow" / "locks").glob("*.json")):
        with suppress(OSError, ValueError, KeyError, TypeError, psutil.Error):
            facts = json.loads(note.read_text())
            one = Running(str(facts["name"]), int(facts["pid"]), float(facts["since"]))
            if psutil.Process(one.pid).create_time() <= one.since + STARTED:
                found.append(one)
    return sorted(found, key=lambda one: one.name)
