"""Outcomes of procedures: read, checked, as rows that are compared like runs, and on the page."""

import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from fedflow.claims.measures import as_metric
from fedflow.errors import FedflowError
from fedflow.files import finished_folders
from fedflow.finished.cells import Table, metric_table
from fedflow.finished.outcomes import MARKER, PARAMS, STEPS, SUMMARY, read_parts
from fedflow.finished.reading import check_columns, check_number, read_json, read_table, reject
from fedflow.finished.run import Run
from fedflow.finished.tables import by_method, stat, write_csv
from fedflow.finished.variants import defaults_of, differences
from fedflow.metrics.table import SHARE, UNMEASURED
from fedflow.naming import flat, say, text
from fedflow.pictures.drawing import inlined
from fedflow.pictures.foreign import LARGEST
from fedflow.pictures.steps import FEW, by_step
from fedflow.procedures import PROCEDURES, Column, Procedure
from fedflow.procedures.catalogue import describe

ENTRIES: dict[str, tuple[type, ...]] = {  # of every metrics.json
    **dict.fromkeys(("procedure", "registered", "label", "settings"), (str,)),
    **dict.fromkeys(("seed", "steps"), (int,)),
    **dict.fromkeys(("inputs", "metrics"), (dict,)),
}
Entries = Mapping[str, tuple[str, str]]  # under `procedures`: the registered procedure, and the label
WIDE = 400  # points, from which on a picture has a row of the page
SHORT = 20  # rows of the longest table that the page shows


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
        """The rows of the summary as runs: on the partition ``entry``, each is a method."""
        facts = {name: self.facts[name] for name in ("seed", "settings")} | {"partition": self.entry}
        names = [str(row) or self.entry for row in self.summary.index]
        return [
            Run(
                self.folder,
                {str(name): None if pd.isna(value) else value for name, value in own.items()}
                | facts
                | {"method": row, "method_label": row},
                self.params,
                pd.DataFrame({"round": []}),
                pd.DataFrame(),
                None,
                [],
                variant=f"{row} · {self.variant}" if self.variant else row,
                label=f"{row} · {self.variant}" if self.variant else row,
            )
            for row, (_, own) in zip(names, self.summary.iterrows(), strict=True)
        ]


def collect_outcomes(folder: Path, entries: Entries | None = None) -> list[Outcome]:
    """Every outcome below ``folder/<entry>/<seed>``, and in ``runs`` next to it, by entry, variant and seed.

    Labels of ``entries`` replace those in the outcomes. Raises `FedflowError` for missing or damaged files.
    """
    found = [_read(each) for each in finished_folders(folder, 1)]
    labels = {name: label for name, (_, label) in (entries or {}).items()}
    named = [replace(one, label=labels.get(one.entry, one.label)) for one in found]
    by_entry = groupby(sorted(named, key=lambda one: (one.entry, one.folder.name)), lambda one: one.entry)
    return [one for _, group in by_entry for one in _varied(list(group))]


def _read(folder: Path) -> Outcome:
    if not (folder / MARKER).exists():
        reject(folder / MARKER, "No such file: the outcome is incomplete, as this file is written last")
    facts = read_json(folder / MARKER)
    for name, kinds in ENTRIES.items():
        if type(facts.get(name)) not in kinds:
            reject(folder / MARKER, f"no {name}" if name not in facts else f"{name} is {facts[name]!r:.40}")
        if kinds == (int,):
            check_number(folder / MARKER, name, facts[name], 0)
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
    summary = _numbers(folder / SUMMARY, "row")
    if summary["row"].duplicated().any():
        reject(folder / SUMMARY, "a row twice")
    columns = PROCEDURES.get(facts["registered"], Procedure)
    check_columns(
        folder / SUMMARY, summary, _ranges(summary.columns.drop("row"), columns.metrics, sys.float_info.max)
    )
    summary = summary.set_index("row")
    steps = _numbers(folder / STEPS, "part")
    if "step" not in steps or (steps["step"].max() if len(steps) else 0) != facts["steps"]:
        reject(folder / STEPS, f"not of {facts['steps']} steps")
    check_columns(folder / STEPS, steps, _ranges(steps.columns.drop("part"), columns.curves, math.inf))
    return Outcome(folder, facts, params, summary, steps, facts["label"])


