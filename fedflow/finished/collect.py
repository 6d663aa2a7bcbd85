"""Read and check the files of finished runs and of partitions. An error names the file, in one line."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedflow.errors import BadInput, FedflowError
from fedflow.files import COUNTS, finished_folders, within_partitions
from fedflow.finished.reading import (
    Kinds,
    Range,
    check_columns,
    check_entries,
    check_number,
    read_json,
    read_parquet,
    read_table,
    reject,
)
from fedflow.finished.results import MARKER
from fedflow.finished.run import Run
from fedflow.finished.variants import named
from fedflow.local.local_training import LocalTraining
from fedflow.metrics.table import METRICS, unit_of

TEXT = ("partition", "method", "method_label", "dataset", "model", "settings", "data_hash", "partition_hash")
SECTIONS = ("method", "training", "run", "model", "data", "partition")  # of params.json

ROUNDS = ("round", "global_accuracy", "local_accuracy", "bytes_down", "bytes_up", "ari")
ENTRIES: dict[str, Kinds] = {  # of every metrics.json
    **dict.fromkeys(TEXT, (str,)),
    **dict.fromkeys(("seed", "rounds", "clients"), (int,)),
    **{metric.name: (int,) for metric in METRICS.values() if metric.required},
    "parameters": (int,),
    "participation": (int, float),
    "files": (list,),
}
OPTIONAL: dict[str, Kinds] = {"division": (str,)}  # of some metrics.json
MEASURED = (int, float, type(None))  # other entries; a regression has no accuracy
RANGES: dict[str, Range] = {
    **dict.fromkeys(("rounds", "clients"), (1, math.inf)),
    **dict.fromkeys(("seed", "parameters"), (0, math.inf)),
    "participation": (0, 1),
}
WHOLE = 2**53  # whole numbers in tables are below it
OF_CLIENTS = {"samples": (0, WHOLE), "cluster": (-1, WHOLE)}  # the other columns are metrics
NOISE = ("partition.label_noise", "partition.feature_noise", "partition.transforms")  # null in older runs
NEEDED: dict[str, Kinds] = {  # entries of params.json that the page reads
    **dict.fromkeys(("method.name", "model.name", "partition.dataset", "partition.scheme"), (str,)),
    **dict.fromkeys(("training.lr", "training.epochs", "training.batch_size", "run.participation"), ()),
    "partition.parameters": (dict,),
    **dict.fromkeys(NOISE, (dict, type(None))),
}
DATA: dict[str, Kinds] = {"source": (str,), "parameters": (dict,)}  # of every dataset in it
STDS = ("intra_std", "inter_std")  # of a summary with an expert
PNG = b"\x89PNG\r\n\x1a\n"
CLIENTS = ("client", "samples", "local_accuracy", "cluster")


Labels = Mapping[str, str]  # of the names under `methods` in params.yaml


@dataclass(frozen=True)
class PartitionFacts:
    """A partition's ``summary.json``, its pictures of labels and difficulty, and its labels by client."""

    name: str
    summary: dict[str, Any]
    labels: bytes | None = None
    losses: bytes | None = None
    counts: np.ndarray | None = None  # [N, K], samples of each label at each client

    @property
    def scheme(self) -> str:
        """Name of the partition scheme, or an empty text."""
        return str((self.summary.get("params") or {}).get("scheme") or "")

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the scheme, such as ``alpha``."""
        nested = (self.summary.get("params") or {}).get("parameters")
        return nested if isinstance(nested, dict) else {}

    @property
    def difficulty(self) -> dict[str, float] | None:
        """Std of the expert's losses within and between clients, if there is an expert."""
        return self.summary.get("difficulty")


class EarlierVersion(FedflowError):
    """Results whose settings have names of an earlier version."""


def collect_runs(results_dir: Path, labels: Labels | None = None, needed: bool = True) -> list[Run]:
    """Every run below ``results_dir/<partition>/<method>/<seed>``, ordered by partition, method and seed.

    Runs outside of the grid, in ``runs`` next to it, are included; a digest of changed settings follows their
    seed. ``labels`` replace labels in the results by method, so that a new label needs no new run. Runs of an
    earlier version are left out with a warning. Raises `FedflowError` if a file is missing, truncated or
    invalid, or if runs are ``needed`` and there are none.
    """
    runs = []
    for folder in finished_folders(results_dir, 2):
        try:
            runs.append(read_run(folder))
        except EarlierVersion as error:
            warnings.warn(f"{error}: left out; delete {folder}, or run it again", stacklevel=2)
    if not runs and needed:
        raise FedflowError(f"no results found in {results_dir}; run `dvc repro` or `fedflow sweep` first")
    for run in runs:
        run.metrics["method_label"] = (labels or {}).get(run.method, run.metrics["method_label"])
    return named(sorted(runs, key=lambda run: (run.partition, run.method, run.seed)))


def collect_partitions(partitions_dir: Path, names: list[str]) -> dict[str, PartitionFacts]:
    """Facts of the named partitions in ``partitions_dir``, without missing ones."""
    facts = {}
    for name in names:
        folder = Path(partitions_dir) / within_partitions(name)
        if not (folder / "summary.json").is_file():
            continue
        labels, losses = (_picture(folder / f"{name}.png") for name in ("labels", "difficulty"))
        counts = _label_counts(folder / COUNTS)
        facts[name] = PartitionFacts(name, _summary(folder / "summary.json"), labels, losses, counts)
    return facts


def _picture(path: Path) -> bytes | None:
    if not path.is_file():
        return None
    if not (drawn := path.read_bytes()).startswith(PNG):
        reject(path, "not a PNG")
    return drawn


