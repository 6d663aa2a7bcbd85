"""Central networks, which were trained on a whole dataset, read and checked."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fedflow.errors import FedflowError
from fedflow.finished.reading import AGAIN, check_columns, check_entries, read_json, read_table, reject
from fedflow.local.trained import MARKER
from fedflow.metrics.table import SHARE, in_unit

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
    """A central network: its ``metrics.json`` and ``epochs.csv``."""

    facts: dict[str, Any]
    epochs: pd.DataFrame

    @property
    def name(self) -> str:
        return self.facts["name"]

    @property
    def accuracy(self) -> str:
        """Test accuracy in percent, or an empty text for regression."""
        value = self.facts["test_accuracy"]
        return "" if value is None else in_unit(value, SHARE)


def collect_networks(folder: Path) -> list[Network]:
    """The central networks below ``folder`` by name. Raises `FedflowError` for a damaged file."""
    return [_read(file.parent) for file in sorted(Path(folder).glob(f"*/{MARKER}"))]


def _read(folder: Path) -> Network:
    try:
        return _checked(folder)
    except FedflowError as error:
        train = f"`fedflow central {folder.name}` trains it again"
        raise FedflowError(str(error).replace(AGAIN, train)) from error


def _checked(folder: Path) -> Network:
    facts = read_json(folder / MARKER)
    check_entries(folder / MARKER, facts, ENTRIES, RANGES)
    table = read_table(folder / "epochs.csv", pd.read_csv, ("epoch", "train_loss", "test_loss"))
    check_columns(folder / "epochs.csv", table, {"test_accuracy": RANGES["test_accuracy"]})
    if len(table) != facts["epochs"]:
        reject(folder / "epochs.csv", f"{len(table)} rows for {facts['epochs']} epochs")
    return Network(facts, table)