def _ranges(
    names: Iterable[str], columns: Mapping[str, Column], largest: float
) -> dict[str, tuple[float, float]]:
    """Ranges of columns: shares are from 0 to 1, other numbers up to ``largest``."""
    shares = {name for name in names if name in columns and columns[name].unit == SHARE.sign}
    return {name: (0, 1) if name in shares else (-largest, largest) for name in names}


def _numbers(path: Path, names: str) -> pd.DataFrame:
    """A table of numbers with a column of ``names``."""
    table = read_table(path, read_parts, ())
    if names not in table:
        reject(path, f"no column {names}")
    return read_table(path, read_parts, [str(column) for column in table if column != names])


def _varied(outcomes: list[Outcome]) -> Iterator[Outcome]:
    """The outcomes of one entry with their variants: first those with the settings of params.yaml."""
    by_identity: dict[tuple, dict[int, Outcome]] = {}
    for one in outcomes:  # of two with one seed, the folder without a digest is the first
        own = by_identity.setdefault((one.facts["settings"], *sorted(one.facts["inputs"].items())), {})
        own[one.seed] = replace(own[one.seed], repeated=one.folder.name) if one.seed in own else one
    groups = sorted(
        by_identity.values(),
        key=lambda own: (-sum(one.folder.name == str(one.seed) for one in own.values()), -len(own)),
    )
    base = next(iter(groups[0].values()))
    theirs = _settings(base)
    for place, own in enumerate(groups):
        mine = _settings(next(iter(own.values())))
        words = [say(*item) for item in differences(mine, theirs, {}).items()]
        other = next(iter(own.values())).facts["settings"][:8]
        variant = (", ".join(words) or other) if place else ""
        yield from (replace(one, variant=variant) for _, one in sorted(own.items()))


def _settings(outcome: Outcome) -> dict[str, Any]:
    """What distinguishes outcomes of one entry, by dotted name; parameters without a section."""
    flat_params = flat({name: v for name, v in outcome.params.items() if name not in ("seed", "settings")})
    plain = {name.removeprefix("procedure."): value for name, value in flat_params.items()}
    return plain | {f"{name}_hash": value[:8] for name, value in outcome.facts["inputs"].items()}


@dataclass(frozen=True)
class Kept:
    """A table of an outcome: its file, and its cells if it is short."""

    file: str
    size: int
    columns: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Section:
    """What the page shows of the outcomes of one entry with the same settings and inputs."""

    entry: str
    label: str
    registered: str
    variant: str
    idea: str
    seeds: list[int]
    steps: str  # "1,000 tasks"
    own: str  # parameters that differ from the defaults
    others: str
    warnings: list[str]
    table: Table
    places: dict[str, int]  # of the parts, which have the colors of their lines, by row
    curves: list[tuple[str, Markup, str]]  # heading, picture, note
    pictures: list[tuple[str, Markup, bool]]  # of the first seed: name, picture, whether it is wide
    tables: list[Kept]  # of the first seed


def sections(outcomes: Sequence[Outcome]) -> list[Section]:
    """A section per entry and variant. Raises `FedflowError` for a picture or table that is damaged."""
    groups = groupby(outcomes, key=lambda one: (one.entry, one.variant))
    return [_section(list(group), f"outcome{place}") for place, (_, group) in enumerate(groups)]


