"""A table in a CSV or Parquet file: numbers, categories and dates as features, and a column to predict.

Reading is a series of steps, and each says what it did: the columns get types, rows with missing values are
left out if that is wanted, every column gets a use, rows are split, and what the features need (categories,
means, constants of standardization) is learned from the training rows.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedflow.data.encoding import FILLS, Encoding, Feature, constants, encoded, summary
from fedflow.data.features import advice, counted, is_text, listed, missing_mark, odd_value, unfit, unnamed
from fedflow.data.files import DataColumn, RawData, reading
from fedflow.data.labels import reals, several
from fedflow.data.split import draw_test
from fedflow.data.table_file import FileOptions, as_numbers, names_of, read_frame
from fedflow.errors import BadInput, FedflowError
from fedflow.settings import option

if TYPE_CHECKING:
    import pandas as pd


class TableOptions(FileOptions):
    """Settings of the file, the meaning of its columns, and their way to inputs."""

    target: str | list[str] = option(
        doc="column to predict; a list = several: of 0 and 1 with loss: bce, real ones with task: regression"
    )
    task: str = option("classification", "kind of target", choices=("classification", "regression"))
    user: str | None = option(None, "column with the user of each sample; kept as `user`")
    columns: list[str] = option(factory=list, doc="further columns to keep as facts, such as attributes")
    features: list[str] | None = option(None, "input columns; null = all without another use")
    ignore: list[str] = option(factory=list, doc="columns without use, such as text, ids and row numbers")
    encode: str | None = option(
        None,
        "how text becomes inputs: onehot = an input per category, codes = the number of the category; null = "
        "text is refused",
        choices=("onehot", "codes"),
    )
    categories: list[str] = option(factory=list, doc="columns of numbers that are categories, for `encode`")
    dates: list[str] = option(factory=list, doc="columns of dates (2024-01-31), which become days since 1970")
    missing: str = option(
        "refuse",
        "missing values of features: refuse; drop = leave out such rows; mean or median of training rows; "
        "category = the mean, with an input that marks them. Except with the first two, missing text is a "
        "category",
        choices=("refuse", "drop", *FILLS),
    )
    dummies: list[str] = option(
        factory=list, doc="columns of numbers that are not standardized, such as 0 and 1"
    )
    split: str | None = option(None, "column with train or test; null = a random split")
    test_path: str | None = option(None, "file of the test rows, in place of a random split")
    test_share: float = option(0.2, "share of the random test set, in each class", gt=0, lt=1)
    within: str = option(
        "table",
        "split at random and standardize the whole table, or the rows of each user",
        choices=("table", "user"),
        source="AAggFF on Berka: user",
    )
    seed: int = option(0, "seed of the random split", ge=0)

    def validate(self) -> None:
        super().validate()
        if self.split is not None or self.test_path is not None:
            self.refuse_unused("with test rows in split or test_path", "test_share")
        if not self.targets:
            raise BadInput("data.target", self.target, "one column or more")
        if self.within == "user" and self.user is None:
            raise BadInput("data.within", self.within, "table, without a column for data.user")
        if self.ignore and self.features is not None:
            accepted = "an empty list: columns that data.features does not name are ignored"
            raise BadInput("data.ignore", self.ignore, accepted)
        if self.categories and self.encode is None:
            raise BadInput("data.categories", self.categories, "an empty list, without data.encode")
        if self.test_path is not None and self.split is not None:
            raise BadInput("data.test_path", self.test_path, "null, with data.split")
        seen = {"user"} if self.user not in (None, "user") else set()  # a fact of that name would hide it
        for field, name in self.uses():
            if name in seen:
                raise BadInput(f"data.{field}", name, "a column without another use")
            seen.add(name)

    @property
    def targets(self) -> list[str]:
        """The columns to predict."""
        return self.target if isinstance(self.target, list) else [self.target]

    def uses(self) -> list[tuple[str, str]]:
        """All named columns, each preceded by the field that names it."""
        named: list[tuple[str, str | None]] = [("target", name) for name in self.targets]
        named += [("user", self.user), ("split", self.split)]
        named += [("columns", name) for name in self.columns]
        named += [("features", name) for name in self.features or []]
        named += [("ignore", name) for name in self.ignore]
        return [(field, name) for field, name in named if name is not None]


def read_table(path: Path, options: TableOptions) -> RawData:
    """Features [n, d] float32, labels [n] numbered in the order of the classes, or real targets [n].

    Numbers, dates and codes, except ``dummies``, are standardized with the mean and standard deviation of
    the training rows (0 if a column is constant there), of the whole table or of each user. Rows keep their
    order. Columns of whole numbers are unchanged, ``user`` and text are numbered in sorted order. An empty
    cell is a missing value; "NA" or "None" is missing in a column of numbers, and text in a column of text. A
    column without a use must be a feature or ignored: row numbers and ids are refused unless the options name
    them.
    Raises `BadInput` for a column that is missing or has the wrong type, `FedflowError` for a file that
    cannot be read and for missing values.
    """
    table, given = _rows(path, options)
    _need_columns(table, options, path)
    table = _typed(table, options)
    kinds = _features(table, options, path)
    used = [name for field, name in options.uses() if field != "ignore"]
    dropped = np.zeros(len(table), bool)
    if options.missing == "drop":
        dropped = table[[*used, *kinds]].isna().any(axis=1).to_numpy()
        table, given = table[~dropped], None if given is None else given[~dropped]
        if not len(table):
            raise FedflowError(f"{path}: every row has a missing value (data.missing: drop)")
    _need_whole(table, used, kinds, options.missing != "refuse", path)

    y, classes = _targets(table, options, path)
    users = None if options.user is None else codes(table[options.user])
    groups = np.zeros(len(y), np.int64) if options.within == "table" or users is None else users[0]
    test = _test_rows(table, options, y, groups, path) if given is None else given
    train = table[~test]
    features = [Feature.fitted(name, train[name], kind, options.missing) for name, kind in kinds.items()]
    encoding = _encoding(table, features, options, groups, test, path)
    x = encoding.encode(table)

    facts = {name: codes(table[name], keep_numbers=True) for name in options.columns}
    if users is not None:
        facts["user"] = users
    columns = {
        name: DataColumn(values[~test], values[test], names) for name, (values, names) in facts.items()
    }
    notes = [_uses(table, options, kinds, classes)]
    if dropped.any():
        notes.append(
            f"left out: {dropped.sum()} of {len(dropped)} rows, with missing values (data.missing: drop)"
        )
    if classes and y.ndim == 1 and (lacking := np.setdiff1d(y[test], y[~test])).size:
        notes.append(f"only in test rows: {listed(classes[label] for label in lacking)} (of the target)")
    notes += filter(None, ["; ".join(summary(features, train, table[test], options.missing))])
    return RawData(
        x[~test], y[~test], x[test], y[test], classes, columns, notes=tuple(notes), encoding=encoding
    )


def _rows(path: Path, options: TableOptions) -> tuple["pd.DataFrame", np.ndarray | None]:
    """All rows, and which of them are test rows [n] if a file has these."""
    import pandas as pd

    if all(file.suffix.lower() == ".parquet" for file in (path, Path(options.test_path or path))):
        options.refuse_unused("with a Parquet file", "names", "separator", "comment", "encoding")
    table = read_frame(path, options)
    if options.test_path is None:
        return table, None
    other = Path(options.test_path)
    if not other.exists():
        raise BadInput("data.test_path", options.test_path, "a file")
    tested = read_frame(other, options)
    if list(tested) != list(table):
        raise FedflowError(
            f"{other}: has the columns {listed(names_of(tested))}, not {listed(names_of(table))} as {path}"
        )
    odd = [name for name in names_of(table) if is_text(table[name]) != is_text(tested[name])]
    if text := [name for name in odd if not (missing_mark(table[name]) or missing_mark(tested[name]))]:
        table, tested = (read_frame(file, options, text) for file in (path, other))
    table, tested = (
        frame.assign(**{name: frame[name].astype(object).where(frame[name].notna(), np.nan) for name in odd})
        for frame in (table, tested)
    )
    return pd.concat([table, tested], ignore_index=True), np.arange(len(table) + len(tested)) >= len(table)


def _need_columns(table: "pd.DataFrame", options: TableOptions, path: Path) -> None:
    """Refuse options that name a column which the file does not have."""
    others = [(field, name) for field in ("categories", "dates") for name in getattr(options, field)]
    for field, name in [*options.uses(), *others]:
        if name not in table and not (field == "features" and options.encode is None):
            raise BadInput(f"data.{field}", name, f"a column of {path}: {', '.join(names_of(table))}")


def _typed(table: "pd.DataFrame", options: TableOptions) -> "pd.DataFrame":
    """With columns of numbers as numbers although some values are marked as missing, if that is allowed."""
    if options.missing == "refuse":
        return table
    taken = {name for field, name in options.uses() if field not in ("features", "target")} | {*options.dates}
    taken |= {*options.targets} if options.task == "classification" else set()
    odd = [name for name in names_of(table) if name not in taken and table[name].dtype.kind == "O"]
    return table.assign(**{name: as_numbers(table[name], options, lenient=True) for name in odd})


def _encoding(
    table: "pd.DataFrame",
    features: list[Feature],
    options: TableOptions,
    groups: np.ndarray,
    test: np.ndarray,
    path: Path,
) -> Encoding:
    """The features with the constants of the training rows of each group."""
    x = encoded(features, table)
    plain = {*options.dummies, *(f.name for f in features if f.kind == "onehot")}
    scaled = np.concatenate([_scaled(f, f.name not in plain) for f in features])
    fitted, names = [], []
    for group in np.unique(groups):
        inside = groups == group
        if options.within == "user":
            names.append(str(table[options.user][inside].iloc[0]))
            if test[inside].all():
                raise FedflowError(f"{path}: {names[-1]!r} has no training row (data.within: user)")
        fitted.append(constants(x[inside & ~test], scaled))
    mean, std = (tuple(tuple(row.tolist()) for row in rows) for rows in zip(*fitted))
    return Encoding(tuple(features), mean, std, options.user if names else None, tuple(names))


def _scaled(feature: Feature, whole: bool) -> np.ndarray:
    """A mask of the inputs of a feature that are standardized; the mark of a missing value is not."""
    return np.array([whole, *[False] * (len(feature.inputs) - 1)] if whole else [False] * len(feature.inputs))


def _uses(
    table: "pd.DataFrame", options: TableOptions, features: dict[str, str], classes: tuple[str, ...]
) -> str:
    """The use of every column, in one line; ``features`` are their kinds by name."""
    parts = [f"{counted(features, 'feature')}: {listed(features)}"]
    filled = options.missing != "category"  # then a missing number is another input, as missing text is
    constant = [
        name for name, kind in features.items() if table[name].nunique(filled and kind == "number") == 1
    ]
    if constant:
        parts.append(f"constant: {listed(constant)}")
    kinds = f"{counted(classes, 'class')}: {listed(classes)}" if classes else "real numbers"
    if isinstance(options.target, list) and classes:
        kinds = "several labels per sample"
    parts.append(f"target: {listed(options.targets)} ({kinds})")
    named = {name for _, name in options.uses()}
    unused = [name for name in names_of(table) if name not in named.union(features)]
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


def _features(table: "pd.DataFrame", options: TableOptions, path: Path) -> dict[str, str]:
    """The input columns, each with the kind of its `Feature`."""
    text = [name for name in names_of(table) if is_text(table[name])]
    categories = {*options.categories, *(text if options.encode else [])} - {*options.dates}
    numeric = list(table.select_dtypes(["number", "bool"]))
    fit = [name for name in names_of(table) if name in {*numeric, *categories, *options.dates}]
    for name in options.features or []:
        if name not in fit:
            kind = "column of numbers or text" if options.encode else "numeric column"
            raise BadInput("data.features", name, f"a {kind} of {path}: {', '.join(fit)}")
    taken = {name for _, name in options.uses()}
    without = [name for name in unnamed(names_of(table)) if name not in taken]
    rest = [name for name in names_of(table) if name not in taken.union(without)]
    features = [name for name in fit if name in rest] if options.features is None else options.features
    for field in ("dummies", "categories", "dates"):
        if strange := [name for name in getattr(options, field) if name not in features]:
            raise BadInput(f"data.{field}", strange[0], f"one of the features: {', '.join(features)}")
    if options.features is None:
        named = {*options.dummies, *options.categories, *options.dates}
        reasons = unfit(table[[name for name in rest if name not in named]], text=options.encode is not None)
        if reasons:
            raise FedflowError(f"{path}: not features: {listed(reasons)}; {advice(reasons)}")
    if not features:
        others = f"; left out: {listed(map(repr, without))} (without a name)" if without else ""
        raise FedflowError(f"{path}: has no numeric column left for features{others}")
    kinds = dict.fromkeys(features, "number") | dict.fromkeys(options.dates, "date")
    return kinds | {name: str(options.encode) for name in features if name in categories}


def _need_whole(
    table: "pd.DataFrame", used: Iterable[str], features: Iterable[str], filled: bool, path: Path
) -> None:
    """Refuse infinite values, and missing ones except of features that are ``filled`` later."""
    for name in dict.fromkeys([*used, *features]):
        infinite, missing = table[name].isin([np.inf, -np.inf]), table[name].isna()
        odd = infinite if filled and name in features else infinite | missing
        if odd.any():
            way = "left out with the column (data.ignore)"
            if name not in features:
                way = "left out with their rows (data.missing: drop)" if not infinite.any() else "replaced"
            elif not infinite.any():
                way = f"filled in (data.missing) or {way}"
            raise FedflowError(
                f"{path}: column {name!r} has {odd.sum()} missing or infinite values, to be {way}, "
                f"the first in row {odd.to_numpy().argmax() + 1}"
            )


def _targets(table: "pd.DataFrame", options: TableOptions, path: Path) -> tuple[np.ndarray, tuple[str, ...]]:
    """Labels and class names, or float32 targets and no names."""
    if isinstance(options.target, list):
        return _several(table[options.target], options, path)
    column = table[options.target]
    numeric = column.dtype.kind in "biuf"
    if options.task == "regression":
        if not numeric:
            accepted = f"a numeric column, for task: regression (it has {odd_value(column)})"
            raise BadInput("data.target", options.target, accepted)
        with reading(path):
            return reals(column.to_numpy(np.float64))[0], ()
    if mark := missing_mark(column):
        raise FedflowError(
            f"{path}: column {options.target!r}, the target, has the missing value {mark}; with "
            "data.marks and data.missing: drop, such rows are left out"
        )
    if column.dtype.kind == "f" and (column % 1 != 0).any():
        raise BadInput(
            "data.target", options.target, "text or whole numbers; real ones need task: regression"
        )
    return codes(column.astype(np.int64) if column.dtype.kind == "f" else column)


def _several(
    columns: "pd.DataFrame", options: TableOptions, path: Path
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Several labels per sample [n, K] and their names, or float32 targets [n, k] and no names."""
    for name, column in columns.items():
        if column.dtype.kind not in "biuf":
            raise BadInput("data.target", name, f"numeric columns (it has {odd_value(column)})")
    y = columns.to_numpy(np.float64)
    if options.task == "regression":
        with reading(path):
            return reals(y)[0], ()
    if not several(y):
        accepted = "columns of 0 and 1, for loss: bce; real ones need task: regression"
        raise BadInput("data.target", options.targets, accepted)
    return y.astype(np.float32), tuple(map(str, columns))


