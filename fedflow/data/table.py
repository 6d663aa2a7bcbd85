"""A table in a CSV or Parquet file: numeric features, and a class or a number to predict."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedflow.data.features import counted, listed, missing_mark, odd_value, unfit, unnamed
from fedflow.data.files import DataColumn, RawData, reading, regular
from fedflow.errors import BadInput, FedflowError
from fedflow.seeding import generator
from fedflow.settings import Settings, option

if TYPE_CHECKING:
    import pandas as pd


class TableOptions(Settings):
    """What the columns of the table mean."""

    section = "data"
    target: str = option(doc="column to predict")
    task: str = option("classification", "kind of target", choices=("classification", "regression"))
    user: str | None = option(None, "column with the user of each sample; kept as `user`")
    columns: list[str] = option(factory=list, doc="further columns to keep as facts, such as attributes")
    features: list[str] | None = option(None, "numeric input columns; null = all without another use")
    ignore: list[str] = option(factory=list, doc="columns without use, such as text, ids and row numbers")
    dummies: list[str] = option(factory=list, doc="features that are not standardized, such as one-hot ones")
    split: str | None = option(None, "column with train or test; null = a random split")
    test_share: float = option(0.2, "share of the random test set, in each class", gt=0, lt=1)
    within: str = option(
        "table",
        "split at random and standardize the whole table, or the rows of each user",
        choices=("table", "user"),
        source="AAggFF on Berka: user",
    )
    seed: int = option(0, "seed of the random split", ge=0)

    def validate(self) -> None:
        if self.within == "user" and self.user is None:
            raise BadInput("data.within", self.within, "table, without a column for data.user")
        if self.ignore and self.features is not None:
            accepted = "an empty list: columns that data.features does not name are ignored"
            raise BadInput("data.ignore", self.ignore, accepted)
        seen = {"user"} if self.user not in (None, "user") else set()  # a fact of that name would hide it
        for field, name in self.uses():
            if name in seen:
                raise BadInput(f"data.{field}", name, "a column without another use")
            seen.add(name)

    def uses(self) -> list[tuple[str, str]]:
        """All named columns, each preceded by the field that names it."""
        named = [("target", self.target), ("user", self.user), ("split", self.split)]
        named += [("columns", name) for name in self.columns]
        named += [("features", name) for name in self.features or []]
        named += [("ignore", name) for name in self.ignore]
        return [(field, name) for field, name in named if name is not None]


def read_table(path: Path, options: TableOptions) -> RawData:
    """Features [n, d] float32, labels [n] numbered in the order of the classes, or real targets [n].

    Features, except ``dummies``, are standardized with the mean and standard deviation of the training rows
    (0 if a column is constant there), of the whole table or of each user. Rows keep their order. Columns of
    whole numbers are unchanged, ``user`` and text are numbered in sorted order. An empty cell is a missing
    value; "NA" or "None" is missing in a column of numbers, and text in a column of text. A column without a
    use must be a feature or ignored: text, row numbers and ids are refused unless the options name them.
    Raises `BadInput` for a column that is missing or has the wrong type, `FedflowError` for a file that
    cannot be read and for missing values.
    """
    with reading(regular(path, folders=False)):
        table = _read_parquet(path) if path.suffix == ".parquet" else _read_csv(path)
        table.columns = table.columns.map(str)
        if twice := table.columns[table.columns.duplicated()].tolist():
            raise ValueError(f"has two columns {twice[0]!r}")
        if not len(table):
            raise ValueError("has no rows")
    features = _features(table, options, path)
    used = [name for field, name in options.uses() if field != "ignore"]
    _need_whole(table[list(dict.fromkeys(used + features))], path)

    y, classes = _targets(table, options, path)
    users = None if options.user is None else _codes(table[options.user])
    groups = np.zeros(len(y), np.int64) if options.within == "table" or users is None else users[0]
    test = _test_rows(table, options, y, groups, path)
    x, scaled = table[features].to_numpy(np.float64, copy=True), ~np.isin(features, options.dummies)
    for group in np.unique(groups):
        own = groups == group
        if test[own].all():
            name = table[options.user][own].iloc[0]
            raise FedflowError(f"{path}: {str(name)!r} has no training row (data.within: user)")
        x[np.ix_(own, scaled)] = _standardized(x[np.ix_(own, scaled)], ~test[own])
    x = x.astype(np.float32)

    facts = {name: _codes(table[name], keep_numbers=True) for name in options.columns}
    if users is not None:
        facts["user"] = users
    columns = {name: DataColumn(codes[~test], codes[test], names) for name, (codes, names) in facts.items()}
    notes = (_uses(table, options, features, classes),)
    return RawData(x[~test], y[~test], x[test], y[test], classes, columns, notes=notes)


def _uses(table: "pd.DataFrame", options: TableOptions, features: list[str], classes: tuple[str, ...]) -> str:
    """The use of every column, in one line."""
    parts = [f"{counted(features, 'feature')}: {listed(features)}"]
    if constant := [name for name in features if table[name].nunique() == 1]:
        parts.append(f"constant: {listed(constant)}")
    kinds = f"{counted(classes, 'class')}: {listed(classes)}" if classes else "real numbers"
    parts.append(f"target: {options.target} ({kinds})")
    known = {name for _, name in options.uses()}
    unused = [name for name in map(str, table) if name not in known.union(features)]
    for field in "user", "split", "columns":
        if names := [name for use, name in options.uses() if use == field]:
            parts.append(f"{field}: {listed(names)}")
    for why, left in (
        ("data.ignore", options.ignore),
        ("without a name", unnamed(unused) if options.features is None else []),
        ("not in data.features", unused if options.features is not None else []),
    ):
        if left:
            parts.append(f"left out: {listed(left)} ({why})")
    return "; ".join(parts)


def _read_parquet(path: Path) -> "pd.DataFrame":
    """The table; named levels of its index are columns."""
    import pandas as pd

    table = pd.read_parquet(path)
    return table.reset_index([name for name in table.index.names if name is not None])


def _read_csv(path: Path) -> "pd.DataFrame":
    """The table with its text unchanged, and the column names of the first line."""
    import pandas as pd

    names = pd.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False).iloc[0].tolist()
    if len(names) > 1 and _is_data(names):
        raise ValueError(f"needs the names of the columns in its first line, which holds {listed(names)}")
    if len(names) == 1 and (mark := next((m for m in ";\t| " if m in names[0]), "")):
        raise ValueError(f"columns are separated by {mark!r}; needs commas")
    if twice := [name for name in names if name and names.count(name) > 1]:  # pandas would number them
        raise ValueError(f"has two columns {twice[0]!r}")
    # Fails where rows are longer than the first line, whose first cells pandas would take for an index.
    pd.read_csv(path, header=None, nrows=2, dtype=str)
    table = pd.read_csv(path, low_memory=False)  # else the type of a column depends on the block of rows
    written = pd.read_csv(path, keep_default_na=False, na_values=[""], low_memory=False)
    for name in table.select_dtypes(exclude="number"):
        table[name] = written[name]
    return table


def _is_data(names: list[str]) -> bool:
    """Return whether the first line of a CSV file holds data: numbers, unless they count the columns."""
    found = [_number(name) for name in names]
    numbers = [number for number in found if number is not None]
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


def _features(table: "pd.DataFrame", options: TableOptions, path: Path) -> list[str]:
    """The numeric input columns; every column that the options name must exist."""
    numeric = list(map(str, table.select_dtypes(["number", "bool"])))
    for field, name in options.uses():
        there = numeric if field == "features" else list(map(str, table.columns))
        if name not in there:
            kind = "numeric column" if field == "features" else "column"
            raise BadInput(f"data.{field}", name, f"a {kind} of {path}: {', '.join(there)}")
    taken = {name for _, name in options.uses()}
    without = [name for name in unnamed(map(str, table)) if name not in taken]
    if options.features is not None:
        features = options.features
    else:
        rest = table[[name for name in table if name not in taken.union(without)]]
        features = [name for name in numeric if name in rest]
    if strange := [name for name in options.dummies if name not in features]:
        raise BadInput("data.dummies", strange[0], f"one of the features: {', '.join(features)}")
    if options.features is None and (found := unfit(rest.drop(columns=options.dummies))):
        raise FedflowError(
            f"{path}: not features: {found}; list them in data.ignore, or the features in data.features"
        )
    if not features:
        others = f"; left out: {listed(map(repr, without))} (without a name)" if without else ""
        raise FedflowError(f"{path}: has no numeric column left for features{others}")
    return features


def _need_whole(table: "pd.DataFrame", path: Path) -> None:
    """Refuse missing and infinite values."""
    for name, column in table.items():
        missing = column.isna() | column.isin([np.inf, -np.inf])
        if missing.any():
            row = missing.to_numpy().argmax() + 1
            raise FedflowError(
                f"{path}: column {name!r} has {missing.sum()} missing or infinite values, to be filled in "
                f"the file or left out with the column (data.ignore), the first in row {row}"
            )


def _targets(table: "pd.DataFrame", options: TableOptions, path: Path) -> tuple[np.ndarray, tuple[str, ...]]:
    """Labels and class names, or float32 targets and no names."""
    column = table[options.target]
    numeric = column.dtype.kind in "biuf"
    if options.task == "regression":
        if not numeric:
            accepted = f"a numeric column, for task: regression (it has {odd_value(column)})"
            raise BadInput("data.target", options.target, accepted)
        return column.to_numpy(np.float32), ()
    if mark := missing_mark(column):
        raise FedflowError(f"{path}: column {options.target!r}, the target, has the missing value {mark}")
    if column.dtype.kind == "f" and (column % 1 != 0).any():
        raise BadInput(
            "data.target", options.target, "text or whole numbers; real ones need task: regression"
        )
    return _codes(column.astype(np.int64) if column.dtype.kind == "f" else column)


def _standardized(x: np.ndarray, train: np.ndarray) -> np.ndarray:
    """``x`` [n, d] with mean 0 and standard deviation 1 in the ``train`` [n] rows; 0 if constant there."""
    mean, std, constant = x[train].mean(0), x[train].std(0), np.ptp(x[train], axis=0) == 0
    return np.where(constant, 0, (x - mean) / np.where(constant, 1, std))


def _test_rows(
    table: "pd.DataFrame", options: TableOptions, y: np.ndarray, groups: np.ndarray, path: Path
) -> np.ndarray:
    """Which rows are test rows, bool [n], drawn within each group [n]; neither part is empty."""
    test = np.zeros(len(y), bool)
    if options.split is not None:
        split = table[options.split].astype(str)
        if strange := sorted(set(split) - {"train", "test"}):
            raise BadInput("data.split", options.split, f"a column of train and test, not {strange[0]}")
        test = (split == "test").to_numpy()
    else:
        strata = np.zeros(len(y), np.int64) if options.task == "regression" else y
        for label, group in np.unique(np.stack([strata, groups], axis=1), axis=0).tolist():
            rows = np.flatnonzero((strata == label) & (groups == group))
            key = (label, group) if options.within == "user" else (label,)
            order = generator(options.seed, "data.table.split", *key).permutation(rows)
            test[order[: min(round(options.test_share * len(rows)), len(rows) - 1)]] = True
    if test.all() or not test.any():
        raise FedflowError(f"{path}: all {len(y)} rows are for {'testing' if test.any() else 'training'}")
    return test


def _codes(column: "pd.Series", keep_numbers: bool = False) -> tuple[np.ndarray, tuple[str, ...]]:
    """The rank of each value among the sorted distinct ones [n], and these values."""
    if keep_numbers and column.dtype.kind in "biu":
        return column.to_numpy(np.int64), ()
    comparable = column if column.dtype.kind in "biuf" else column.astype(str)
    values, codes = np.unique(comparable.to_numpy(), return_inverse=True)
    return codes.astype(np.int64), tuple(map(str, values))
