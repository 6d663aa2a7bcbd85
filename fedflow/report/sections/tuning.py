"""Settings that `fedflow tune` tried: the choice of every method, and a picture per setting."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from fedflow.finished.cells import Cell, Row, Table
from fedflow.finished.reading import check_columns, read_table, reject
from fedflow.metrics.table import SHARE, UNMEASURED, in_unit
from fedflow.naming import text
from fedflow.pictures.tuning import Tried, tried
from fedflow.report.blocks import Block, Drawing, Heading, Panels, Section
from fedflow.report.compared import Compared
from fedflow.report.sources import score_files

NUMBERS = ("accuracy", "loss")
NO_SETTINGS = (*NUMBERS, "spread", "chosen", "settings")  # columns with the results of a try
COLUMNS = [
    ("Chosen", "", "the settings with the best score; the first of equals"),
    ("Score", "", "by `tuning.measure`, on samples held out of the training data, ± std over clients"),
    ("Next", "", "the best score with other settings"),
    ("Tries", "", "combinations of settings that were run"),
]
LEAD = Markup("""What <code>fedflow tune</code> tried, every method with the same rule, on samples held out
of the clients' training data; test samples play no part. The settings with the best score are chosen. In the
pictures: a dot is a try, the line connects the best try of each value, the ring is the chosen one. A ring at
an end of its line may have a better value beyond it.""")


def section(c: Compared) -> Section | None:
    partitions: dict[str, dict[str, pd.DataFrame]] = {}
    for file in score_files(c.tried) if c.tried else []:
        partitions.setdefault(file.parent.name, {})[file.stem] = _read(file)
    blocks = [block for name, methods in partitions.items() for block in _blocks(c, name, methods)]
    return Section("tuning", "Tuning", LEAD, blocks) if blocks else None


def _read(file: Path) -> pd.DataFrame:
    table = read_table(file, pd.read_csv, NUMBERS)
    if "chosen" not in table or table["chosen"].dtype != bool or table["chosen"].sum() > 1:
        reject(file, "column chosen needs at most one True, and False for the others")
    check_columns(file, table, {"accuracy": (SHARE.least, SHARE.most), "spread": (-math.inf, math.inf)})
    loss = bool(table["accuracy"].isna().all())
    for name in _settings(table):  # an empty field is null
        table[name] = table[name].astype(object).where(table[name].notna(), None)
    return table.assign(score=table["loss" if loss else "accuracy"]).assign(by_loss=loss)


def _blocks(c: Compared, name: str, methods: Mapping[str, pd.DataFrame]) -> list[Block]:
    methods = dict(sorted(methods.items(), key=lambda item: _order(item[1])))
    labels, others = {**c.methods, **c.labels}, [method for method in methods if method not in c.colors]
    colors = c.colors | {method: i for i, method in enumerate(others, 1 + max(c.colors.values(), default=-1))}
    rows = [Row(method, labels.get(method, method), _cells(table)) for method, table in methods.items()]
    figures = []
    for setting in dict.fromkeys(name for table in methods.values() for name in _settings(table)):
        for loss in (False, True):
            lines = [
                Tried(labels.get(method, method), colors[method], table.assign(value=table[setting]))
                for method, table in methods.items()
                if setting in table
                and table[setting].nunique(dropna=False) > 1
                and table["by_loss"].any() == loss
            ]
            if lines:
                key = f"tuning-{name}-{setting}-{loss}"
                figures.append(Drawing(setting, tried(lines, setting, loss, key).svg))
    return [Heading(name), Table(COLUMNS, rows, colors=colors), Panels(figures)]


def _order(table: pd.DataFrame) -> float:
    """Sort key, best methods first and methods whose tries all diverged last."""
    scores = table["score"][table["chosen"]] * (1 if table["by_loss"].any() else -1)
    return float(scores.fillna(math.inf).min()) if len(scores) else math.inf


def _cells(table: pd.DataFrame) -> list[Cell]:
    chosen, others = table[table["chosen"]], table[~table["chosen"]]["score"].dropna()
    diverged = int(table["score"].isna().sum())
    tries = Cell(f"{len(table)}", sort=len(table), note=f"{diverged} diverged" if diverged else "")
    if chosen.empty:
        return [Cell(UNMEASURED), Cell(UNMEASURED), Cell(UNMEASURED), tries]
    (best,) = chosen.to_dict("records")
    words = ", ".join(f"{setting} {text(best[setting])}" for setting in _settings(table))
    loss = bool(best["by_loss"])
    spread = best.get("spread")
    around = "" if spread is None or pd.isna(spread) or loss else f"±\u2009{_written(spread, loss)}"
    score = Cell(_written(best["score"], loss), around, sort=best["score"])
    following = (others.min() if loss else others.max()) if len(others) else None
    after = Cell(UNMEASURED) if following is None else Cell(_written(following, loss), sort=following)
    return [Cell(words), score, after, tries]


def _written(score: float, loss: bool) -> str:
    return f"{score:.4g}" if loss else f"{in_unit(score, SHARE)} %"


def _settings(table: pd.DataFrame) -> list[Any]:
    return [name for name in table if name not in (*NO_SETTINGS, "score", "by_loss")]
