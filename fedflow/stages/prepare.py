"""From a named source to prepared samples."""

from pathlib import Path

from fedflow.config import Params
from fedflow.data import is_current, load_prepared, prepare, within
from fedflow.files import intact, prepared_folder


def prepare_dataset(params: Params, name: str, root: Path = Path()) -> Path:
    """Make ``data/prepared/<name>`` unless it exists, intact, from the same files and parameters.

    Returns the folder.
    """
    folder, wanted = prepared_folder(root, name), params.dataset(name)
    if not is_current(folder, wanted) or intact(lambda: load_prepared(folder, verify=True)) is None:
        with within(f"data.{name}"):
            prepare(wanted, folder)
    return folder
