"""Active runs of a project on this machine."""

import json
import os
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import psutil

HOST = socket.gethostname()
STARTED = 1.0  # seconds; clocks may date the start of a process after its note


@dataclass(frozen=True)
class Running:
    """A run that a process of this machine computes."""

    name: str  # PARTITION/METHOD/SEED or PROCEDURE/SEED; a digest follows the seed if settings are changed
    pid: int
    since: float  # seconds since 1970

    @property
    def started(self) -> str:
        return f"{datetime.fromtimestamp(self.since):%Y-%m-%d %H:%M}"

    def interrupt(self) -> None:
        """Interrupt it like Ctrl-C; it can be resumed from its last checkpoint."""
        with suppress(psutil.NoSuchProcess):
            psutil.Process(self.pid).send_signal(signal.SIGINT)

    def terminate(self) -> None:
        """End a process that ignores interrupts, such as a background process of a script."""
        with suppress(psutil.NoSuchProcess):
            psutil.Process(self.pid).terminate()


def _holds(process: psutil.Process, note: Path, since: float) -> bool:
    """True if the process has the lock of this note open: a copied project has copies of both files."""
    lock = note.with_name(note.name.removesuffix(".json")).resolve()
    try:
        return any(Path(file.path) == lock for file in process.open_files())
    except psutil.AccessDenied:  # of another user
        return process.create_time() <= since + STARTED


def running(root: Path) -> list[Running]:
    """The active runs of a project, by name; notes of killed processes are left out."""
    runs = []
    for note in sorted((root / ".fedflow" / "locks").glob("*.json")):
        with suppress(OSError, ValueError, KeyError, TypeError, psutil.Error):
            facts = json.loads(note.read_text())
            run = Running(str(facts["name"]), int(facts["pid"]), float(facts["since"]))
            if facts.get("host", HOST) != HOST:  # another machine or container, with its own processes
                continue
            process = psutil.Process(run.pid)
            ended = process.status() == psutil.STATUS_ZOMBIE  # ended, but not reaped by its parent
            if not ended and _holds(process, note, run.since):
                runs.append(run)
    return sorted(runs, key=lambda run: run.name)


def runs_elsewhere(root: Path, name: str) -> bool:
    """True if another process computes the run of this name."""
    return any(run.name == name and run.pid != os.getpid() for run in running(root))
