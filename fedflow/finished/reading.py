"""Files of finished runs: what cannot be read is refused in one line that names the file."""

import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pandas as pd

from fedflow.errors import FedflowError

AGAIN = "run this experiment again"
LARGEST = sys.float_info.max  # a whole number of JSON may be larger, and 1e999 is infinite
ROUNDING = 1e-6  # by which a computed value may be outside of its range


def reject(path: Path, reason: str) -> NoReturn:
    """Raise `FedflowError`: this file of a run is missing, damaged or invalid."""
    raise FedflowError(f"cannot read {path}: {' '.join(reason.split())}; {AGAIN}")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    if not path.is_file():
        reject(path, "No such file")
    try:
        value = json.loads(path.read_text(), parse_constant=lambda text: reject(path, f"contains {text}"))
    except OSError as error:
        reject(path, error.strerror or str(error))
    except (ValueError, RecursionError) as error:
        reject(path, f"truncated or not JSON ({error})")
    if not isinstance(value, dict):
        reject(path, "not a JSON object")
    return value


def read_table(
    path: Path, read: Callable[[Path], pd.DataFrame], columns: Iterable[str], words: Iterable[str] = ()
) -> pd.DataFrame:
    """A table with numeric ``columns``, and the columns ``words`` of text."""
    if not path.is_file():
        reject(path, "No such file")
    try:
        table = read(path)
    except Exception as error:  # pandas and pyarrow raise a dozen types for a damaged file
        reject(path, f"truncated or damaged ({error})")
    missing = [name for name in (*columns, *words) if name not in table]
    if missing:
        reject(path, f"no column {', '.join(missing)}")
    for name in columns:
        kind = table[name].dtype
        numeric = pd.api.types.is_numeric_dtype(kind) and not pd.api.types.is_bool_dtype(kind)
        if not numeric and not table[name].isna().all():
            reject(path, f"column {name} is not numeric")
    return table


def check_number(path: Path, name: str, value: Any, least: float = -math.inf, most: float = math.inf) -> None:
    """Reject the value of a field that is no finite number from ``least`` to ``most``."""
    low, high = max(least - ROUNDING, -LARGEST), min(most + ROUNDING, LARGEST)
    if type(value) not in (int, float) or not low <= value <= high:
        reject(path, f"{name} is {value!r:.40}, not {_range(least, most)}")


def check_columns(path: Path, table: pd.DataFrame, ranges: Mapping[str, tuple[float, float]]) -> None:
    """Reject a numeric column of ``table`` with a value outside of its range; empty cells are accepted."""
    for name, (least, most) in ranges.items():
        values = table[name].dropna()
        most = most if math.isinf(least) else min(most, LARGEST)  # only a value without bounds may diverge
        outside = values[~values.between(least - ROUNDING, most + ROUNDING)]
        if len(outside):
            reject(path, f"column {name} has {outside.iloc[0]}, not {_range(least, most)}")


def _range(least: float, most: float) -> str:
    if least <= -LARGEST:
        return "a finite number"
    return f"a number >= {least:g}" if most >= LARGEST else f"a number from {least:g} to {most:g}"
