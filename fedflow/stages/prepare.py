"""Prepares the samples of a named source."""

from collections.abc import Callable
from pathlib import Path

from fedflow.config import Params
from fedflow.data import is_current, load_prepared, need_classes, prepare, within
from fedflow.files import intact, prepared_folder
from fedflow.project.terminal import say


def prepare_dataset(
    params: Params, name: str, root: Path = Path(), tell: Callable[[str], object] = say
) -> Path:
    """Make ``data/prepared/<name>`` unless it exists, intact, from the same files and parameters.

    ``tell`` receives the notes of a dataset that is made. Returns the folder.
    """
    folder, wanted = prepared_folder(root, name), params.dataset(name)
    dataset = intact(lambda: load_prepared(folder, verify=True)) if is_current(folder, wanted) else None
    if dataset is None:
        with within(f"data.{name}"):
            dataset = prepare(wanted, folder)
        for note in dataset.notes:
            tell(f"{name}: {note}")
    need_classes(dataset, f"data.{name}")
    return folder
