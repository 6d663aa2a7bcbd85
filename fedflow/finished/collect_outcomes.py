"""Outcomes of procedures, read, checked, and turned into rows that are compared like runs."""

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd

from fedflow.files import CHANGED, finished_folders
from fedflow.finished.outcomes import MARKER, PARAMS, STEPS, SUMMARY, read_parts
from fedflow.finished.reading import check_columns, check_entries, read_json, read_table, reject
from fedflow.finished.run import Run
from fedflow.finished.tables import MOMENTS, by_method, moments, stat, write_csv
from fedflow.finished.variants import differences
from fedflow.metrics.table import SHARE
from fedflow.naming import flat, say
from fedflow.procedures import PROCEDURES, Column, Procedure
from fedflow.project.identity import UNRECORDED

ENTRIES: dict[str, tuple[type, ...]] = {  # of every metrics.json
    **dict.fromkeys(("procedure", "registered", "label", "settings"), (str,)),
    **dict.fromkeys(("seed", "steps"), (int,)),
    **dict.fromkeys(("inputs", "metrics"), (dict,)),
}
Entries = Mapping[str, tuple[str, str]]  # registered procedure and label by entry of `procedures`


@dataclass(frozen=True)
class Outcome:
    """The outcome of a procedure with one seed: its folder, ``metrics.json``, settings, summary and steps.

    Outcomes of one ``variant`` of an entry have the same settings and inputs, and are averaged over seeds.
    """

    folder: Path
    facts: dict[str, Any]
    params: dict[str, Any]
    summary: pd.DataFrame  # by row; NaN: not measured
    steps: pd.DataFrame  # part, step and the columns of its rows
    label: str
    variant: str = ""  # empty: the settings of params.yaml
    repeated: str = ""  # another folder with the same settings, inputs and seed, which is not shown

    @property
    def entry(self) -> str:
        """The name under ``procedures``."""
        return self.facts["procedure"]

    @property
    def seed(self) -> int:
        return self.facts["seed"]

    @property
    def rows(self) -> list[Run]:
        """The rows of the summary as runs of methods on the partition ``entry``."""
        facts = {name: self.facts[name] for name in ("seed", "settings")} | {"partition": self.entry}
        names = [str(row) or self.entry for row in self.summary.index]
        rounds, clients, runs = pd.DataFrame({"round": []}), pd.DataFrame(), []
        for row, (_, values) in zip(names, self.summary.iterrows(), strict=True):
            metrics = {str(name): None if pd.isna(value) else value for name, value in values.items()}
            metrics |= facts | {"method": row, "method_label": row}
            label = f"{row} · {self.variant}" if self.variant else row
            runs.append(Run(self.folder, metrics, self.params, rounds, clients, label, label))
        return runs


def collect_outcomes(folder: Path, entries: Entries | None = None, grid: bool = False) -> list[Outcome]:
    """Every outcome below ``folder/<entry>/<seed>``, and in ``runs`` next to it, by entry, variant and seed.

    With ``grid``, without ``runs``. Labels of ``entries`` replace labels in the outcomes. Raises
    `FedflowError` for missing or damaged files.
    """
    # runs/<partition>/<method> looks like an outcome if the method's name is a number
    folders = [f for f in finished_folders(folder, 1) if not grid or f.parts[-3] != CHANGED]
    folders = [f for f in folders if any(e.is_file() and e.name != UNRECORDED for e in f.iterdir())]
    outcomes = sorted(map(_read, folders), key=lambda o: (o.entry, o.folder.name))
    labels = {name: label for name, (_, label) in (entries or {}).items()}
    named = [replace(outcome, label=labels.get(outcome.entry, outcome.label)) for outcome in outcomes]
    by_entry = groupby(named, lambda outcome: outcome.entry)
    return [outcome for _, group in by_entry for outcome in _varied(list(group))]


