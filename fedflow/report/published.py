"""Published numbers for the partitions and methods that match ours, and notes on what differs."""

import json
import math
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from fedflow.report.collect import PartitionFacts
from fedflow.report.run import Run

WORDS = {"global": "global", "local_final": "local, last trained"}


@dataclass(frozen=True)
class Published:
    """Published accuracies of one partition, in percent: our method -> (mean, std, metric, their name)."""

    label: str
    source: str
    values: dict[str, tuple[float, float, str, str]]
    notes: list[str] = field(default_factory=list)


def published_for(runs: list[Run], partition: PartitionFacts | None) -> Published | None:
    """The published table with the same dataset, scheme and scheme parameters as ``runs``, or None.

    ``runs`` are all runs of one partition. Methods without a published number are left out of ``values``.
    """
    if partition is None:
        return None
    book, dataset = _book(), _plain(runs[0].metrics["dataset"])
    dataset = {"fashionmnist": "fmnist"}.get(dataset, dataset)
    for table in book["tables"]:
        if dataset in table["values"] and _same_scheme(table, partition):
            values = _values(book, table["values"][dataset], {run.method for run in runs})
            label, source = table["label"], f"{table['source']} of {book['source']}"
            return Published(label, source, values, _notes(book, table, dataset, runs)) if values else None
    return None


def _values(book: dict, row: dict, methods: set[str]) -> dict[str, tuple[float, float, str, str]]:
    found = {}
    for name, (mean, std) in row.items():
        entry = book["methods"][name]
        for method in methods:
            if _plain(method) in entry["names"]:
                found[method] = (mean, std, WORDS[entry["metric"]], name)
    return found


def _notes(book: dict, table: dict, dataset: str, runs: list[Run]) -> list[str]:
    theirs, ours = book["settings"], runs[0].metrics
    model = theirs["model"][dataset]
    pairs = [
        ("clients", ours["clients"], theirs["clients"]),
        ("participation", f"{ours['participation']:g}", f"{theirs['participation']:g}"),
        ("rounds", ours["rounds"], theirs["rounds"]),
        ("network", ours["model"], model),
        ("seeds", len({run.seed for run in runs}), 3),
        ("local epochs", _values_of(runs, "epochs"), theirs["epochs"]),
        ("batch size", _values_of(runs, "batch_size"), theirs["batch_size"]),
    ]
    differ = [f"{name} {a} here, {b} there" for name, a, b in pairs if _plain(str(a)) != _plain(str(b))]
    settings = (
        f"Published settings: {theirs['clients']} clients, participation {theirs['participation']:g}, "
        f"{theirs['rounds']} rounds, {theirs['epochs']} local epochs, batch size {theirs['batch_size']}, "
        f"{model}."
    )
    caveat = table.get("caveat", {}).get(dataset)
    return [
        settings,
        f"Differences: {'; '.join(differ)}."
        if differ
        else "Clients, participation, rounds, network, seeds, local epochs and batch size agree.",
        f"Our learning rates: {_values_of(runs, 'lr')}.",
        f"Global = {book['metrics']['global']}. Local, last trained = {book['metrics']['local_final']}. "
        "Compare a published number only with our column of the same name.",
        *([f"Caution: {caveat}."] if caveat else []),
    ]


def _values_of(runs: list[Run], name: str) -> str:
    """Every value that a setting of local training has in these runs."""
    return " or ".join(f"{value:g}" for value in sorted({run.params["training"][name] for run in runs}))


def _same_scheme(table: dict[str, Any], partition: PartitionFacts) -> bool:
    def same(name: str, wanted: float) -> bool:
        value = partition.parameters.get(name)
        return isinstance(value, int | float) and math.isclose(value, wanted)

    return partition.scheme == table["scheme"] and all(same(*item) for item in table["params"].items())


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


@cache
def _book() -> dict[str, Any]:
    return json.loads(files("fedflow.report").joinpath("published.json").read_text(encoding="utf-8"))
