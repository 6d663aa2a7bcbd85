"""Columns of a table that may be features unless the user names them: measured numbers only.

Names and numbers of rows tell the order of the rows, which is often the order of the classes.
"""

import re
from collections.abc import Iterable, Sized
from numbers import Number
from typing import TYPE_CHECKING, Any

import numpy as np

from fedflow.settings import Words

if TYPE_CHECKING:
    import pandas as pd

UNNAMED = re.compile(r"\s*|Unnamed: .*|__index_level_\d+__")  # the index that pandas writes
ID = re.compile(r"(?i:id|idx|index|row|rowid|row[_ ]?(?:number|names?)|.*[_ ]id)|.*[a-z]I[dD]")
MISSING = {"", "?", "-", "--", ".", "*", "na", "n/a", "nan", "null"}
WAYS = (  # the setting that helps, by the reason why a column is no feature
    (rf"(?i)\('({'|'.join(map(re.escape, sorted(MISSING)))})' in row|\(empty in row", "data.missing"),
    (r"\('[-+]?\d{1,3}([,' ]\d{3})+(\.\d*)?' in row", "data.thousands"),
    (r"\('[-+]?[\d.]+,\d+' in row", "data.decimal: comma"),
    (r"\('\d{4}-\d\d-\d\d", "data.dates"),
    (r"\('.*' in row", "data.encode"),
    (r"\((dict|list|ndarray|bytes) in row", "data.source: huggingface"),
)
SHOWN = 10  # columns in one line
WIDE = 24  # characters of a value
FEW = 20  # different texts that a column of categories may have in any case


def unnamed(names: Iterable[str]) -> list[str]:
    """The columns that have no name, as pandas writes the index of a table."""
    return [name for name in names if UNNAMED.fullmatch(name)]


def unfit(table: "pd.DataFrame", text: bool = False) -> list[str]:
    """The columns that cannot be features as they are, each with its reason; with ``text``, text can."""
    why = {str(name): _why(str(name), column, text) for name, column in table.items()}
    return [f"{name!r} ({reason})" for name, reason in why.items() if reason]


def advice(reasons: list[str]) -> str:
    """The settings of a table that use the columns which `unfit` returned, or leave them out."""
    settings = [next((way for pattern, way in WAYS if re.search(pattern, column)), "") for column in reasons]
    ways = ", ".join(dict.fromkeys(filter(None, settings)))
    return f"list them in data.ignore,{ways and f' set {ways},'} or name the features in data.features"


def _why(name: str, column: "pd.Series", text: bool) -> str:
    """Why a column is no feature; empty if it is one."""
    odd = column.dtype.kind not in "biuf"
    if odd and not (text and is_text(column)):
        return odd_value(column)
    if ID.fullmatch(name) and column.dtype.kind != "b":
        return "an id, by its name"
    if odd:
        different = column.nunique()
        return (
            f"{different} different texts in {len(column)} rows"
            if different > max(FEW, len(column) / 2)
            else ""
        )
    numbers = np.sort(column.to_numpy(np.float64, na_value=np.nan))
    if (
        len(numbers) > 2
        and np.isfinite(numbers).all()
        and numbers[0] % 1 == 0
        and (np.diff(numbers) == 1).all()
    ):
        return f"numbers the rows from {numbers[0]:.0f} to {numbers[-1]:.0f}"
    return ""


def is_text(column: "pd.Series") -> bool:
    """Return whether a column holds categories: text, perhaps next to other values, or pandas' own type."""
    if column.dtype.name == "category":
        return True
    return column.dtype.kind not in "biufmM" and any(isinstance(value, str) for value in column)


def odd_value(column: "pd.Series") -> str:
    """The first value that is not a number, in words: "'?' in row 18"; the first value if all are numbers."""
    return _at(column, _odd(column)[0])


def missing_mark(column: "pd.Series") -> str:
    """The first mark of a missing value, in words; empty unless all other values are numbers."""
    if column.dtype.kind in "biuf":
        return ""
    odd = _odd(column)
    values = {str(value).strip().lower() for value in column.iloc[odd]}
    return _at(column, odd[0]) if len(odd) < len(column) and values <= MISSING else ""


def _odd(column: "pd.Series") -> np.ndarray:
    """The positions of values that are not numbers, [0] if all are."""
    import pandas as pd

    if column.dtype.kind in "mM":
        return np.arange(len(column))
    scalar = column.map(lambda value: value if isinstance(value, str | Number) else "object")
    rows = np.flatnonzero(pd.to_numeric(scalar, errors="coerce").isna())
    return rows if len(rows) else np.zeros(1, np.int64)


def _at(column: "pd.Series", row: int) -> str:
    value = column.iloc[row]
    missing = value is None or value != value  # a missing value differs from itself
    plain = isinstance(value, str | Number) or column.dtype.kind in "mM"
    shown: Any = Words("empty") if missing is True else str(value) if plain else Words(type(value).__name__)
    text = repr(shown)
    return f"{text if len(text) <= WIDE else text[: WIDE - 3] + '...'} in row {row + 1}"


def counted(items: Sized, noun: str) -> str:
    """The number of items with its noun."""
    plural = "es" if noun.endswith("s") else "s"
    return f"{len(items)} {noun}{'' if len(items) == 1 else plural}"


def listed(items: Iterable[str]) -> str:
    """All items up to a few, then their number."""
    names = [name if name.strip() else repr(name) for name in items]
    more = f", ... ({len(names) - SHOWN} more)" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
