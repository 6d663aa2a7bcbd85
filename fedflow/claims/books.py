"""Published tables as typed, validated files, ``published/<chapter>.json``.

A cell is text exactly as it is printed: ``49.8 ± 3.3``, ``1000+`` or ``>1000`` (not reached within 1,000),
``-`` or empty (no value), ``82 or 83`` (unreadable in the source: no value to compare with).
"""

import json
import re
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

from fedflow.claims.sources import PUBLISHED
from fedflow.errors import BadInput, FedflowError, unknown_name
from fedflow.settings import Settings, option

UNITS = {  # and their factors
    "%": 100,
    "points": 100,
    "×100": 100,
    "points²": 1e4,
    "Mb per client": 8e-6,
    "MB": 1e-6,
    "GB": 1e-9,
    "transmissions": 1,
    "rounds": 1,
    "s": 1,
    "×": 1,
    "": 1,
}
NUMERAL = r"\d*\.?\d+"
CELL = re.compile(rf"(?P<over>>?)(?P<mean>{NUMERAL})(?P<plus>\+?)(?: ± (?P<std>{NUMERAL}))?")
EMPTY = ("", "-")
ORIGINS = {  # of a table's cells, and the sentence printed with them
    "document": "Cells: from the document.",
    "authors' repository": "Cells: from the authors' repository, not from the document.",
    "computed": "Cells: computed, not copied from the source.",
    "recalled": "Cells: recalled, not checked against the source.",
}


class Setup(Settings):
    """Settings of the published runs, null if unknown. The report lists differences from ours."""

    clients: int | None = option(None, "number of clients", ge=1)
    participation: float | None = option(None, "share of the clients in a round", gt=0, le=1)
    rounds: int | None = option(None, "rounds", ge=1)
    model: str | None = option(None, "one of our networks")
    epochs: int | None = option(None, "local epochs", ge=1)
    batch_size: int | None = option(None, "batch size", ge=0)
    seeds: int | None = option(None, "runs with different seeds", ge=1)
    sources: list[str] | None = option(None, "data sources of a mix, sorted")


class Where(Setup):
    """Settings that a run must have; null and absent names accept any value."""

    procedure: str | None = option(
        None, "a registered procedure: then a method is a row of the summary of its outcomes"
    )
    method: str | None = option(None, "the method of all cells, where columns are measures")
    dataset: str | None = option(None, "a data source, or else a name under `data` in params.yaml")
    data: dict = option(factory=dict, doc="fields of the dataset, parameters of its source included")
    scheme: str | None = option(None, "a partition scheme")
    params: dict = option(
        factory=dict, doc="parameters of either; of a list, any value, unless ours is a list"
    )
    settings: dict = option(factory=dict, doc="other settings, by section of params.json, as in a column")


class PublishedColumn(Settings):
    """A method, one of its settings, or a measure. A column without a method is only printed."""

    method: str | None = option(None, "our name of the method; null: the method of the row's `where`")
    params: dict = option(factory=dict, doc="its hyperparameters, if they distinguish columns")
    settings: dict = option(
        factory=dict, doc="other settings that distinguish columns, such as {training: {curriculum: ...}}"
    )
    measure: str | None = option(None, "replaces the measure of the row or table")
    adapted: str | None = option(None, "replaces {adapted} in the measure: an adaptation of `run.adapt`")


class Row(Settings):
    """One line of a table; its fields replace fields of the table."""

    label: str = option(doc="first cell")
    where: dict = option(factory=dict, doc="fields of `Where`")
    setup: dict = option(factory=dict, doc="fields of `Setup`")
    measure: str | None = option(None, "as in the table")
    unit: str | None = option(None, "as in the table")
    better: str | None = option(None, "as in the table", choices=("higher", "lower", ""))
    target: float | None = option(None, "replaces {target} in the measure")
    values: list[str] = option(doc="a cell per column, as printed")
    bold: list[str] = option(factory=list, doc="columns printed in bold")
    caveat: str | dict[str, str] = option(factory=dict, doc="on the row, or by column")


