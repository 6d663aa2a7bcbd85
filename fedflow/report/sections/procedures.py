"""Outcomes of procedures."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from fedflow.claims.measures import as_metric
from fedflow.errors import FedflowError
from fedflow.finished.cells import Cell, Row, Table, metric_table
from fedflow.finished.collect_outcomes import Outcome, by_variant
from fedflow.finished.reading import read_table, reject
from fedflow.finished.tables import by_method
from fedflow.finished.variants import defaults_of
from fedflow.metrics.table import UNMEASURED
from fedflow.naming import counted, flat, text
from fedflow.pictures.drawing import inlined
from fedflow.pictures.foreign import LARGEST
from fedflow.pictures.steps import FEW, by_step
from fedflow.procedures import PROCEDURES, Column, Procedure
from fedflow.procedures.catalogue import describe
from fedflow.report.blocks import Block, Drawing, Fold, Heading, Panels, Section, Text
from fedflow.report.compared import Compared

WIDE = 400  # points, from which on a picture has a row of the page
SHORT = 20  # rows of the longest table that the page shows
LEAD = """Experiments without federated rounds. Tables: mean over seeds and sample std. Curves: mean over
seeds, and a band from the lowest to the highest seed. Bold: best mean of a column. Other pictures and
tables are from the first seed."""


def section(c: Compared) -> Section | None:
    groups = enumerate(by_variant(c.outcomes))
    blocks = [block for i, group in groups for block in _blocks(group, f"outcome{i}")]
    return Section("procedures", "Procedures", LEAD, blocks) if blocks else None


def _blocks(outcomes: list[Outcome], key: str) -> list[Block]:
    """Outcomes of one entry with equal settings and inputs; pictures and tables are from the first seed.

    Raises `FedflowError` for a damaged picture or table.
    """
    first = outcomes[0]
    cls = PROCEDURES.get(first.facts["registered"], Procedure)
    seeds = [str(outcome.seed) for outcome in outcomes]
    steps = f"{counted(first.facts['steps'], cls.step_name)}, {'seed' if len(seeds) == 1 else 'seeds'}"
    label = f"{first.label} · {first.variant}" if first.variant else first.label
    parts = list(dict.fromkeys(part for outcome in outcomes for part in outcome.steps["part"]))
    rows = by_method([row for outcome in outcomes for row in replace(outcome, variant="").rows])
    metrics = [as_metric(n, cls.metrics.get(n, Column(n))) for n in (*cls.metrics, *_unlisted(outcomes, cls))]
    colors = {part: i for i, part in enumerate(parts)} if 1 < len(parts) <= FEW else {}
    table = replace(metric_table(rows, metrics), head="Row", colors=colors)
    files = enumerate(sorted(first.folder.glob("pictures/*.svg")))
    pictures = [_picture(file, f"{key}-picture{number}") for number, file in files]
    small = [picture for picture in pictures if picture.kind == "card"]
    warning = "Seed {} has two outcomes: {} is not shown."
    return [
        Heading(label, f"{first.entry}, {steps} {', '.join(seeds)}"),
        *([Text(describe(cls).idea)] if cls is not Procedure else []),
        *(Text(warning.format(o.seed, o.repeated), "warning") for o in outcomes if o.repeated),
        *([table] if table.rows else []),
        Panels([*_curves(outcomes, cls, len(parts), key), *small]),
        *(picture for picture in pictures if picture.kind != "card"),
        _settings(first, cls),
        *(_table(file) for file in sorted(first.folder.glob("tables/*.csv"))),
    ]


def _settings(outcome: Outcome, cls: type[Procedure]) -> Fold:
    given = {name: value for name, value in outcome.params["procedure"].items() if name != "name"}
    usual = flat(json.loads(json.dumps(defaults_of(cls))), empty=True)  # lists, as in the files
    words: dict[bool, list[str]] = {True: [], False: []}
    for name, value in flat(given, empty=True).items():
        words[name in usual and usual[name] == value].append(f"{name} {text(value)}")
    name = Markup("<code>{}</code>").format(outcome.facts["registered"])
    row = Row("", name, [Cell(", ".join(words[False])), Cell("", note=", ".join(words[True]))])
    columns = [("Differs from the defaults", "", ""), ("Defaults", "", "")]
    table = Table(columns, [row], "Procedure", "words")
    return Fold(f"Settings of {outcome.entry}", [table], "card wide plots")


def _curves(outcomes: Sequence[Outcome], cls: type[Procedure], parts: int, key: str) -> list[Drawing]:
    note = "A thin line is a part, the thick one their mean." if parts > FEW else ""
    return [
        Drawing(
            f"{as_metric(column, column_of).label} by {cls.step_name}",
            _curve(outcomes, column, column_of, cls.step_name, f"{key}-{i}"),
            note,
        )
        for i, (column, column_of) in enumerate(cls.curves.items())
        if all(column in outcome.steps and outcome.steps[column].notna().any() for outcome in outcomes)
    ]


def _unlisted(outcomes: Sequence[Outcome], cls: type[Procedure]) -> list[str]:
    """Metrics in the summaries that the procedure does not describe."""
    names = dict.fromkeys(str(name) for outcome in outcomes for name in outcome.summary)
    return [name for name in names if name not in cls.metrics]


def _curve(outcomes: Sequence[Outcome], column: str, column_of: Column, step_name: str, name: str) -> Markup:
    metric, parts = as_metric(column, column_of), dict[str, list[pd.Series]]()
    for outcome in outcomes:
        for part, rows in outcome.steps.groupby("part", sort=False):
            values = rows.set_index("step")[column].astype(float) * metric.unit.factor
            parts.setdefault(str(part), []).append(values)
    return by_step(parts, name, f"{metric.label} by {step_name}", step_name, column_of.log).svg


def _picture(file: Path, key: str) -> Drawing:
    try:
        if not file.is_file() or file.stat().st_size > LARGEST:
            raise FedflowError(f"not a file of at most {LARGEST / 1e6:g} MB")
        drawn = inlined(file.read_text(encoding="utf-8"), key)
    except (OSError, ValueError, FedflowError) as error:
        reject(file, str(error))
    box = re.search(r'viewBox="\S+ \S+ ([\d.]+)', drawn)
    wide = box is not None and float(box[1]) > WIDE
    title = file.stem.replace("_", " ").replace("-", " ").capitalize()
    return Drawing(title, drawn, kind="card after" if wide else "card")


def _table(file: Path) -> Fold:
    """The cells of a short table of an outcome, or else its columns."""
    table, name = read_table(file, pd.read_csv), "/".join(file.parts[-5:])
    summary = Markup("<code>{}</code>, {} {}").format(name, len(table), "row" if len(table) == 1 else "rows")
    heads = [str(head) for head in table]
    if len(table) > SHORT or table.empty:
        return Fold(summary, [Text(", ".join(heads))])
    rows = [[_cell(value) for value in row] for row in table.astype(object).to_numpy().tolist()]
    cells = [Row("", first, [Cell(text) for text in others]) for first, *others in rows]
    return Fold(summary, [Table([(head, "", "") for head in heads[1:]], cells, heads[0], "")])


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return UNMEASURED if pd.isna(value) else f"{value:.6g}"
    return str(value)
