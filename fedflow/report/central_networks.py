"""The report's section on central training: networks trained on a whole data set, as references."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fedflow.errors import FedflowError
from fedflow.finished.reading import AGAIN, check_columns, check_number, read_json, read_table, reject
from fedflow.finished.run import Run
from fedflow.local.trained import MARKER
from fedflow.metrics.table import NUMBER, SHARE, UNMEASURED, in_unit
from fedflow.pictures.epochs import COLUMNS, by_epoch

ENTRIES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("name", "dataset", "model", "data_hash"), (str,)),
    **dict.fromkeys(("parameters", "epochs", "seed"), (int,)),
    **dict.fromkeys(("train_loss", "test_loss"), (float,)),
    "test_accuracy": (float, type(None)),
}
RANGES = {
    **dict.fromkeys(("parameters", "epochs", "seed"), (0, math.inf)),
    "test_accuracy": (SHARE.least, SHARE.most),
}


@dataclass(frozen=True)
class Network:
    """A central network: its ``metrics.json``, and ``epochs.csv``."""

    facts: dict[str, Any]
    epochs: pd.DataFrame

    @property
    def name(self) -> str:
        return self.facts["name"]

    @property
    def row(self) -> list[str]:
        """Its cells in the table: accuracy, losses, epochs, parameters."""
        facts = self.facts
        losses = (in_unit(facts[name], NUMBER) for name in ("test_loss", "train_loss"))
        return [self.accuracy or UNMEASURED, *losses, str(facts["epochs"]), f"{facts['parameters']:,}"]

    @property
    def accuracy(self) -> str:
        """Test accuracy in per cent; empty for regression."""
        value = self.facts["test_accuracy"]
        return "" if value is None else in_unit(value, SHARE)


def collect_networks(folder: Path) -> list[Network]:
    """The central networks below ``folder``, by name. Raises `FedflowError` for a file that is damaged."""
    return [_read(file.parent) for file in sorted(Path(folder).glob(f"*/{MARKER}"))]


def _read(folder: Path) -> Network:
    try:
        return _checked(folder)
    except FedflowError as error:
        train = f"`fedflow central {folder.name}` trains it again"
        raise FedflowError(str(error).replace(AGAIN, train)) from error


def _checked(folder: Path) -> Network:
    facts = read_json(folder / MARKER)
    for name, kinds in ENTRIES.items():
        if type(facts.get(name)) not in kinds:
            reject(folder / MARKER, f"no {name}" if name not in facts else f"{name} is {facts[name]!r:.40}")
        if kinds != (str,) and facts[name] is not None:
            check_number(folder / MARKER, name, facts[name], *RANGES.get(name, (-math.inf, math.inf)))
    table = read_table(folder / "epochs.csv", pd.read_csv, ("epoch", "train_loss", "test_loss"))
    if "test_accuracy" in table:
        read_table(folder / "epochs.csv", lambda _: table, ("test_accuracy",))
        check_columns(folder / "epochs.csv", table, {"test_accuracy": RANGES["test_accuracy"]})
    if len(table) != facts["epochs"]:
        reject(folder / "epochs.csv", f"{len(table)} rows for {facts['epochs']} epochs")
    return Network(facts, table)


def references(networks: Iterable[Network], run: Run) -> str:
    """The accuracy of the networks that were trained on the data set of this run, in one sentence."""
    same = (one for one in networks if one.facts["data_hash"] == run.metrics["data_hash"])
    shown = [f"{one.accuracy} % ({one.name}: {one.facts['model']})" for one in same if one.accuracy]
    return f"Trained centrally, on all samples, one network reaches {', '.join(shown)}." if shown else ""


def curves(networks: Iterable[Network]) -> list[dict[str, Any]]:
    """By data set: its networks, and heading and picture of every curve."""
    groups: dict[str, list[Network]] = {}
    for network in networks:
        groups.setdefault(network.facts["dataset"], []).append(network)
    found = []
    for place, (dataset, group) in enumerate(groups.items()):
        tables = {network.name: network.epochs for network in group}
        pictures = [
            (heading, by_epoch(tables, column, f"central{place}-{column}"))
            for column, (heading, _) in COLUMNS.items()
            if any(column in table for table in tables.values())
        ]
        found.append({"dataset": dataset, "networks": group, "pictures": pictures})
    return found
