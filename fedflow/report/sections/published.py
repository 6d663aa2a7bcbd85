"""Published tables with the numbers of these runs in their cells."""

from markupsafe import Markup

from fedflow.claims.matching import ComparedCell, Ours, Shown
from fedflow.finished.cells import Cell, Row, Table
from fedflow.report.blocks import Block, Heading, Listing, Section, Text
from fedflow.report.compared import Compared

LEAD = """Tables of papers with a row whose dataset and partition scheme match runs here. Each cell has the
published value, and below it ours: mean ± sample std over seeds. “+”: the target was not reached, so the
number is a lower bound."""
NOT_RUN = Markup('<span class="missing">not run</span>')


def section(c: Compared) -> Section | None:
    if not c.published:
        return None
    blocks = [block for shown in c.published if shown.measured for block in _blocks(shown)]
    others = [f"{s.table.label} ({s.source}): {s.missing}" for s in c.published if not s.measured]
    more: list[Block] = [Heading("Not measured by these runs"), Listing(others)] if others else []
    return Section("published", "Published tables", LEAD, [*blocks, *more])


def _blocks(shown: Shown) -> list[Block]:
    rows = [
        Row("", _unbroken(label) + _mark(mark), [Cell(_cell(cell)) for cell in cells], partitions)
        for label, mark, partitions, cells in shown.lines
    ]
    columns = [(name, "", "") for name in shown.table.columns]
    return [
        Heading(_unbroken(shown.table.label)),
        Text(f"{shown.source}."),
        Table(columns, rows, shown.table.unit or "", "published"),
        *([Listing(shown.footnotes, numbered=True)] if shown.footnotes else []),
        Listing(shown.notes),
    ]


def _cell(compared: ComparedCell) -> Markup:
    """The published value with ours below it."""
    cell = compared.cell
    value = Markup("<b>{}</b>" if cell.bold else "{}").format(cell.value.text) + _mark(compared.mark)
    missing = NOT_RUN if cell.comparable and not compared.ours else ""
    return value + Markup("").join(map(_ours, compared.ours)) + missing


def _ours(ours: Ours) -> Markup:
    missing = Markup('class="missing" title="{}"').format(ours.missing)
    note = ", ".join(filter(None, [ours.label, ours.note]))
    small = Markup("<small>{}</small>").format(note) if note else ""
    kind = missing if ours.missing else Markup('class="ours"')
    return Markup("<span {}>{}{}</span>").format(kind, ours.text, small)


def _mark(mark: int | None) -> Markup:
    return Markup("<sup>{}</sup>").format(mark) if mark else Markup("")


def _unbroken(label: str) -> str:
    return label.replace(" %", "\u00a0%")
