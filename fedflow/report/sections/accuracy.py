"""Accuracy of all methods, and the published numbers next to it."""

from collections.abc import Sequence

from markupsafe import Markup

from fedflow.claims.matching import Accuracy, accuracies, known_data
from fedflow.finished.cells import Cell, Methods, Row, Table, metric_table
from fedflow.finished.networks import Network
from fedflow.finished.run import Run
from fedflow.finished.tables import columns, yardstick
from fedflow.metrics.table import SHARE, UNMEASURED, yardstick_first
from fedflow.report.blocks import Block, Heading, Section, Text
from fedflow.report.compared import Compared

LEAD = """Best mean of each column in bold; a bold number may still be a tie (see the findings). Click a
heading to sort by it."""
SOURCE = Markup('Published: {}. See <a href="#published">published tables</a> for what differs.')
NOTHING = "No published table matches these partitions. There are published numbers for {}."


def section(c: Compared) -> Section | None:
    blocks: list[Block] = []
    for p in c.partitions:
        published = accuracies(p.runs)
        notes = [_references(c.networks, p.runs[0]), *map(SOURCE.format, sources(published))]
        blocks += [Heading(p.name), accuracy_table(p.methods, published)]
        blocks += [Text(note, "note after") for note in notes if note]
    if c.runs and not c.published:
        blocks.append(Text(NOTHING.format(", ".join(known_data())), "note after"))
    return Section("accuracy", "Accuracy", LEAD, blocks) if blocks else None


def _references(networks: Sequence[Network], run: Run) -> str:
    """The accuracy of the networks that were trained on the dataset of this run, in one sentence."""
    same = (network for network in networks if network.facts["data_hash"] == run.metrics["data_hash"])
    shown = [f"{n.accuracy} % ({n.name}: {n.facts['model']})" for n in same if n.accuracy]
    return f"Trained centrally, on all samples, one network reaches {', '.join(shown)}." if shown else ""


def accuracy_table(methods: Methods, published: dict[str, Accuracy]) -> Table:
    """The accuracy columns (without any, the losses) and published numbers by variant, if any."""
    order = yardstick(methods)
    shown = [m for m in yardstick_first(columns("accuracy")) if m.unit is SHARE or order == "loss"]
    table = metric_table(methods, shown)
    if not published:
        return table
    rows = []
    for row in table.rows:
        cell = Cell(UNMEASURED)
        if accuracy := published.get(row.variant):
            value = accuracy.cell.value
            mean, _, spread = value.text.partition(" ")
            cell = Cell(mean, spread, f"{accuracy.cell.name}, {accuracy.metric}", value.mean)
        rows.append(Row(row.variant, row.label, [*row.cells, cell]))
    return Table([*table.columns, ("Published, %", "", "; ".join(sources(published)))], rows)


def sources(published: dict[str, Accuracy]) -> list[str]:
    """The tables of published numbers, without repetition."""
    return list(dict.fromkeys(accuracy.table for accuracy in published.values()))