class Table(Settings):
    """A published table: methods across, datasets and settings down."""

    label: str = option(doc="number in the source, and what it shows")
    origin: str = option(doc="where its cells come from", choices=tuple(ORIGINS))
    caveat: str = option("", "a note on all of its cells")
    measure: str | None = option(None, "the measure of our runs in its cells; null: none")
    unit: str = option("", "unit of the cells")
    better: str = option("", "which values are better", choices=("higher", "lower", ""))
    where: dict = option(factory=dict, doc="fields of `Where`")
    setup: dict = option(factory=dict, doc="fields of `Setup`")
    columns: dict[str, PublishedColumn] = option(doc="by the name that is printed")
    rows: list[Row] = option(doc="its lines")

    def validate(self) -> None:
        for i, row in enumerate(self.rows):
            field = f"rows[{i}]"
            if len(row.values) != len(self.columns):
                raise BadInput(f"{field}.values", row.values, f"{len(self.columns)} cells")
            for name in (*row.bold, *([] if isinstance(row.caveat, str) else row.caveat)):
                if name not in self.columns:
                    raise unknown_name(field, name, self.columns)
        for line in self.lines:
            if line.unit not in UNITS:
                raise unknown_name("unit", line.unit, UNITS)
            for cell in line.cells:
                if "{target}" in (cell.measure or "") and line.target is None:
                    raise BadInput("rows.target", None, f"a number, for the measure {cell.measure}")
                if cell.comparable and "{adapted}" in (cell.measure or ""):
                    accepted = f"the name of an adaptation, for the measure {cell.measure}"
                    raise BadInput(f"columns.{cell.name}.adapted", None, accepted)

    @cached_property
    def lines(self) -> list["Line"]:
        """The rows with the fields of the table filled in."""
        return [self._line(row) for row in self.rows]

    def _line(self, row: Row) -> "Line":
        caveats = {"": row.caveat} if isinstance(row.caveat, str) else row.caveat
        where, cells = Where.parse(self.where | row.where, "where"), []
        for (name, column), text in zip(self.columns.items(), row.values, strict=True):
            measure = column.measure or row.measure or self.measure
            if measure and row.target is not None:
                measure = measure.replace("{target}", f"{row.target:g}")
            if measure and column.adapted is not None:
                measure = measure.replace("{adapted}", column.adapted)
            method, value, bold = column.method or where.method, parse_value(text), name in row.bold
            cells.append(PublishedCell(name, column, method, value, measure, bold, caveats.get(name, "")))
        return Line(
            row.label,
            where,
            Setup.parse(self.setup | row.setup, "setup"),
            self.unit if row.unit is None else row.unit,
            self.better if row.better is None else row.better,
            row.target,
            caveats.get("", ""),
            cells,
        )


class Book(Settings):
    """The tables of one chapter or paper."""

    source: str = option(doc="author, title, chapter")
    tables: list[Table] = option(doc="in the order of the source")


class Value(NamedTuple):
    """A printed number, with mean and std if it can be compared; ``plus`` marks a lower bound."""

    text: str
    mean: float | None = None
    std: float | None = None
    plus: bool = False

    @property
    def digits(self) -> int:
        """Decimals of the mean."""
        return len(self.text.split(" ")[0].strip(">+").partition(".")[2])


@dataclass(frozen=True)
class PublishedCell:
    """One cell, with the measure that gives our number."""

    name: str
    column: PublishedColumn
    method: str | None
    value: Value
    measure: str | None
    bold: bool
    caveat: str

    @property
    def comparable(self) -> bool:
        """True if runs of ours can be compared with it."""
        return bool(self.method and self.measure)


@dataclass(frozen=True)
class Line:
    """A `Row` with the fields of its table filled in."""

    label: str
    where: Where
    setup: Setup
    unit: str
    better: str
    target: float | None
    caveat: str
    cells: list[PublishedCell]


def parse_value(text: str) -> Value:
    """The number in a cell. Raises `BadInput` for text in another form."""
    if text in EMPTY or re.fullmatch(rf"{NUMERAL} or {NUMERAL}", text):
        return Value(text)
    matched = CELL.fullmatch(text)
    if matched is None:
        raise BadInput("values", text, "49.8, 49.8 ± 3.3, 1000+, >1000, 82 or 83, - or empty")
    std = float(matched["std"]) if matched["std"] else None
    return Value(text, float(matched["mean"]), std, bool(matched["over"] or matched["plus"]))


@cache
def books(folder: Path = PUBLISHED) -> dict[str, Book]:
    """Every book by file name, sorted. Raises `FedflowError` that names the file."""
    by_name = {}
    for file in sorted(folder.glob("*.json")):
        try:
            by_name[file.stem] = Book.parse(json.loads(file.read_text(encoding="utf-8")))
        except (FedflowError, ValueError) as error:
            raise FedflowError(f"cannot read {file}: {error}") from error
    return by_name


def footnotes(table: Table) -> tuple[list[str], dict[tuple[int, str], int]]:
    """Caveats on rows and cells, and their numbers from 1 by row and column ("" for the row itself)."""
    texts: list[str] = []
    marks = {}
    for i, line in enumerate(table.lines):
        for name, caveat in [("", line.caveat), *((cell.name, cell.caveat) for cell in line.cells)]:
            if caveat:
                texts += [] if caveat in texts else [caveat]
                marks[i, name] = texts.index(caveat) + 1
    return texts, marks


def markdown(book: Book) -> str:
    """A book as Markdown, with caveats after their table and bold as printed."""
    parts = [f"# {book.source}"]
    for table in book.tables:
        texts, marks = footnotes(table)
        unit = f"Unit: {table.unit}." if table.unit else ""
        head = (unit, ORIGINS[table.origin], table.caveat)
        parts += [f"## {table.label}", " ".join(text for text in head if text)]
        marked = {key: f" [{number}]" for key, number in marks.items()}
        lines = [f"|  | {' | '.join(table.columns)} |", f"|---|{'---:|' * len(table.columns)}"]
        for i, line in enumerate(table.lines):
            values = [f"**{c.value.text}**" if c.bold else c.value.text for c in line.cells]
            cells = [value + marked.get((i, c.name), "") for value, c in zip(values, line.cells)]
            lines.append(f"| {line.label}{marked.get((i, ''), '')} | {' | '.join(cells)} |")
        parts += ["\n".join(lines), "\n".join(f"[{n}] {text}" for n, text in enumerate(texts, 1))]
    return "\n\n".join(part for part in parts if part) + "\n"