def _summary(path: Path) -> dict[str, Any]:
    """A partition's summary, with the entries that the page reads checked."""
    summary = read_json(path)
    for name in ("params", "sizes", "difficulty"):
        if not isinstance(summary.get(name), dict | None):
            reject(path, f"{name} is {summary[name]!r:.40}, not an object")
    for name in ("sizes", "difficulty"):
        for entry, value in (summary.get(name) or {}).items():
            check_number(path, f"{name}.{entry}", value, 0)
    stds = summary.get("difficulty")
    if absent := [name for name in STDS if stds is not None and name not in stds]:
        reject(path, f"no difficulty.{absent[0]}")
    check_number(path, "newcomers", summary.get("newcomers") or 0, 0)
    return summary


def _label_counts(path: Path) -> np.ndarray | None:
    """Samples of each label at each client [N, K], or None without labels or the file."""
    if not path.is_file():
        return None
    table = read_table(path, pd.read_csv, ("client",))
    if list(table["client"]) != list(range(len(table))):
        reject(path, "not a row per client")
    if not all(pd.api.types.is_integer_dtype(kind) for kind in table.dtypes):
        reject(path, "not of whole numbers")
    check_columns(path, table, {str(name): (0, math.inf) for name in table})
    return table.drop(columns="client").to_numpy(np.int64)


def read_run(folder: Path, facts: Mapping[str, Any] | None = None) -> Run:
    """The run whose results are in this folder.

    The folder must be named after the run, unless the ``facts`` of the run are given. Raises `FedflowError`
    if a file is missing, truncated or invalid.
    """
    if not (folder / MARKER).exists():
        raise FedflowError(
            f"the results in {folder} are incomplete: no {MARKER}, which is written last; "
            "run this experiment again"
        )
    metrics = read_json(folder / MARKER)
    if "files" not in metrics:
        raise EarlierVersion(f"{folder / MARKER}: no list of files")
    if not (folder / "params.json").exists():
        reject(folder / "params.json", "No such file: its settings are unknown")
    kinds = ENTRIES | {name: OPTIONAL.get(name, MEASURED) for name in metrics.keys() - ENTRIES.keys()}
    ranges = {name: _bounds(name) for name in kinds} | RANGES
    check_entries(folder / MARKER, metrics, kinds, ranges)
    params = _params(folder / "params.json", metrics)
    name = (metrics["partition"], metrics["method"], str(metrics["seed"]))
    names = [name, (*name[:2], f"{name[2]}-{metrics['settings'][:8]}")]
    if facts is None and folder.parts[-3:] not in names:
        reject(folder / MARKER, f"it belongs to the run {'/'.join(name)}")
    if missing := [file for file in metrics["files"] if not (folder / file).is_file()]:
        reject(folder / missing[0], "No such file")
    rounds = _rounds(folder / "rounds.csv", metrics["rounds"])
    clients = _clients(folder / "clients.parquet", metrics["clients"])
    # Results of earlier versions have no central networks.
    settings = {name: params[name] for name in SECTIONS} | {"central": params.get("central", {})}
    return Run(folder, metrics, settings, rounds, clients)


def _params(path: Path, metrics: dict[str, Any]) -> dict[str, Any]:
    """The settings, with the entries that the page reads checked."""
    params = read_json(path)
    if missing := [name for name in SECTIONS if not isinstance(params.get(name), dict)]:
        reject(path, f"no {', '.join(missing)}")
    given = {f"{section}.{name}": value for section in SECTIONS for name, value in params[section].items()}
    check_entries(path, dict.fromkeys(NOISE) | given, NEEDED)
    for name, entry in params["data"].items():
        check_entries(path, params["data"], {name: (dict,)}, within="data.")
        check_entries(path, {"parameters": {}} | entry, DATA, within=f"data.{name}.")
    try:
        LocalTraining.check_names(params["training"], "training")
    except BadInput as error:
        raise EarlierVersion(f"{path}: {error}") from error
    if params.get("settings") != metrics["settings"]:
        reject(path, "its settings differ from those of metrics.json")
    return params


def _rounds(path: Path, count: int) -> pd.DataFrame:
    """A row per round."""
    table = read_table(path, pd.read_csv, ROUNDS)
    if len(table) != count:
        reject(path, f"{len(table)} rows for {count} rounds")
    if list(table["round"]) != list(range(1, count + 1)):
        reject(path, f"column round is not 1 to {count}")
    check_columns(path, table, {str(name): _bounds(str(name)) for name in table} | {"failed": (0, WHOLE)})
    return table


def _clients(path: Path, count: int) -> pd.DataFrame:
    """A row per client that took part."""
    table = read_table(path, read_parquet, CLIENTS)
    if "newcomer" in table:
        if table["newcomer"].dtype != bool:
            reject(path, "column newcomer is not of true and false")
        table = table[~table["newcomer"]]
    if len(table) != count:
        reject(path, f"{len(table)} rows for {count} clients")
    if sorted(table["client"]) != list(range(count)):
        reject(path, f"column client is not 0 to {count - 1}")
    if empty := [name for name in OF_CLIENTS if table[name].isna().any()]:
        reject(path, f"column {empty[0]} has an empty cell")
    ranges = {metric.name: _bounds(metric.name) for metric in METRICS.values() if metric.client}
    ranges |= OF_CLIENTS | dict.fromkeys(("test_samples", "participations"), (0, WHOLE))
    check_columns(path, table, ranges)
    return table


def _bounds(name: str) -> tuple[float, float]:
    """Smallest and largest value of a metric."""
    return unit_of(name).least, unit_of(name).most
