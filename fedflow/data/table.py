"""A table in a CSV or Parquet file: numeric features, and a class or a number to predict."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedflow.data.files import Column, RawData, reading
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
    dummies: list[str] = option(factory=list, doc="features that are not standardised, such as one-hot ones")
    split: str | None = option(None, "column with train or test; null = a random split")
    test_share: float = option(0.2, "share of the random test set, in each class", gt=0, lt=1)
    within: str = option(
        "table", "split at random and standardise the whole table, or the rows of each user",
        choices=("table", "user"), source="AAggFF on Berka: user",
    )  # fmt: skip
    seed: int = option(0, "seed of the random split", ge=0)

    def validate(self) -> None:
        if self.within == "user" and self.user is None:
            raise BadInput("data.within", self.within, "table, without a column for data.user")
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
        return [(field, name) for field, name in named if name is not None]


def read_table(path: Path, options: TableOptions) -> RawData:
    """Features [n, d] float32, labels [n] numbered in the order of the classes, or real targets [n].

    Features, except ``dummies``, are standardised with the mean and standard deviation of the training rows
    (0 if a column is constant there), of the whole table or of each user. Rows keep their order. Columns of
    whole numbers are unchanged, ``user`` and text are numbered in sorted order. An empty cell is a missing
    value; "NA" or "None" is missing in a column of numbers, and text in a column of text. Raises `BadInput`
    for a column that is missing or has the wrong type, `FedflowError` for a file that cannot be read and for
    missing values.
    """
    import pandas as pd

    with reading(path):
        table = pd.read_parquet(path) if path.suffix == ".parquet" else _read_csv(path)
        table.columns = table.columns.map(str)
        if twice := table.columns[table.columns.duplicated()].tolist():
            raise ValueError(f"has two columns {twice[0]!r}")
        if not len(table):
            raise ValueError("has no rows")
    features = _features(table, options, path)
    _need_whole(table[list(dict.fromkeys([name for _, name in options.uses()] + features))], path)

    y, classes = _targets(table, options)
    users = None if options.user is None else _codes(table[options.user])
    groups = np.zeros(len(y), np.int64) if options.within == "table" or users is None else users[0]
    test = _test_rows(table, options, y, groups, path)
    x, scaled = table[features].to_numpy(np.float64, copy=True), ~np.isin(features, options.dummies)
    for group in np.unique(groups):
        own = groups == group
        if test[own].all():
            name = table[options.user][own].iloc[0]
            raise FedflowError(f"{path}: {str(name)!r} has no training row (data.within: user)")
        x[np.ix_(own, scaled)] = _standardised(x[np.ix_(own, scaled)], ~test[own])
    x = x.astype(np.float32)

    facts = {name: _codes(table[name], keep_numbers=True) for name in options.columns}
    if users is not None:
        facts["user"] = users
    columns = {name: Column(codes[~test], codes[test], names) for name, (codes, names) in facts.items()}
    return RawData(x[~test], y[~test], x[test], y[test], classes, columns)


def _read_csv(path: Path) -> "pd.DataFrame":
    """The table with its text unchanged, and the column names of the first line."""
    import pandas as pd

    names = pd.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False).iloc[0].tolist()
    if twice := [name for name in names if name and names.count(name) > 1]:  # pandas would number them
        raise ValueError(f"has two columns {twice[0]!r}")
    if len(names) == 1 and (mark := next((m for m in ";\t|" if m in names[0]), "")):
        raise ValueError(f"columns are separated by {mark!r}; needs commas")
    table, written = pd.read_csv(path), pd.read_csv(path, keep_default_na=False, na_values=[""])
    for name in table.select_dtypes(exclude="number"):
        table[name] = written[name]
    return table


def _features(table: "pd.DataFrame", options: TableOptions, path: Path) -> list[str]:
    """The numeric input columns; every column that the options name must exist."""
    numeric = list(map(str, table.select_dtypes(["number", "bool"])))
    for field, name in options.uses():
        there = numeric if field == "features" else list(map(str, table.columns))
        if name not in there:
            kind = "numeric column" if field == "features" else "column"
            raise BadInput(f"data.{field}", name, f"a {kind} of {path}: {', '.join(there)}")
    taken = {name for _, name in options.uses()}
    features = options.features
    if features is None:
        features = [name for name in numeric if name not in taken]
    if strange := [name for name in options.dummies if name not in features]:
        raise BadInput("data.dummies", strange[0], f"one of the features: {', '.join(features)}")
    if not features:
        raise FedflowError(f"{path}: has no numeric column left for features")
    return features


def _need_whole(table: "pd.DataFrame", path: Path) -> None:
    """Refuse missing and infinite values."""
    for name, column in table.items():
        missing = column.isna() | column.isin([np.inf, -np.inf])
        if missing.any():
            raise FedflowError(
                f"{path}: column {name!r} has {missing.sum()} missing or infinite values, "
                f"the first in row {missing.to_numpy().argmax() + 1}"
            )


def _targets(table: "pd.DataFrame", options: TableOptions) -> tuple[np.ndarray, tuple[str, ...]]:
    """Labels and class names, or float32 targets and no names."""
    column = table[options.target]
    numeric = column.dtype.kind in "biuf"
    if options.task == "regression":
        if not numeric:
            raise BadInput("data.target", options.target, "a numeric column, for task: regression")
        return column.to_numpy(np.float32), ()
    if column.dtype.kind == "f" and (column % 1 != 0).any():
        raise BadInput(
            "data.target", options.target, "text or whole numbers; real ones need task: regression"
        )
    return _codes(column.astype(np.int64) if column.dtype.kind == "f" else column)


def _standardised(x: np.ndarray, train: np.ndarray) -> np.ndarray:
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
