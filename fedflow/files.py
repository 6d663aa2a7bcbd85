"""Where the files of a project are, and how stages read and write them."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from fedflow.errors import FedflowError

T = TypeVar("T")


def prepared_folder(root: Path, dataset: str) -> Path:
    """The folder of a prepared data set."""
    return root / "data" / "prepared" / dataset


def partition_folder(root: Path, partition: str) -> Path:
    """The folder of a partition."""
    return root / "data" / "partitions" / partition


def make_writable(folder: Path) -> None:
    """Make the folder unless it exists; raises `FedflowError` if it is not writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise FedflowError(f"cannot write to {folder}: {error.strerror}") from error


def intact(load: Callable[[], T]) -> T | None:
    """What ``load`` returns; None if its files are missing or damaged, so that they are rebuilt."""
    try:
        return load()
    except FedflowError:
        return None


def read_fact(path: Path, name: str) -> Any:
    """One value of a JSON file; None if there is no such file or value."""
    try:
        return json.loads(path.read_text())[name]
    except (OSError, ValueError, KeyError, TypeError):
        return None
