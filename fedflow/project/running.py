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

from fedflow.files import CHANGED

HOST = socket.gethostname()
LOCKS = Path(".fedflow") / "locks"
POLL, AWAY = 2.0, 60.0  # seconds until a run of another process, or on another machine, is tried again
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

    def interrupt(self) -> bool:
        """Interrupt it like Ctrl-C; it can be resumed from its last checkpoint. False for another user's."""
        try:
            psutil.Process(self.pid).send_signal(signal.SIGINT)
        except psutil.AccessDenied:
            return False
        except psutil.NoSuchProcess:
            pass
        return True

    def terminate(self) -> None:
        """Interrupt a process that ignores Ctrl-C, such as a background process of a script."""
        with suppress(psutil.NoSuchProcess):
            psutil.Process(self.pid).terminate()


def _holds(note: Path, run: Running) -> bool:
    """True if its process has the lock of this note open: a copied project has copies of both files."""
    lock = note.with_name(note.name.removesuffix(".json")).resolve()
    try:
        process = psutil.Process(run.pid)
        if process.status() == psutil.STATUS_ZOMBIE:  # ended, but not reaped by its parent
            return False
        try:
            return any(Path(file.path) == lock for file in process.open_files())
        except psutil.AccessDenied:  # of another user
            return process.create_time() <= run.since + STARTED
    except psutil.Error:
        return False


def running(root: Path) -> list[Running]:
    """The active runs of a project, by name; notes of killed processes are left out."""
    return [run for run, active in _noted(root) if active]


def killed(root: Path) -> list[Running]:
    """The runs whose process was killed, and that neither run nor have finished since, by name."""
    noted = _noted(root)
    active = {run.name for run, active in noted if active}
    dead = {run.name: run for run, _ in sorted(noted, key=lambda noted: noted[0].since)}  # the last of a name
    return [
        run for name, run in sorted(dead.items()) if name not in active and not _finished_since(root, run)
    ]


def _finished_since(root: Path, run: Running) -> bool:
    """True if the run's folder has newer results, which may be of other settings."""
    files = (root / home / run.name / "metrics.json" for home in ("results", "outcomes", CHANGED))
    return any(file.exists() and file.stat().st_mtime >= run.since for file in files)


def _noted(root: Path) -> list[tuple[Running, bool]]:
    """The runs with a note, by name; False for those whose process was killed."""
    runs = []
    for note in sorted((root / LOCKS).glob("*.json")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            facts = json.loads(note.read_text())
            run = Running(str(facts["name"]), int(facts["pid"]), float(facts["since"]))
            if facts.get("host", HOST) != HOST:  # of another machine or container
                continue
            if (active := _holds(note, run)) or note.exists():  # else it has just ended
                runs.append((run, active))
    return sorted(runs, key=lambda noted: noted[0].name)


def runs_elsewhere(root: Path, name: str) -> bool:
    """True if another process computes the run of this name."""
    return any(run.name == name and run.pid != os.getpid() for run in running(root))
