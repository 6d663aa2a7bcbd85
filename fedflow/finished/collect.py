"""Reads and checks the files of finished runs and of partitions. An error names the file, in one line."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from fedflow.errors import BadInput, FedflowError
from fedflow.files import COUNTS, finished_folders
from fedflow.finished.reading import check_columns, check_number, read_json, read_table, reject
from fedflow.finished.results import CLIENTS, MARKER, ROUNDS, SERIES
from fedflow.finished.run import Run
from fedflow.finished.variants import named
from fedflow.heterogeneity import LINKAGES
from fedflow.local.local_training import LocalTraining
from fedflow.methods.protocols import Dissimilarity
from fedflow.metrics.table import METRICS, unit_of
from fedflow.simulation.evaluation import PREDICTIONS
from fedflow.simulation.extensions.clustering import FILE as CLUSTERS
from fedflow.simulation.extensions.clustering import MATRIX
from fedflow.simulation.extensions.predictions import FILE as PREDICTED

TEXT = ("partition", "method", "method_label", "dataset", "model", "settings", "data_hash", "partition_hash")
SECTIONS = ("method", "training", "run", "model", "data", "partition")  # of params.json

OF_ROUNDS = ("round", "global_accuracy", "local_accuracy", "bytes_down", "bytes_up", "ari")
ENTRIES: dict[str, tuple[type, ...]] = {  # of every metrics.json
    **dict.fromkeys(TEXT, (str,)),
    **dict.fromkeys(("seed", "rounds", "clients"), (int,)),
    **{metric.name: (int,) for metric in METRICS.values() if metric.required},
    "parameters": (int,),
    "participation": (int, float),
    "files": (list,),
}
MEASURED = (int, float, type(None))  # its other entries; a regression has no accuracy
RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("rounds", "clients"), (1, math.inf)),
    **dict.fromkeys(("seed", "parameters"), (0, math.inf)),
    "participation": (0, 1),
}
WHOLE = 2**53  # whole numbers in tables are below it
OF_CLIENTS = {"samples": (0, WHOLE), "cluster": (-1, WHOLE)}  # the other columns are metrics
NEEDED: dict[str, dict[str, type]] = {  # entries of params.json that the page reads
    "method": {"name": str},
    "model": {"name": str},
    "training": {"lr": object, "epochs": object, "batch_size": object},
    "run": {"participation": object},
    "partition": {"dataset": str, "scheme": str, "parameters": dict},
}
STDS = ("intra_std", "inter_std")  # of a summary with an expert
ABSENT = object()
PNG = b"\x89PNG\r\n\x1a\n"
EACH_CLIENT = ("client", "samples", "local_accuracy", "cluster")
OF_SERIES = ("round", "client", "value")  # besides the name


Labels = Mapping[str, str]  # of the names under `methods` in params.yaml


@dataclass(frozen=True)
class PartitionFacts:
    """A partition's ``summary.json``, its pictures of labels and of difficulty, its labels by client."""

    name: str
    summary: dict[str, Any]
    labels: bytes | None = None
    losses: bytes | None = None
    counts: np.ndarray | None = None  # [N, K], samples of each label at each client

    @property
    def scheme(self) -> str:
        """Name of the partition scheme; empty if the summary does not have it."""
        return str((self.summary.get("params") or {}).get("scheme") or "")

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the scheme, such as ``alpha``."""
        params = self.summary.get("params") or {}
        nested = params.get("parameters")
        return dict(nested) if isinstance(nested, dict) else {}

    @property
    def difficulty(self) -> dict[str, float] | None:
        """Stds of the expert's losses within and between clients, if there is an expert."""
        return self.summary.get("difficulty")


class EarlierVersion(FedflowError):
    """Results whose settings have names of an earlier version."""