def _read(folder: Path) -> Outcome:
    if not (folder / MARKER).exists():
        reject(folder / MARKER, "No such file: the outcome is incomplete, as this file is written last")
    facts = read_json(folder / MARKER)
    check_entries(folder / MARKER, facts, ENTRIES, dict.fromkeys(("seed", "steps"), (0, math.inf)))
    if not all(isinstance(digest, str) for digest in facts["inputs"].values()):
        reject(folder / MARKER, "inputs needs a text for every name")
    seed = str(facts["seed"])
    if folder.parts[-2:] not in [(facts["procedure"], s) for s in (seed, f"{seed}-{facts['settings'][:8]}")]:
        reject(folder / MARKER, f"it belongs to the outcome {facts['procedure']}/{seed}")
    params = read_json(folder / PARAMS)
    if not isinstance(params.get("procedure"), dict) or not isinstance(params.get("data"), dict):
        reject(folder / PARAMS, "no procedure, or no data")
    if params["procedure"].get("name") != facts["registered"]:
        reject(folder / PARAMS, f"its procedure is not {facts['registered']}")
    summary = read_table(folder / SUMMARY, read_parts, words=["row"])
    if summary["row"].duplicated().any():
        reject(folder / SUMMARY, "a row twice")
    columns, most = PROCEDURES.get(facts["registered"], Procedure), sys.float_info.max
    summary = summary.set_index("row")
    check_columns(folder / SUMMARY, summary, _ranges(summary.columns, columns.metrics, most))
    steps = read_table(folder / STEPS, read_parts, words=["part"])
    if "step" not in steps or (steps["step"].max() if len(steps) else 0) != facts["steps"]:
        reject(folder / STEPS, f"not of {facts['steps']} steps")
    check_columns(folder / STEPS, steps, _ranges(steps.columns.drop("part"), columns.curves, math.inf))
    return Outcome(folder, facts, params, summary, steps, facts["label"])


def _ranges(
    names: Iterable[str], columns: Mapping[str, Column], largest: float
) -> dict[str, tuple[float, float]]:
    """Ranges of columns: 0 to 1 for shares, up to ``largest`` for other numbers."""
    shares = {name for name in names if name in columns and columns[name].unit == SHARE.sign}
    return {name: (0, 1) if name in shares else (-largest, largest) for name in names}


def _varied(outcomes: list[Outcome]) -> Iterator[Outcome]:
    """The outcomes of one entry with their variants, the settings of params.yaml first."""
    by_identity: dict[tuple, dict[int, Outcome]] = {}
    for new in outcomes:  # of two with one seed, the folder without a digest is the first
        seeds = by_identity.setdefault((new.facts["settings"], *sorted(new.facts["inputs"].items())), {})
        first = seeds.get(new.seed)
        seeds[new.seed] = replace(first, repeated=new.folder.name) if first else new
    groups = [list(seeds.values()) for seeds in by_identity.values()]
    groups.sort(key=lambda group: (-sum(o.folder.name == str(o.seed) for o in group), -len(group)))
    theirs = _settings(groups[0][0])
    for i, group in enumerate(groups):
        words = [say(*item) for item in differences(_settings(group[0]), theirs, {}).items()]
        variant = (", ".join(words) or group[0].facts["settings"][:8]) if i else ""
        yield from (replace(outcome, variant=variant) for outcome in sorted(group, key=lambda o: o.seed))


def _settings(outcome: Outcome) -> dict[str, Any]:
    """Settings that distinguish outcomes of one entry by dotted name; parameters have no section."""
    flat_params = flat({name: v for name, v in outcome.params.items() if name not in ("seed", "settings")})
    plain = {name.removeprefix("procedure."): value for name, value in flat_params.items()}
    return plain | {f"{name}_hash": value[:8] for name, value in outcome.facts["inputs"].items()}


def by_variant(outcomes: Iterable[Outcome]) -> list[list[Outcome]]:
    """Outcomes by entry and variant; the outcomes of a group differ in their seeds."""
    return [
        list(group) for _, group in groupby(outcomes, key=lambda outcome: (outcome.entry, outcome.variant))
    ]


def write_outcomes(outcomes: Sequence[Outcome], out_dir: Path) -> None:
    """Write ``outcomes.csv``, a row per entry, variant, row and metric; or remove it."""
    path, rows = out_dir / "outcomes.csv", []
    for seeds in by_variant(outcomes):
        metrics = dict.fromkeys(str(name) for outcome in seeds for name in outcome.summary)
        for runs in by_method([row for outcome in seeds for row in outcome.rows]).values():
            for metric in metrics:
                names = (seeds[0].entry, seeds[0].variant, runs[0].settings, runs[0].method, metric)
                rows.append(names + moments(stat(runs, metric)))
    if rows:
        columns = ["procedure", "variant", "settings", "row", "metric", *MOMENTS]
        write_csv(pd.DataFrame(rows, columns=columns), path)
    else:
        path.unlink(missing_ok=True)