def _section(outcomes: list[Outcome], key: str) -> Section:
    first = outcomes[0]
    cls = PROCEDURES.get(first.facts["registered"], Procedure)
    rows = by_method([row for one in outcomes for row in replace(one, variant="").rows])
    metrics = [as_metric(n, cls.metrics.get(n, Column(n))) for n in (*cls.metrics, *_unlisted(outcomes, cls))]
    parts = list(dict.fromkeys(part for one in outcomes for part in one.steps["part"]))
    given = {n: value for n, value in first.params["procedure"].items() if n != "name"}
    usual = flat(json.loads(json.dumps(defaults_of(cls))), empty=True)  # lists, as in the files
    used = flat(given, empty=True)
    own = {n: value for n, value in used.items() if n not in usual or usual[n] != value}
    others = {n: value for n, value in used.items() if n not in own}
    return Section(
        entry=first.entry,
        label=first.label,
        registered=first.facts["registered"],
        variant=first.variant,
        idea=describe(cls).idea if cls is not Procedure else "",
        seeds=[one.seed for one in outcomes],
        steps=f"{first.facts['steps']:,} {cls.step_name}{'s' * (first.facts['steps'] > 1)}",
        own=", ".join(f"{n} {text(value)}" for n, value in own.items()),
        others=", ".join(f"{n} {text(value)}" for n, value in others.items()),
        warnings=[
            f"Seed {one.seed} has two outcomes: {one.repeated} is not shown."
            for one in outcomes
            if one.repeated
        ],
        table=metric_table(rows, metrics),
        places={part: place for place, part in enumerate(parts)} if 1 < len(parts) <= FEW else {},
        curves=[
            (
                as_metric(column, about).label + f" by {cls.step_name}",
                _curve(outcomes, column, about, cls.step_name, f"{key}-{place}"),
                "A thin line is a part, the thick one their mean." if len(parts) > FEW else "",
            )
            for place, (column, about) in enumerate(cls.curves.items())
            if all(column in one.steps and one.steps[column].notna().any() for one in outcomes)
        ],
        pictures=[
            _picture(file, f"{key}-picture{number}")
            for number, file in enumerate(sorted(first.folder.glob("pictures/*.svg")))
        ],
        tables=[_table(file) for file in sorted(first.folder.glob("tables/*.csv"))],
    )


def _unlisted(outcomes: Sequence[Outcome], cls: type[Procedure]) -> list[str]:
    """Metrics of the summaries that the procedure does not describe."""
    found = dict.fromkeys(str(name) for one in outcomes for name in one.summary)
    return [name for name in found if name not in cls.metrics]


def _curve(outcomes: Sequence[Outcome], column: str, about: Column, step_name: str, name: str) -> Markup:
    metric, parts = as_metric(column, about), dict[str, list[pd.Series]]()
    for one in outcomes:
        for part, rows in one.steps.groupby("part", sort=False):
            values = rows.set_index("step")[column].astype(float) * metric.unit.factor
            parts.setdefault(str(part), []).append(values)
    return by_step(parts, name, f"{metric.label} by {step_name}", step_name, about.log).svg


def _picture(file: Path, key: str) -> tuple[str, Markup, bool]:
    try:
        if not file.is_file() or file.stat().st_size > LARGEST:
            raise FedflowError(f"not a file of at most {LARGEST / 1e6:g} MB")
        drawn = inlined(file.read_text(encoding="utf-8"), key)
    except (OSError, ValueError, FedflowError) as error:
        reject(file, str(error))
    box = re.search(r'viewBox="\S+ \S+ ([\d.]+)', drawn)
    return _words(file.stem), drawn, box is not None and float(box[1]) > WIDE


def _table(file: Path) -> Kept:
    table = read_table(file, pd.read_csv, ())
    shown = table if len(table) <= SHORT else table.head(0)
    cells = [[_cell(value) for value in row] for row in shown.astype(object).to_numpy().tolist()]
    return Kept("/".join(file.parts[-5:]), len(table), [str(name) for name in table], cells)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return UNMEASURED if pd.isna(value) else f"{value:.6g}"
    return str(value)


def _words(name: str) -> str:
    return name.replace("_", " ").replace("-", " ").capitalize()


def write_outcomes(outcomes: Sequence[Outcome], out_dir: Path) -> None:
    """Write ``outcomes.csv``, a row per entry, variant, row and metric; or remove it."""
    path = out_dir / "outcomes.csv"
    if not outcomes:
        path.unlink(missing_ok=True)
        return
    found = []
    for (entry, variant), group in groupby(outcomes, key=lambda one: (one.entry, one.variant)):
        seeds = list(group)
        rows = by_method([row for one in seeds for row in one.rows])
        for runs in rows.values():
            for metric in dict.fromkeys(str(name) for one in seeds for name in one.summary):
                value = stat(runs, metric)
                found.append(
                    {
                        "procedure": entry,
                        "variant": variant,
                        "settings": seeds[0].facts["settings"],
                        "row": runs[0].method,
                        "metric": metric,
                        "seeds": len(value.values) if value else 0,
                        "mean": value.mean if value else None,
                        "std": value.std if value else None,
                        "min": value.low if value else None,
                        "max": value.high if value else None,
                    }
                )
    write_csv(pd.DataFrame(found), path)