def _test_rows(
    table: "pd.DataFrame", options: TableOptions, y: np.ndarray, groups: np.ndarray, path: Path
) -> np.ndarray:
    """A mask of the test rows [n], drawn within each group [n]; neither part is empty."""
    test = np.zeros(len(y), bool)
    if options.split is not None:
        split = table[options.split].astype(str)
        if strange := sorted(set(split) - {"train", "test"}):
            raise BadInput("data.split", options.split, f"a column of train and test, not {strange[0]}")
        test = (split == "test").to_numpy()
    else:
        strata = np.zeros(len(y), np.int64) if options.task == "regression" or y.ndim > 1 else y
        within = groups if options.within == "user" else None
        test = draw_test(strata, options.test_share, options.seed, "data.table.split", within)
    if test.all() or not test.any():
        raise FedflowError(f"{path}: all {len(y)} rows are for {'testing' if test.any() else 'training'}")
    return test


def codes(column: "pd.Series", keep_numbers: bool = False) -> tuple[np.ndarray, tuple[str, ...]]:
    """The rank of each value among the sorted distinct ones [n], and these values."""
    if keep_numbers and column.dtype.kind in "biu" and column.max() <= np.iinfo(np.int64).max:
        return column.to_numpy(np.int64), ()
    comparable = column if column.dtype.kind in "biuf" else column.astype(str)
    values, codes = np.unique(comparable.to_numpy(), return_inverse=True)
    return codes.astype(np.int64), tuple(map(str, values))
