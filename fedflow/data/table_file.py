"""A CSV or Parquet file as a data frame whose columns have the types that their values show."""

import codecs
import re
from collections.abc import Sequence
from numbers import Number
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedflow.data.features import is_text, listed, missing_mark
from fedflow.data.files import reading, regular
from fedflow.errors import BadInput, FedflowError
from fedflow.settings import Settings, option

if TYPE_CHECKING:
    import pandas as pd

SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "space": r"\s+", "bar": "|"}
NUMBERED = "numbers"
WHOLE = r"[-+]?\d+"


class FileOptions(Settings):
    """Settings of a text file."""

    section = "data"
    names: list[str] | str | None = option(
        None,
        "names of the columns, of a file without a first line of names: a list, or numbers for 0, 1, ...; "
        "null = the first line",
    )
    separator: str = option("comma", "what separates the columns of a text file", choices=SEPARATORS)
    decimal: str = option("point", "the decimal mark of numbers in a text file", choices=("point", "comma"))
    thousands: str | None = option(None, "mark between thousands in numbers, such as a comma")
    marks: list[str] = option(
        factory=list, doc="text or number that stands for a missing value in any column, such as ?"
    )
    strip: str = option("", "characters removed, like spaces, from both ends of text")
    comment: str | None = option(None, "character that starts a comment, which ends with the line")
    encoding: str = option("utf-8", "encoding of a text file, such as latin-1")

    def validate(self) -> None:
        if isinstance(self.names, str) and self.names != NUMBERED:
            raise BadInput("data.names", self.names, f"a list of names, or {NUMBERED}")
        if isinstance(self.names, list) and len(set(self.names)) < len(self.names):
            raise BadInput("data.names", self.names, "different names")
        for field in ("thousands", "comment"):
            if (mark := getattr(self, field)) is not None and len(mark) != 1:
                raise BadInput(f"data.{field}", mark, "one character")
        if self.thousands == self.point:
            raise BadInput("data.thousands", self.thousands, "a character other than the decimal mark")
        try:
            codecs.lookup(self.encoding)
        except LookupError:
            raise BadInput("data.encoding", self.encoding, "an encoding such as utf-8 or latin-1") from None

    @property
    def point(self) -> str:
        """The decimal mark."""
        return "," if self.decimal == "comma" else "."

    @property
    def rewrites(self) -> bool:
        """True if numbers are not written as in Python."""
        return self.thousands is not None or self.point != "."


def read_frame(path: Path, options: FileOptions, text: Sequence[str] = ()) -> "pd.DataFrame":
    """The rows of the file; text without spaces at its ends, and None for missing text.

    Columns in ``text`` are text even if all their values are numbers, so that 007 is not 7.
    Raises `FedflowError` for a file that cannot be read, that has no rows, or two columns of one name.
    """
    with reading(regular(path, folders=False)):
        try:
            table = (
                _read_parquet(path) if path.suffix.lower() == ".parquet" else _read_csv(path, options, text)
            )
        except UnicodeDecodeError:
            remedy = "set data.encoding, for example to latin-1"
            raise ValueError(f"is not in {options.encoding}; {remedy}") from None
        table.columns = [name.strip() or name for name in names_of(table)]
        if twice := table.columns[table.columns.duplicated()].tolist():
            raise ValueError(f"has two columns {twice[0]!r}")
        if not len(table):
            raise ValueError("has no rows")
    marks = [mark.replace(options.thousands or "", "").replace(options.point, ".") for mark in options.marks]
    marked = [number for mark in marks if (number := _number(mark)) is not None]
    for name in text:
        words = table[name].map(lambda v: v.decode() if isinstance(v, bytes) else str(v), na_action="ignore")
        table[name] = words.map(lambda word: None if _number(word) in marked else word, na_action="ignore")
    for name in [name for name in names_of(table) if is_text(table[name])]:
        plain = _stripped(table[name], options)
        numbers = (options.rewrites or options.marks) and name not in text
        table[name] = as_numbers(plain, options) if numbers else plain
    for name in names_of(table.select_dtypes("number")) if marked else ():
        column = table[name]
        kind = np.float32 if "32" in column.dtype.name else np.float64
        if (missing := column.isin([float(kind(number)) for number in marked])).any():
            table[name] = column.convert_dtypes().mask(missing)  # whole numbers stay whole
    return table


def names_of(table: "pd.DataFrame") -> list[str]:
    """The names of the columns."""
    return list(map(str, table))