def collect_runs(results_dir: Path, labels: Labels | None = None, needed: bool = True) -> list[Run]:
    """Every run under ``results_dir/<partition>/<method>/<seed>``, ordered by partition, method and seed.

    And every run that the grid does not have, in ``runs`` next to it. A digest of the settings follows the
    seed if they are not those of params.yaml. ``labels`` replace those in the results, by method: a new label
    needs no new run. Runs of an earlier version are left out with a warning. Raises `FedflowError` if a file
    is missing, truncated or invalid, and if there are no runs, unless none is ``needed``.
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
    """The facts of the named partitions found in ``partitions_dir``; missing ones are left out."""
    found = {}
    for name in names:
        folder = Path(partitions_dir) / name
        if not (folder / "summary.json").is_file():
            continue
        pictures = [folder / "labels.png", folder / "difficulty.png"]
        labels, losses = (_picture(picture) if picture.is_file() else None for picture in pictures)
        counts = _label_counts(folder / COUNTS)
        found[name] = PartitionFacts(name, _summary(folder / "summary.json"), labels, losses, counts)
    return found


def _picture(path: Path) -> bytes:
    if not (drawn := path.read_bytes()).startswith(PNG):
        reject(path, "not a PNG")
    return drawn


def _summary(path: Path) -> dict[str, Any]:
    """A partition's summary; what it has of the entries that the page reads is as they are written."""
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
    """Samples of each label at each client [N, K]; None without labels, or without the file."""
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

    Its name must be that of the run, unless the ``facts`` of the run are given. Raises `FedflowError` if a
    file is missing, truncated or invalid.
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
    _check_metrics(folder / MARKER, metrics)
    params = _params(folder / "params.json", metrics)
    place, seed = (metrics["partition"], metrics["method"]), str(metrics["seed"])
    names = [(*place, seed), (*place, f"{seed}-{metrics['settings'][:8]}")]
    if facts is None and folder.parts[-3:] not in names:
        reject(folder / MARKER, f"it belongs to the run {'/'.join(names[0])}")
    if missing := [name for name in metrics["files"] if not (folder / name).is_file()]:
        reject(folder / missing[0], "No such file")
    rounds = _rounds(folder / ROUNDS, metrics["rounds"])
    clients = _clients(folder / CLIENTS, metrics["clients"])
    clusters = read_json(folder / CLUSTERS)
    history = clusters.get("history")
    if not isinstance(history, list) or not all(_is_step(step, metrics["clients"]) for step in history):
        reject(folder / CLUSTERS, f"each entry of history needs a round and {metrics['clients']} assignments")
    groups = clusters.get("groups")
    if groups is not None and not _is_assignment(groups, metrics["clients"]):
        reject(folder / CLUSTERS, f"groups needs {metrics['clients']} whole numbers, or null")
    compared = _dissimilarity(folder, clusters.get("proximity"), len(clients))
    settings = {name: params[name] for name in SECTIONS} | {"central": params.get("central", {})}
    stable = clusters.get("stable_cluster_ids")
    if type(stable) is not bool:
        reject(folder / CLUSTERS, "stable_cluster_ids needs true or false")
    series = pd.DataFrame(columns=[*OF_SERIES, "name"])
    if SERIES in metrics["files"]:
        series = _series(folder / SERIES, metrics["rounds"], metrics["clients"])
    if PREDICTED in metrics["files"]:  # its rows are many, and read when they are used
        read_table(folder / PREDICTED, _header, PREDICTIONS)
    return Run(folder, metrics, settings, rounds, clients, groups, history, series, compared, stable)


def _params(path: Path, metrics: dict[str, Any]) -> dict[str, Any]:
    """The settings, with what the page reads of them."""
    params = read_json(path)
    if missing := [name for name in SECTIONS if not isinstance(params.get(name), dict)]:
        reject(path, f"no {', '.join(missing)}")
    for section, needed in NEEDED.items():
        for name, kind in needed.items():
            _check_entry(path, f"{section}.{name}", params[section].get(name, ABSENT), kind)
    _check_entry(path, "partition.label_noise", params["partition"].get("label_noise"), dict | None)
    for name, entry in params["data"].items():
        _check_entry(path, f"data.{name}", entry, dict)
        _check_entry(path, f"data.{name}.source", entry.get("source", ABSENT), str)
        _check_entry(path, f"data.{name}.parameters", entry.get("parameters", {}), dict)
    try:
        LocalTraining.check_names(params["training"], "training")
    except BadInput as error:
        raise EarlierVersion(f"{path}: {error}") from error
    if params.get("settings") != metrics["settings"]:
        reject(path, "its settings differ from those of metrics.json")
    return params


