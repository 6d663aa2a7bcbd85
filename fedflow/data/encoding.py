"""The columns of a table as inputs of a network: numbers, categories, dates and missing values.

All that is learned from the training rows (categories, means, what replaces a missing value) is plain data,
which is kept with the prepared samples, so that new rows become inputs in the same way.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from fedflow.data.features import missing_mark, odd_value
from fedflow.errors import BadInput
from fedflow.settings import Words

if TYPE_CHECKING:
    import pandas as pd

MISSING = ""  # the category of missing text; text in a table is never empty
FILLS: Mapping[str, Callable[[np.ndarray], Any]] = {"mean": np.mean, "median": np.median, "category": np.mean}


@dataclass(frozen=True)
class Feature:
    """One column, and how it becomes inputs.

    ``kind``: "number", "date" (days since 1970), "onehot" (one input per category: 1 in its rows) or "codes"
    (the number of the category). ``values`` are the categories of the training rows, sorted; another category
    is 0 in every one-hot input, and has the code -1. ``fill`` replaces missing numbers, None if the training
    rows must have none; with ``flagged``, a further input is 1 where the number was missing.
    """

    name: str
    kind: str = "number"
    values: tuple[str, ...] = ()
    fill: float | None = None
    flagged: bool = False

    @classmethod
    def fitted(cls, name: str, column: "pd.Series", kind: str, missing: str) -> Self:
        """The feature of a column of training rows."""
        if kind in ("onehot", "codes"):
            return cls(name, kind, tuple(sorted(set(_texts(column)))))
        numbers = _numbers(column, kind)
        lacks = np.isnan(numbers)
        if missing not in FILLS:
            return cls(name, kind)
        if lacks.all():
            raise BadInput(f"column {name}", Words("no value in the training rows"), "one value or more")
        return cls(
            name,
            kind,
            (),
            float(FILLS[missing](numbers[~lacks])),
            missing == "category" and bool(lacks.any()),
        )

    @property
    def inputs(self) -> list[str]:
        """The names of the inputs."""
        if self.kind == "onehot":
            return [f"{self.name}={value or '(missing)'}" for value in self.values]
        return [self.name, f"{self.name}=(missing)"] if self.flagged else [self.name]

    def strange(self, column: "pd.Series") -> list[str]:
        """The categories of a column that the training rows do not have."""
        return sorted(set(_texts(column)) - set(self.values)) if self.values else []

    def encoded(self, column: "pd.Series") -> np.ndarray:
        """The inputs [n, k] of a column. Raises `BadInput` for missing numbers without a ``fill``."""
        import pandas as pd

        if self.values:
            codes = np.asarray(pd.Categorical(_texts(column), categories=list(self.values)).codes)[:, None]
            return (codes == np.arange(len(self.values)) if self.kind == "onehot" else codes).astype(
                np.float64
            )
        numbers = _numbers(column, self.kind)
        lacks = np.isnan(numbers)
        if lacks.any() and self.fill is None:
            row = int(lacks.argmax()) + 1
            raise BadInput(
                f"column {self.name}", Words(f"a missing value in row {row}"), "a number in every row"
            )
        whole = numbers if self.fill is None else np.where(lacks, self.fill, numbers)
        return np.stack([whole, lacks], axis=1) if self.flagged else whole[:, None]


@dataclass(frozen=True)
class Encoding:
    """The features of a table, and the constants that standardize their inputs.

    ``mean`` and ``std`` [groups, inputs]: one row for the whole table, or one for each of the ``groups``, the
    values of the column ``by``. Inputs with standard deviation 0 are constant in the training rows: they
    become 0.
    """

    features: tuple[Feature, ...]
    mean: tuple[tuple[float, ...], ...]
    std: tuple[tuple[float, ...], ...]
    by: str | None = None
    groups: tuple[str, ...] = ()

    @property
    def inputs(self) -> list[str]:
        """The names of the inputs."""
        return [name for feature in self.features for name in feature.inputs]

    def encode(self, rows: "pd.DataFrame") -> np.ndarray:
        """The inputs [n, d] float32 of new rows of the table, made like the inputs of the training rows."""
        if lacking := [
            name for name in [*(f.name for f in self.features), self.by] if name and name not in rows
        ]:
            raise BadInput(
                "rows", Words(f"a table without {lacking[0]!r}"), "the columns of the training rows"
            )
        groups: np.ndarray = np.zeros(len(rows), np.int64)
        if self.by is not None:
            numbers = rows[self.by].astype(str).map({name: i for i, name in enumerate(self.groups)})
            if numbers.isna().any():
                stranger = rows[self.by][numbers.isna()].iloc[0]
                raise BadInput(f"column {self.by}", stranger, f"one of {', '.join(self.groups)}")
            groups = numbers.to_numpy(np.int64)
        mean, std = np.array(self.mean)[groups], np.array(self.std)[groups]
        return standardized(encoded(self.features, rows), mean, std).astype(np.float32)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """From what `as_dict` returned, after JSON."""
        features = tuple(Feature(**{**f, "values": tuple(f["values"])}) for f in values["features"])
        mean, std = (tuple(map(tuple, values[name])) for name in ("mean", "std"))
        return cls(features, mean, std, values["by"], tuple(values["groups"]))


def encoded(features: Iterable[Feature], rows: "pd.DataFrame") -> np.ndarray:
    """The inputs [n, d] of rows before they are standardized."""
    return np.concatenate([feature.encoded(rows[feature.name]) for feature in features], axis=1)


def constants(x: np.ndarray, scaled: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of ``x`` [n, d] where ``scaled`` [d], else 0 and 1; std 0 of constants."""
    mean, std = np.zeros(x.shape[1]), np.ones(x.shape[1])
    chosen = x[:, scaled]
    mean[scaled] = chosen.mean(0)
    std[scaled] = np.where(np.ptp(chosen, axis=0) == 0, 0, chosen.std(0))
    return mean, std


