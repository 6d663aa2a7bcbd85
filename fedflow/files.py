"""Folders and files of a project: paths, complete replacement, locks."""

import json
import os
import re
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from fedflow.errors import BadInput, FedflowError

T = TypeVar("T")
Write = Callable[[Path], object]

COUNTS = "label_counts.csv"  # in a partition's folder: a row per client, a column per label
PARTIAL = ".partial"  # folder of incomplete files
CHANGED = "runs"  # folder of results outside of the grid
SEED = re.compile(r"\d+(-[0-9a-f]{8})?")  # name of a folder of results, with a digest of changed settings


def cache() -> Path:
    """The folder that all projects of a user share: `FEDFLOW_CACHE`, or ``~/.cache/fedflow``."""
    return Path(os.environ.get("FEDFLOW_CACHE") or Path.home() / ".cache" / "fedflow")


def prepared_folder(root: Path, dataset: str) -> Path:
    return root / "data" / "prepared" / dataset


def partition_folder(root: Path, partition: str) -> Path:
    return root / "data" / "partitions" / within_partitions(partition)


def within_partitions(partition: str) -> str:
    """The path of a partition below the folder of all; NAME@SEED is in the folder of NAME."""
    return partition.replace("@", "/")


def central_folder(root: Path, name: str) -> Path:
    return root / "data" / "central" / name


def finished_folders(home: Path, names: int) -> list[Path]:
    """The folders with files in ``home`` (``results`` or ``outcomes``), below ``names`` names.

    The folders in `CHANGED` next to ``home`` follow.
    """
    level = "*/" * names + "*"
    changed = (folder for folder in (home.parent / CHANGED).glob(level) if SEED.fullmatch(folder.name))
    folders = [*sorted(home.glob(level)), *sorted(changed)]
    return [folder for folder in folders if folder.is_dir() and any(folder.iterdir())]


def make_writable(folder: Path) -> None:
    """Make the folder unless it exists; raises `FedflowError` if it is not writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise FedflowError(f"cannot write to {folder}: {error.strerror}") from error


def check_output(field: str, path: Path, *endings: str) -> None:
    """Raise `BadInput` for a folder, and for a path without one of these ``endings``, if there are any."""
    if endings and path.suffix.lower() not in endings:
        raise BadInput(field, str(path), f"the name of a file that ends in {' or '.join(endings)}")
    if path.is_dir():
        raise BadInput(field, str(path), "the name of a file; this is a folder")


def intact(load: Callable[[], T]) -> T | None:
    """The result of ``load``, or None if its files are missing or damaged."""
    try:
        return load()
    except FedflowError:
        return None


def read_fact(path: Path, name: str) -> Any:
    """A value of a JSON file, or None without this file or value."""
    try:
        return json.loads(path.read_text())[name]
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an `OSError` in this context name the file, as errors of a full disk do not."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file; NaN is refused."""
    with naming(path):
        path.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n")


def replace_text(file: Path, text: str) -> None:
    """Write a file that keeps its old text until the new one is complete.

    It is replaced, not overwritten: hard links to it, such as DVC's cache, keep the old text.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    made = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        with naming(file):
            made.write_text(text, encoding="utf-8")
            made.replace(file)
    finally:
        made.unlink(missing_ok=True)


def replace_files(folder: Path, files: Mapping[str, Write | None], marker: str) -> None:
    """Replace a set of files by a complete new one; None deletes a file.

    The ``marker``, one of the files, is removed before any other file changes and written last. Files are
    replaced, not overwritten: hard links to earlier files, such as DVC's cache, keep their content.
    Raises `FedflowError` if the folder cannot be written; a full disk leaves the earlier set unchanged.
    """
    made, current = folder / PARTIAL, ""
    shutil.rmtree(made, ignore_errors=True)  # of a killed process
    try:
        made.mkdir(parents=True)
        written = {name: write for name, write in files.items() if write is not None}
        for name, write in written.items():
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            current = f"{name}: "
            write(made / name)
            current = ""
            _sync(made / name)
        (folder / marker).unlink(missing_ok=True)
        _sync(folder)
        for name in files:
            if name not in written:
                (folder / name).unlink(missing_ok=True)
            elif name != marker:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (made / name).replace(folder / name)
        _sync(folder)
        (made / marker).replace(folder / marker)
    except OSError as error:
        raise FedflowError(f"cannot write results to {folder}: {current}{error.strerror or error}") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _note(name: str) -> dict[str, Any]:
    return {"name": name, "pid": os.getpid(), "since": time.time(), "host": socket.gethostname()}


@contextmanager
def locked(path: Path, busy: Callable[[], None], name: str = "") -> Iterator[None]:
    """Hold the lock at ``path``. If another process holds it, ``busy`` may raise an error, or else wait.

    With a ``name``, a note next to the lock names the run and its process (`fedflow.project.running`).
    """
    make_writable(path.parent)
    lock = FileLock(path)
    with suppress(Timeout):
        lock.acquire(timeout=0)
    if not lock.is_locked:
        busy()
        lock.acquire()
    note = path.with_name(f"{path.name}.json")
    try:
        if name:
            with naming(note):
                note.write_text(json.dumps(_note(name)))
        yield
    finally:
        note.unlink(missing_ok=True)
        lock.release()
