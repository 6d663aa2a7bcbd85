"""The accuracy table of the page, and the published numbers next to it."""

from fedflow.claims.matching import Accuracy
from fedflow.finished.cells import Cell, Methods, Row, Table, metric_table
from fedflow.finished.tables import columns, yardstick
from fedflow.metrics.table import SHARE, UNMEASURED, yardstick_first


def accuracy_table(methods: Methods, published: dict[str, Accuracy]) -> Table:
    """The accuracy columns, or the losses without any, and published numbers by variant, if any."""
    order = yardstick(methods)
    shown = [m for m in yardstick_first(columns("accuracy")) if m.unit is SHARE or order == "loss"]
    table = metric_table(methods, shown)
    if not published:
        return table
    rows = []
    for row in table.rows:
        cell = Cell(UNMEASURED)
        if known := published.get(row.variant):
            mean, _, spread = known.cell.value.text.partition(" ")
            note = f"{known.cell.name}, {known.metric}"
            cell = Cell(mean, spread, note, known.cell.value.mean)
        rows.append(Row(row.variant, row.label, [*row.cells, cell]))
    return Table([*table.columns, ("Published, %", "", "; ".join(sources(published)))], rows)


def sources(published: dict[str, Accuracy]) -> list[str]:
    """The tables that published numbers are from, each once."""
    return list(dict.fromkeys(known.table for known in published.values()))
