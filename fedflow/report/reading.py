"""Files of finished runs: what cannot be read is refused in one line that names the file."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

import pandas as pd

from fedflow.errors import FedflowError

AGAIN = "run this experiment again"


def reject(path: Path, reason: str) -> NoReturn:
    """Raise `FedflowError`: this file of a run is missing, damaged or invalid."""
    raise FedflowError(f"cannot read {path}: {' '.join(reason.split())}; {AGAIN}")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    try:
        value = json.loads(path.read_text(), parse_constant=lambda text: reject(path, f"contains {text}"))
    except OSError as error:
        reject(path, error.strerror or str(error))
    except ValueError as error:
        reject(path, f"truncated or not JSON ({error})")
    if not isinstance(value, dict):
        reject(path, "not a JSON object")
    return value


def read_table(path: Path, read: Callable[[Path], pd.DataFrame], columns: Iterable[str]) -> pd.DataFrame:
    """A table with numeric ``columns``."""
    if not path.is_file():
        reject(path, "No such file")
    try:
        table = read(path)
    except Exception as error:  # pandas and pyarrow raise a dozen types for a damaged file
        reject(path, f"truncated or damaged ({error})")
    missing = [name for name in columns if name not in table]
    if missing:
        reject(path, f"no column {', '.join(missing)}")
    for name in columns:
        if not pd.api.types.is_numeric_dtype(table[name]) and not table[name].isna().all():
            reject(path, f"column {name} is not numeric")
    return table