def standardized(x: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """``x`` [n, d] minus ``mean``, divided by ``std``; 0 where ``std`` is 0."""
    return np.where(std == 0, 0, (x - mean) / np.where(std == 0, 1, std))


def summary(
    features: Sequence[Feature], train: "pd.DataFrame", test: "pd.DataFrame", missing: str
) -> list[str]:
    """A description of the columns that are not plain numbers."""
    parts = []
    for kind, words in (("onehot", "one-hot"), ("codes", "codes"), ("date", "days since 1970")):
        if names := [
            f.name + (f" ({len(f.values)})" if f.values else "") for f in features if f.kind == kind
        ]:
            parts.append(f"{words}: {', '.join(names)}")
    lacks = {f.name: int(train[f.name].isna().sum() + test[f.name].isna().sum()) for f in features}
    if counts := [f"{name} ({count})" for name, count in lacks.items() if count]:
        parts.append(f"missing values ({missing}): {', '.join(counts)}")
    strange = {f.name: f.strange(test[f.name]) for f in features}
    if counts := [f"{name} ({', '.join(found)})" for name, found in strange.items() if found]:
        parts.append(f"only in test rows, so of no category: {', '.join(counts)}")
    if parts:
        parts.append(f"{sum(len(f.inputs) for f in features)} inputs")
    return parts


def _texts(column: "pd.Series") -> list[str]:
    """Every value as text; numbers that are whole without a decimal point."""

    def text(value: Any) -> str:
        return str(int(value) if isinstance(value, float | np.floating) and value.is_integer() else value)

    return [MISSING if lacks else text(value) for value, lacks in zip(column, column.isna())]


def _numbers(column: "pd.Series", kind: str) -> np.ndarray:
    """Numbers [n] float64, NaN where one is missing; of dates, days since 1970."""
    import pandas as pd

    if kind != "date":
        if column.dtype.kind == "O":  # new rows as they are read
            numbers = pd.to_numeric(column, errors="coerce")
            if not (missing_mark(column) or (numbers.notna() == column.notna()).all()):
                raise BadInput(f"column {column.name}", Words(odd_value(column)), "numbers")
            column = numbers
        return (
            column.to_numpy(np.float64, na_value=np.nan)
            if column.isna().any()
            else column.to_numpy(np.float64)
        )
    try:
        dates = pd.to_datetime(column, format="ISO8601", utc=True)
    except (ValueError, TypeError):
        raise BadInput("data.dates", str(column.name), "a column of dates such as 2024-01-31") from None
    return ((dates - pd.Timestamp("1970-01-01", tz="UTC")) / pd.Timedelta(days=1)).to_numpy(np.float64)
