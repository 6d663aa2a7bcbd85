"""Prepares the samples of a named source."""

from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from fedflow.config import Params
from fedflow.data import Dataset, is_current, load_prepared, need_classes, prepare, within
from fedflow.data.params import DatasetParams
from fedflow.data.prepared import changed_code
from fedflow.files import intact, make_writable, prepared_folder
from fedflow.project.terminal import say
from fedflow.project.waiting import held


def prepare_dataset(
    params: Params, name: str, root: Path = Path(), tell: Callable[[str], object] = say
) -> Path:
    """Make ``data/prepared/<name>`` unless it exists, intact, from the same files and parameters.

    ``tell`` receives the notes of a dataset that is made. Returns the folder.
    """
    folder, wanted = prepared_folder(root, name), params.dataset(name)
    with within(f"data.{name}"):
        dataset, made = current_or_prepared(wanted, folder, root / ".fedflow" / f"prepare-{name}.lock")
    for note in dataset.notes if made else ():
        tell(f"{name}: {note}")
    need_classes(dataset, f"data.{name}")
    return folder


def current_or_prepared(wanted: DatasetParams, folder: Path, lock: Path) -> tuple[Dataset, bool]:
    """The samples in ``folder``, and whether they had to be prepared, by one process at a time."""

    def current() -> Dataset | None:
        return intact(lambda: load_prepared(folder, verify=True)) if is_current(folder, wanted) else None

    if (dataset := current()) is not None:
        return dataset, False
    make_writable(lock.parent)
    with held(FileLock(lock), f"another process that prepares {folder}"):
        if (dataset := current()) is not None:
            return dataset, False
        if changed := changed_code(folder, wanted):
            say(f"{folder}: prepared again, changed: {', '.join(changed)}")
        return prepare(wanted, folder), True