def _check_entry(path: Path, name: str, value: Any, kind: type | UnionType) -> None:
    """Reject an entry that is absent, or of another kind."""
    if value is ABSENT:
        reject(path, f"no {name}")
    if not isinstance(value, kind):
        reject(path, f"{name} is {value!r:.40}")


def _rounds(path: Path, count: int) -> pd.DataFrame:
    """A row per round."""
    table = read_table(path, pd.read_csv, OF_ROUNDS)
    table = read_table(path, lambda _: table, [str(name) for name in table])
    if len(table) != count:
        reject(path, f"{len(table)} rows for {count} rounds")
    if list(table["round"]) != list(range(1, count + 1)):
        reject(path, f"column round is not 1 to {count}")
    known = {str(name): _bounds(str(name)) for name in table}
    check_columns(path, table, known | ({"failed": (0, WHOLE)} if "failed" in table else {}))
    return table


def _clients(path: Path, count: int) -> pd.DataFrame:
    """A row per client that took part."""
    table = read_table(path, pd.read_parquet, EACH_CLIENT)
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
    ranges = {name: own for name, own in ranges.items() if name in table}
    read_table(path, lambda _: table, ranges)
    check_columns(path, table, ranges)
    return table


def _bounds(name: str) -> tuple[float, float]:
    """Smallest and largest value of a metric."""
    return unit_of(name).least, unit_of(name).most


def _series(path: Path, rounds: int, clients: int) -> pd.DataFrame:
    """The table of series."""
    table = read_table(path, pd.read_parquet, OF_SERIES)
    if "name" not in table:
        reject(path, "no column name")
    if not (table["round"].between(1, rounds) & table["client"].between(0, clients - 1)).all():
        reject(path, f"not of {rounds} rounds and {clients} clients")
    return table


def _header(path: Path) -> pd.DataFrame:
    """The table without its rows."""
    return pq.read_schema(path).empty_table().to_pandas()


def _dissimilarity(folder: Path, about: Any, clients: int) -> Dissimilarity | None:
    """``proximity.parquet``, with its description ``about`` in ``clusters.json``; None without one."""
    if about is None:
        return None
    path, described = folder / MATRIX, folder / CLUSTERS
    table = read_table(path, pd.read_parquet, ())
    table = read_table(path, lambda _: table, [str(name) for name in table])
    named = set(table.index) <= set(range(clients)) and [str(k) for k in table.index] == list(table)
    if not named or not np.isfinite(table.to_numpy(float)).all():
        reject(path, "not a matrix of finite numbers with a row and a column per client")
    if not isinstance(about, dict) or not all(isinstance(about.get(n), str) for n in ("unit", "linkage")):
        reject(described, "proximity needs a unit, a linkage and a height")
    if about["linkage"] not in LINKAGES:
        reject(described, f"proximity.linkage is {about['linkage']!r:.40}, not one of {', '.join(LINKAGES)}")
    for name in ("height", "decomposition_error"):
        if about.get(name) is not None:
            check_number(described, f"proximity.{name}", about[name], 0)
    try:
        return Dissimilarity(table.to_numpy(float), table.index.tolist(), **about)
    except TypeError:
        reject(described, "proximity needs a unit, a linkage and a height")


def _check_metrics(path: Path, metrics: dict[str, Any]) -> None:
    """Reject missing entries and those of other types; a metric that is absent or null was not measured."""
    accepted = ENTRIES | dict.fromkeys(metrics.keys() - ENTRIES.keys(), MEASURED)
    if missing := [name for name in ENTRIES if name not in metrics]:
        reject(path, f"no {', '.join(missing)}")
    for name, kinds in accepted.items():
        if type(metrics[name]) not in kinds:
            words = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)
            reject(path, f"{name} is {metrics[name]!r:.40}, not {words}")
        if kinds not in ((str,), (list,)) and metrics[name] is not None:
            check_number(path, name, metrics[name], *RANGES.get(name, _bounds(name)))


def _is_step(step: Any, clients: int) -> bool:
    known = isinstance(step, dict) and type(step.get("round")) is int and step["round"] >= 0
    return known and _is_assignment(step.get("assignment"), clients)


def _is_assignment(value: Any, clients: int) -> bool:
    whole = isinstance(value, list) and len(value) == clients and all(type(item) is int for item in value)
    return whole and all(-1 <= item < WHOLE for item in value)
