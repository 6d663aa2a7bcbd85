"""Readers of files of finished runs; a damaged file is refused in one line that names it."""

import io
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow.parquet import ParquetFile

from fedflow.errors import FedflowError

AGAIN = "run this experiment again after deleting the file"
LARGEST = sys.float_info.max  # whole numbers in JSON may be larger, and 1e999 is infinite
PLAIN = (np.dtype(int), np.dtype(float))  # columns that are compared as they are
ROUNDING = 1e-6  # by which a computed value may be outside of its range

Range = tuple[float, float]
Joined = tuple[list[Path], pd.DataFrame, list[int]]  # tables with the same columns as one, and their rows
Kinds = tuple[type, ...]
Columns = Sequence[str] | Callable[[pd.DataFrame], Sequence[str]]


def reject(path: Path, reason: str) -> NoReturn:
    """Raise `FedflowError` because a file of a run is missing, damaged or invalid."""
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
    path: Path, read: Callable[[Path], pd.DataFrame], columns: Columns = (), words: Sequence[str] = ()
) -> pd.DataFrame:
    """A table with numeric ``columns``, which may depend on it, and ``words`` as columns of text."""
    if not path.is_file():
        reject(path, "No such file")
    try:
        table = read(path)
    except Exception as error:  # pandas and pyarrow raise a dozen types for a damaged file
        reject(path, f"truncated or damaged ({error})")
    check_present(path, table, columns, words)
    return table


def check_present(path: Path, table: pd.DataFrame, columns: Columns, words: Sequence[str] = ()) -> None:
    """Reject a table without numeric ``columns``, which may depend on it, or without the ``words``."""
    columns = columns(table) if callable(columns) else columns
    if missing := [name for name in (*columns, *words) if name not in table]:
        reject(path, f"no column {', '.join(missing)}")
    check_columns(path, table, dict.fromkeys(columns, (-math.inf, math.inf)))


def read_parquet(path: Path) -> pd.DataFrame:
    """A Parquet file, read without threads: starting them takes longer than reading a small file."""
    return pd.read_parquet(path, use_threads=False)


def read_csv(path: Path) -> pd.DataFrame:
    """A CSV file that fedflow wrote."""
    return pd.read_csv(io.StringIO(_whole(path)))


def _whole(path: Path) -> str:
    """The text of a CSV file. All lines that fedflow writes have an end, so a last one without is cut off."""
    lines = path.read_text()
    if not lines.endswith("\n"):
        raise ValueError("its last line has no end")
    return lines


def csv_together(paths: Iterable[Path]) -> Iterator[Joined]:
    """Tables of numbers, by their header."""
    alike: dict[str, dict[Path, str]] = {}
    for path in paths:
        header, _, rows = _whole(path).partition("\n")
        alike.setdefault(header, {})[path] = rows
    for header, texts in alike.items():
        table = pd.read_csv(io.StringIO("".join([f"{header}\n", *texts.values()])))
        yield [*texts], table, [rows.count("\n") for rows in texts.values()]


def parquet_together(paths: Iterable[Path]) -> Iterator[Joined]:
    """Parquet files, by their schema."""
    alike: dict[bytes, dict[Path, pa.Table]] = {}
    for path in paths:
        with ParquetFile(path) as file:
            table = file.read(use_threads=False)
        alike.setdefault(table.schema.serialize().to_pybytes(), {})[path] = table
    for tables in alike.values():
        table = pa.concat_tables(tables.values()).to_pandas(use_threads=False)
        yield [*tables], table, [*map(len, tables.values())]


def check_entries(
    path: Path,
    facts: Mapping[str, Any],
    entries: Mapping[str, Kinds],
    ranges: Mapping[str, Range] | None = None,
    within: str = "",
) -> None:
    """Reject ``facts`` if one of ``entries`` is missing, of another type, or outside of its range.

    An entry without types accepts any.
    """
    for name, kinds in entries.items():
        if name not in facts:
            reject(path, f"no {within}{name}")
        value = facts[name]
        if kinds and type(value) not in kinds:
            words = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)
            reject(path, f"{within}{name} is {value!r:.40}, not {words}")
        if type(value) in (int, float):
            check_number(path, f"{within}{name}", value, *(ranges or {}).get(name, (-math.inf, math.inf)))


def check_number(path: Path, name: str, value: Any, least: float = -math.inf, most: float = math.inf) -> None:
    """Reject the value of a field unless it is a finite number from ``least`` to ``most``."""
    low, high = max(least - ROUNDING, -LARGEST), min(most + ROUNDING, LARGEST)
    if type(value) not in (int, float) or not low <= value <= high:
        reject(path, f"{name} is {value!r:.40}, not {_range(least, most)}")


def check_columns(path: Path, table: pd.DataFrame, ranges: Mapping[str, Range]) -> None:
    """Reject a column of ``table`` that is not numeric, or has a value outside of its range.

    Columns that the table lacks and empty cells are accepted.
    """
    for name in (name for name in ranges if name in table):
        values = table[name]
        if values.dtype not in PLAIN:
            kind, values = values.dtype, values.dropna()
            if len(values) and (not pd.api.types.is_numeric_dtype(kind) or pd.api.types.is_bool_dtype(kind)):
                reject(path, f"column {name} is not numeric")
        least, most = ranges[name]
        most = most if math.isinf(least) else min(most, LARGEST)  # only values without bounds may diverge
        numbers = values.to_numpy(float)
        outside = (numbers < least - ROUNDING) | (numbers > most + ROUNDING)
        if outside.any():
            reject(path, f"column {name} has {values[outside].iloc[0]}, not {_range(least, most)}")


def _range(least: float, most: float) -> str:
    if least <= -LARGEST:
        return "a finite number"
    return f"a number >= {least:g}" if most >= LARGEST else f"a number from {least:g} to {most:g}"
