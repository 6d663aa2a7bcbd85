"""Data frames of the caller as inputs, by the rules of tables in files."""

from typing import TYPE_CHECKING

from fedflow.data.encoding import FILLS, Encoding, Feature, summary
from fedflow.data.features import counted, is_text, listed, unfit, unnamed
from fedflow.data.table_file import FileOptions, as_numbers, names_of
from fedflow.errors import BadInput
from fedflow.settings import Words

if TYPE_CHECKING:
    import pandas as pd

LIKE_A_FILE = FileOptions()


def read_frames(
    x: "pd.DataFrame", x_test: "pd.DataFrame", encode: str | None, missing: str
) -> tuple["pd.DataFrame", "pd.DataFrame", Encoding, str]:
    """Both frames with typed columns, how they become inputs, and a line for the user.

    Numbers are not standardized. Raises `BadInput` for columns that are no features, and for other columns in
    ``x_test``.
    """
    if missing not in ("refuse", *FILLS):
        raise BadInput("missing", missing, f"one of refuse, {', '.join(FILLS)}")
    if encode not in (None, "onehot", "codes"):
        raise BadInput("encode", encode, "None, 'onehot' or 'codes'")
    for name, table in (("x", x), ("x_test", x_test)):
        need_names(name, table)
    x, x_test = (_typed(table, missing) for table in (x, x_test))
    for name, table in (("x", x), ("x_test", x_test)):
        need_features(name, table, encode)
        lacking = [column for column in names_of(table) if missing == "refuse" and _lacks_text(table[column])]
        if lacking:
            text = Words(f"missing text in {listed(lacking)}")
            raise BadInput(name, text, f"text in every row, or missing={', '.join(map(repr, FILLS))}")
    if names_of(x_test) != names_of(x):
        found = Words(f"the columns {listed(names_of(x_test))}")
        raise BadInput("x_test", found, f"the columns of x in the same order: {listed(names_of(x))}")
    kinds = {name: str(encode) if is_text(x[name]) else "number" for name in names_of(x)}
    features = tuple(Feature.fitted(name, x[name], kind, missing) for name, kind in kinds.items())
    count = sum(len(feature.inputs) for feature in features)
    note = "; ".join(
        [f"{counted(kinds, 'feature')}: {listed(kinds)}", *summary(features, x, x_test, missing)]
    )
    return x, x_test, Encoding(features, ((0.0,) * count,), ((1.0,) * count,)), note


def _typed(table: "pd.DataFrame", missing: str) -> "pd.DataFrame":
    """With text names, and if missing values are filled, with numbers in place of text that holds numbers."""
    table = table.set_axis(names_of(table), axis=1)
    odd = [name for name in names_of(table) if missing in FILLS and table[name].dtype.kind == "O"]
    return table.assign(**{name: as_numbers(table[name], LIKE_A_FILE, lenient=True) for name in odd})


def _lacks_text(column: "pd.Series") -> bool:
    return is_text(column) and bool(column.isna().any())


def need_names(name: str, table: "pd.DataFrame") -> None:
    """Refuse columns of one name."""
    names = names_of(table)
    if twice := [column for column in dict.fromkeys(names) if names.count(column) > 1]:
        raise BadInput(name, Words(f"two columns {twice[0]!r}"), "different names")


def need_features(name: str, table: "pd.DataFrame", encode: str | None = None) -> None:
    """Refuse the columns that a table in a file may not have as features either."""
    need_names(name, table)
    without = [f"{column!r} (an index)" for column in unnamed(names_of(table))]
    if reasons := unfit(table, text=encode is not None) or without:
        ways = f"; leave other columns out with {name}.drop(columns=[...])"
        text = " in row" in " ".join(reasons) and encode is None
        more = ", or text with encode='onehot' or 'codes'" if text else ""
        raise BadInput(name, Words(f"columns {listed(reasons)}"), f"measured numbers{more}{ways}")
