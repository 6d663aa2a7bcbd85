"""Read and check the files of finished runs and of partitions. An error names the file, in one line."""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedflow.errors import BadInput, FedflowError
from fedflow.files import CHANGED, COUNTS, PARTIAL, finished_folders, within_partitions
from fedflow.finished.reading import (
    Joined,
    Kinds,
    Range,
    check_columns,
    check_entries,
    check_number,
    check_present,
    csv_together,
    parquet_together,
    read_csv,
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
from fedflow.project.identity import UNRECORDED

TEXT = ("partition", "method", "method_label", "dataset", "model", "settings", "data_hash", "partition_hash")
SECTIONS = ("method", "training", "run", "model", "data", "partition")  # of params.json

ROUNDS = ("round", "global_accuracy", "local_accuracy", "bytes_down", "bytes_up", "ari")
FILLED = ("bytes_down", "bytes_up", "failed")  # in every round
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


TOGETHER = 256  # tables that are parsed at once, which bounds the memory

Described = dict[Path, tuple[dict[str, Any], dict[str, Any]]]  # metrics and settings by folder
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


def collect_runs(
    results_dir: Path, labels: Labels | None = None, needed: bool = True, grid: bool = False
) -> list[Run]:
    """Every run below ``results_dir/<partition>/<method>/<seed>``, ordered by partition, method and seed.

    Runs outside of the grid, in ``runs`` next to it, are included unless ``grid``; a digest of changed
    settings follows their seed. ``labels`` replace labels in the results by method, so that a new label needs
    no new run. Runs of an earlier version are left out with a warning. Raises `FedflowError` if a file is
    missing, truncated or invalid, or if runs are ``needed`` and there are none.
    """
    described: Described = {}
    for folder in finished_folders(results_dir, 2):
        begun = all(file.name in (PARTIAL, UNRECORDED) for file in folder.iterdir())  # killed before its end
        if begun or (grid and folder.parts[-4] == CHANGED):
            continue
        try:
            described[folder] = _described(folder)
        except EarlierVersion as error:
            warnings.warn(f"{error}: left out; delete {folder}, or run it again", stacklevel=2)
    if not described and needed:
        raise FedflowError(f"no results found in {results_dir}; run `dvc repro` or `fedflow sweep` first")
    runs = _read(described)
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
    return _read({folder: _described(folder, facts)})[0]


def _described(folder: Path, facts: Mapping[str, Any] | None = None) -> tuple[dict, dict]:
    """``metrics.json`` and the settings of a run; ``facts`` as for `read_run`."""
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
    # Results of earlier versions have no central networks.
    return metrics, {name: params[name] for name in SECTIONS} | {"central": params.get("central", {})}


def _read(described: Described) -> list[Run]:
    """Add their tables to runs."""
    facts = {folder: metrics for folder, (metrics, _) in described.items()}
    rounds = {folder / "rounds.csv": metrics["rounds"] for folder, metrics in facts.items()}
    clients = {folder / "clients.parquet": metrics["clients"] for folder, metrics in facts.items()}
    tables = zip(
        _tables(rounds, csv_together, read_csv, _rounds),
        _tables(clients, parquet_together, read_parquet, _clients),
        strict=True,
    )
    return [Run(folder, *described[folder], *pair) for folder, pair in zip(described, tables, strict=True)]


def _tables(
    counts: dict[Path, int],
    together: Callable[[Iterable[Path]], Iterator[Joined]],
    read: Callable[[Path], pd.DataFrame],
    check: Callable[[Path, pd.DataFrame, list[int], list[int]], pd.DataFrame],
) -> Iterator[pd.DataFrame]:
    """The tables at the paths of ``counts``, with the numbers of rows that `check` expects.

    Parsing one long table is ten times as fast as parsing many short ones. If one is damaged, all are read
    one by one, so that the error names the file.
    """
    for first in range(0, len(counts), TOGETHER):
        some = dict(islice(counts.items(), first, first + TOGETHER))
        tables: dict[Path, pd.DataFrame] = {}
        try:
            for paths, joined, rows in together(some):
                expected = [some[path] for path in paths]
                table, last = check(paths[0], joined, rows, expected), 0
                for path, count in zip(paths, expected, strict=True):
                    tables[path] = table.iloc[last : last + count]
                    tables[path].index = pd.RangeIndex(count)
                    last += count
        except (FedflowError, OSError, ValueError):
            for path, count in some.items():
                table = read_table(path, read)
                tables[path] = check(path, table, [len(table)], [count])
        yield from (tables[path] for path in some)


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


def _rounds(path: Path, table: pd.DataFrame, rows: list[int], counts: list[int]) -> pd.DataFrame:
    """Check tables of ``rows`` rows, one below the other: a row per round."""
    check_present(path, table, ROUNDS)
    if rows != counts:
        reject(path, f"{len(table)} rows for {sum(counts)} rounds")
    if list(table["round"]) != [number for count in counts for number in range(1, count + 1)]:
        reject(path, f"column round is not 1 to {counts[0]}")
    _check_filled(path, table, FILLED)
    check_columns(path, table, {str(name): _bounds(str(name)) for name in table} | {"failed": (0, WHOLE)})
    return table


def _clients(path: Path, table: pd.DataFrame, rows: list[int], counts: list[int]) -> pd.DataFrame:
    """Check tables of ``rows`` rows, one below the other; returns a row per client that took part."""
    check_present(path, table, CLIENTS)
    of = np.repeat(np.arange(len(rows)), rows)
    if "newcomer" in table:
        if table["newcomer"].dtype != bool:
            reject(path, "column newcomer is not of true and false")
        kept = ~table["newcomer"].to_numpy()
        table, of = table[kept], of[kept]
    if np.bincount(of, minlength=len(rows)).tolist() != counts:
        reject(path, f"{len(table)} rows for {sum(counts)} clients")
    clients = table["client"].to_numpy(float)
    if clients[np.lexsort((clients, of))].tolist() != [number for count in counts for number in range(count)]:
        reject(path, f"column client is not 0 to {counts[0] - 1}")
    _check_filled(path, table, OF_CLIENTS)
    ranges = {metric.name: _bounds(metric.name) for metric in METRICS.values() if metric.client}
    ranges |= OF_CLIENTS | dict.fromkeys(("test_samples", "participations"), (0, WHOLE))
    check_columns(path, table, ranges)
    return table


def _check_filled(path: Path, table: pd.DataFrame, names: Iterable[str]) -> None:
    """Reject a table with an empty cell in one of these columns, as far as it has them."""
    if empty := [name for name in names if name in table and table[name].isna().any()]:
        reject(path, f"column {empty[0]} has an empty cell")


def _bounds(name: str) -> tuple[float, float]:
    """Smallest and largest value of a metric."""
    return unit_of(name).least, unit_of(name).most
