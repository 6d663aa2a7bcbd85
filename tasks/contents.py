"""Data, partitions, networks and files that a machine of a cluster lacks: the run sends each of them once.

A worker looks for the contents of a job where `Stored` says. If it does not find one, its answer is
`Lacking`. The run then gives the content to Dask or Ray in parts, and each machine that lacks it stores it by
hash.
"""

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock

from fedflow.data.prepared import META, file_sum, load_prepared
from fedflow.errors import FedflowError, reason
from fedflow.files import read_fact
from fedflow.local.trained import MARKER, load_network
from fedflow.partition.partition import SUMMARY, load_partition
from fedflow.simulation.executors import Share, Work
from fedflow.simulation.federation import Stored

PART = 2**24  # bytes
LOADERS: dict[str, Callable[[Path], Any]] = {  # by the file of a folder that records its hash
    META: partial(load_prepared, verify=True),
    SUMMARY: load_partition,
    MARKER: load_network,
}
Files = dict[str, list[Any]]  # parts of the files of a folder; of one file with an empty name, if it is none
_found: set[str] = set()  # hashes on this machine


class Carrier(Protocol):
    """The cluster of a ``runner`` of Prefect, which carries parts from the run to its workers."""

    def __init__(self, runner: Any) -> None: ...

    @staticmethod
    def here() -> str:
        """The worker that calls this, as `store` names it."""

    def put(self, part: bytes) -> Any:
        """A reference to the part, which is in the cluster as long as the reference."""

    def store(self, workers: list[str], stored: Stored, files: Files) -> None:
        """Call `store` on these workers, or on others if they have died."""


@dataclass(frozen=True)
class Lacking:
    """The answer of a worker whose machine lacks contents, instead of a result."""

    contents: tuple[Stored, ...]
    machine: str
    worker: str


def with_contents(here: Callable[[], str], work: Callable[[Any, Any], Any], job: Work, shard: Share) -> Any:
    """``work(job, shard)`` on a worker, or `Lacking` if it cannot find all contents."""
    lacking = tuple(stored for stored in dict.fromkeys(_contents(job)) if not _is_here(stored))
    if not lacking:
        return work(job, shard)
    return Lacking(lacking, f"{socket.gethostname()} {lacking[0].folders()[1].parent}", here())


def send(stored: Stored, answers: list[Lacking], carrier: Carrier) -> None:
    """Store the content on each machine that lacks it. Raises `FedflowError` if this one lacks it, too."""
    folder = _folder(stored)
    if folder is None:
        raise FedflowError(f"neither this machine nor a worker has content {stored.hash} of {stored.path}")
    files = [folder] if folder.is_file() else [file for file in sorted(folder.iterdir()) if file.is_file()]
    parts = {"" if file == folder else file.name: [*map(carrier.put, _parts(file))] for file in files}
    machines = {answer.machine: answer.worker for answer in answers if stored in answer.contents}
    carrier.store([*machines.values()], stored, parts)


def store(stored: Stored, files: Files, received: Callable[[Any], bytes] = bytes) -> None:
    """Write the content to the folder of its hash on this machine, complete or not at all."""
    target = stored.folders()[1]
    made = target.with_name(f"{target.name}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_name(f"{target.name}.lock")):
            if _is_here(stored):  # another process or run has stored it meanwhile
                return
            _remove(made)  # of a killed process
            try:
                for name, parts in files.items():
                    _write(made / name, map(received, parts))
                _verify(made, stored)
                made.rename(target)
            finally:
                _remove(made)
    except OSError as error:
        raise FedflowError(
            f"{socket.gethostname()} cannot store content {stored.hash} of {stored.path} in {target}: "
            f"{error.strerror or error} (FEDFLOW_CACHE sets where)"
        ) from error


def _contents(job: Any) -> Iterator[Stored]:
    """All contents that a job names, at any depth."""
    if isinstance(job, Stored):
        if job.hash:  # otherwise it was never made, which opening it reports
            yield job
    elif is_dataclass(job):
        for field in fields(job):
            yield from _contents(getattr(job, field.name))
    elif isinstance(job, dict | list | tuple):
        for part in job.values() if isinstance(job, dict) else job:
            yield from _contents(part)


def _is_here(stored: Stored) -> bool:
    if stored.hash not in _found and _folder(stored):
        _found.add(stored.hash)
    return stored.hash in _found


def _folder(stored: Stored) -> Path | None:
    """The first place that records the hash of the content. Whoever opens it verifies it."""
    return next((path for path in stored.folders() if _recorded(path) == stored.hash), None)


def _recorded(path: Path) -> str | None:
    if path.is_file():
        return file_sum(path)
    return next(filter(None, (read_fact(path / name, "hash") for name in LOADERS)), None)


def _parts(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        while part := opened.read(PART):
            yield part


def _write(file: Path, parts: Iterator[bytes]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as opened:
        opened.writelines(parts)
        opened.flush()
        os.fsync(opened.fileno())


def _verify(made: Path, stored: Stored) -> None:
    """Raise `FedflowError` unless the content is whole, and the one that was asked for."""
    load = next((load for name, load in LOADERS.items() if (made / name).is_file()), None)
    try:
        arrived = load(made).hash if load else file_sum(made)
        why = f"it is content {arrived}"
    except FedflowError as error:
        arrived, why = "", reason(error)
    if arrived != stored.hash:
        where = f"content {stored.hash} of {stored.path} arrived damaged at {socket.gethostname()}"
        raise FedflowError(f"{where} ({why}); repeat the command")


def _remove(made: Path) -> None:
    shutil.rmtree(made, ignore_errors=True)
    if made.is_file():
        made.unlink()