def as_numbers(column: "pd.Series", options: FileOptions, lenient: bool = False) -> "pd.Series":
    """A column of text as numbers if all its values are numbers, else as it is.

    ``lenient``: or else marks of missing values, such as ? or NA.
    """
    import pandas as pd

    if column.dtype.name.startswith(("category", "dictionary")):  # of pandas, of Arrow
        return column
    plain = column
    if options.rewrites:
        mark, point = re.escape(options.thousands or ""), re.escape(options.point)
        whole = rf"\d{{1,3}}({mark}\d{{3}})+|\d+" if mark else r"\d+"
        number = re.compile(rf"[-+]?(({whole})({point}\d*)?|{point}\d+)([eE][-+]?\d+)?")

        def written(value: Any) -> Any:
            if not isinstance(value, str):
                return value
            if number.fullmatch(value):
                return value.replace(options.thousands or "", "").replace(options.point, ".")
            return value if _number(value) is None else f"not {value}"  # 1.5 with a decimal comma

        plain = column.map(written)
    numbers = pd.to_numeric(plain.map(lambda v: v if isinstance(v, str | Number) else None), errors="coerce")
    complete = bool((numbers.notna() == column.notna()).all())
    return numbers if complete or (lenient and missing_mark(plain)) else column


def _stripped(column: "pd.Series", options: FileOptions) -> "pd.Series":
    characters, marks = options.strip + " \t\r\n", {"", *options.marks}

    def plain(value: Any) -> Any:
        text = value.strip(characters) if isinstance(value, str) else value
        return None if isinstance(text, str) and text in marks else text

    return column.map(plain)


def _read_parquet(path: Path) -> "pd.DataFrame":
    """The table; named levels of its index are columns."""
    import pandas as pd

    table = pd.read_parquet(path)
    return table.reset_index([name for name in table.index.names if name is not None])


def _read_csv(path: Path, options: FileOptions, as_text: Sequence[str]) -> "pd.DataFrame":
    """The table with its text unchanged."""
    import pandas as pd

    text: dict[str, Any] = {
        "sep": SEPARATORS[options.separator],
        "comment": options.comment,
        "encoding": options.encoding,
    }
    form = dict(text)
    first = pd.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False, **text)
    names = first.iloc[0].tolist()
    _need_header(names, options)
    if options.names is None:
        if twice := [name for name in names if name and names.count(name) > 1]:  # pandas would number them
            raise ValueError(f"has two columns {twice[0]!r}")
    else:
        form |= {"header": None, "names": _names(len(names), options, path)}
    # Fails where rows are longer than the first line, whose first cells pandas would take for an index.
    pd.read_csv(path, header=None, nrows=2, dtype=str, **text)
    if options.rewrites:
        return pd.read_csv(path, dtype=str, keep_default_na=False, na_values=[""], **form)
    form["dtype"] = {name: str for name in form.get("names", names) if name.strip() in as_text}
    # With `low_memory`, the type of a column would depend on the block of rows.
    table = pd.read_csv(path, low_memory=False, **form)
    written = pd.read_csv(path, keep_default_na=False, na_values=[""], low_memory=False, **form)
    for name in table.select_dtypes(exclude="number"):
        table[name] = written[name]
    gaps = [name for name, column in table.select_dtypes("float").items() if 0 < column.count() < len(table)]
    whole = [name for name in gaps if name in written and (table[name].dropna() % 1 == 0).all()]
    if whole:  # whole numbers next to empty cells may be long ids
        texts = pd.read_csv(path, usecols=whole, **form | {"dtype": str})
        for name in whole:
            if texts[name].dropna().str.fullmatch(WHOLE).all():
                numbers = [None if text != text else int(text) for text in texts[name]]
                if max(abs(number or 0) for number in numbers) < 2**63:
                    table[name] = pd.array(numbers, dtype="Int64")
    return table


def _need_header(names: list[str], options: FileOptions) -> None:
    """Refuse a first line that is not separated as the options say, or holds no names where it must."""
    if len(names) == 1 and (mark := next((m for m in ";\t,| " if m in names[0].strip()), "")):
        word = {",": "comma", ";": "semicolon", "\t": "tab", " ": "space", "|": "bar"}[mark]
        raise ValueError(f"columns are separated by {mark!r}; set data.separator: {word}")
    if options.names is None and len(names) > 1 and _is_data(names):
        raise ValueError(
            f"needs the names of the columns in its first line, which holds {listed(names)}; set data.names"
        )


def _names(count: int, options: FileOptions, path: Path) -> list[str]:
    """The names of the columns of a file without a first line of names."""
    names = list(map(str, range(count))) if isinstance(options.names, str) else options.names or []
    if len(names) != count:
        raise FedflowError(f"{path}: has {count} columns, but data.names has {len(names)}")
    return names


def _is_data(names: list[str]) -> bool:
    """Return whether the first line of a CSV file holds data: numbers, unless they count the columns."""
    values = [_number(name) for name in names]
    numbers = [number for number in values if number is not None]
    if any(number % 1 for number in numbers):
        return True
    steps = np.diff(numbers)
    return not (steps == 1).all() if len(numbers) == len(names) else not (steps > 0).all()


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if np.isfinite(number) else None
