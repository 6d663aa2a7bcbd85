"""Central training, as a reference."""

from collections.abc import Sequence

from fedflow.finished.cells import Cell, Row, Table
from fedflow.finished.networks import Network
from fedflow.metrics.table import NUMBER, UNMEASURED, in_unit
from fedflow.pictures.steps import COLUMNS, by_epoch
from fedflow.report.blocks import Block, Drawing, Heading, Panels, Section
from fedflow.report.compared import Compared

LEAD = """One network trained on all training samples, without clients: a reference for federated training, a
teacher, or an expert. Accuracy and test loss are on the complete test set; the training loss is of the last
epoch, with smoothed labels if the settings have them."""
HEADS = ("Test accuracy, %", "Test loss", "Training loss", "Epochs", "Parameters")


def section(c: Compared) -> Section | None:
    groups: dict[str, list[Network]] = {}
    for network in c.networks:
        groups.setdefault(network.facts["dataset"], []).append(network)
    blocks = [
        block
        for i, (dataset, group) in enumerate(groups.items())
        for block in (Heading(dataset), _table(group), _curves(group, f"central{i}"))
    ]
    return Section("central", "Central training", LEAD, blocks) if blocks else None


def _table(networks: Sequence[Network]) -> Block:
    rows = []
    for network in networks:
        facts = network.facts
        losses = (in_unit(facts[name], NUMBER) for name in ("test_loss", "train_loss"))
        texts = [network.accuracy or UNMEASURED, *losses, str(facts["epochs"]), f"{facts['parameters']:,}"]
        cells = [Cell(text, sort=text.replace(",", "")) for text in texts]
        rows.append(Row("", network.name, cells, f"{facts['model']}, seed {facts['seed']}"))
    return Table([(name, "", "") for name in HEADS], rows, "Network")


def _curves(networks: Sequence[Network], key: str) -> Block:
    tables = {network.name: network.epochs for network in networks}
    return Panels(
        [
            Drawing(heading, by_epoch(tables, column, f"{key}-{column}"))
            for column, (heading, _) in COLUMNS.items()
            if any(column in table for table in tables.values())
        ]
    )
