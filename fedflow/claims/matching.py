"""Match runs to cells of published tables, and list differences in their settings."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedflow.claims.books import (
    ORIGINS,
    UNITS,
    Book,
    Line,
    PublishedCell,
    Setup,
    Table,
    Where,
    books,
    footnotes,
)
from fedflow.claims.measures import parse
from fedflow.claims.targets import NotMeasured
from fedflow.data import SOURCES
from fedflow.finished.run import Run
from fedflow.finished.tables import Stat, by_method, by_partition, columns

# Settings in the notes.
WORDS = {"model": "network", "epochs": "local epochs", "batch_size": "batch size", "sources": "data from"}
# Settings that must be null unless a cell names them, and noted ones with their defaults.
EXTRA = {
    "training": ("adaptation", "curriculum", "objective"),
    "run": ("client_curriculum",),
    "partition": ("difficulty",),
}
PARTITION = {"pieces": None, "pieces_used": "first", "selection": 0.0}
SIZES = ("clients", "rounds", "epochs")
NUMBERED = re.compile(r"(Table|Figure)s? ((?:[A-Z]\.)?\d[\d.]*(?:(?:, | and | to )(?:[A-Z]\.)?\d[\d.]*)*)")
DATA = ("keep_labels", "train_limit", "test_limit", "rotations", "label_noise", "feature_noise", "transforms")


class Match(NamedTuple):
    """A cell of a published table and the runs of one variant that match it."""

    book: Book
    table: Table
    row: int
    line: Line
    cell: PublishedCell
    runs: list[Run]


@dataclass(frozen=True)
class Ours:
    """Our number in a cell with a note on its seeds; ``label`` distinguishes several numbers of a cell.

    ``missing`` is the reason for a missing number.
    """

    text: str
    note: str = ""
    label: str = ""
    missing: str = ""


class ComparedCell(NamedTuple):
    """A published cell with the number of its footnote, and our numbers."""

    cell: PublishedCell
    mark: int | None
    ours: list[Ours]


@dataclass(frozen=True)
class Shown:
    """A published table compared with ours; ``lines`` have label, footnote, our partitions and cells."""

    table: Table
    source: str
    notes: list[str]
    footnotes: list[str]
    lines: list[tuple[str, int | None, str, list[ComparedCell]]]

    @property
    def measured(self) -> bool:
        """True if a cell has a number of ours."""
        return any(not ours.missing for *_, cells in self.lines for cell in cells for ours in cell.ours)

    @property
    def missing(self) -> str:
        """The first reason for a missing number of ours."""
        missing = (ours.missing for *_, cells in self.lines for cell in cells for ours in cell.ours)
        return next(filter(None, missing), "")


class Accuracy(NamedTuple):
    """A published accuracy: the cell, our name of its metric, and the table."""

    cell: PublishedCell
    metric: str
    table: str


def matches(runs: Sequence[Run]) -> Iterator[Match]:
    """Every cell of every book with a variant of ``runs`` that agrees in data, scheme and method."""
    groups = [variant for group in by_partition(runs).values() for variant in by_method(group).values()]
    for book in books().values():
        for table in book.tables:
            for i, line in enumerate(table.lines):
                fitting = [variant for variant in groups if fits(line.where, variant)]
                for cell in (cell for cell in line.cells if cell.comparable):
                    for variant in fitting:
                        if _is_of(cell, line.where, variant[0]):
                            yield Match(book, table, i, line, cell, variant)


def compare(runs: Sequence[Run], wanted: Callable[[Match], bool] = lambda _: True) -> list[Shown]:
    """Every complete table with a cell that ``runs`` match, if ``wanted``, in the order of the books."""
    by_table: dict[int, list[Match]] = {}
    for match in filter(wanted, matches(runs)):
        by_table.setdefault(id(match.table), []).append(match)
    return [_shown(of_table) for of_table in by_table.values()]


def accuracies(runs: Sequence[Run]) -> dict[str, Accuracy]:
    """The first published accuracy by variant, of a metric that is a column of the accuracy table.

    Tables of methods come before tables of settings, in which a plain run is the reference.
    """
    metrics = {metric.name: metric for metric in columns("accuracy")}
    by_variant: dict[str, Accuracy] = {}
    for match in sorted(matches(runs), key=lambda match: bool(match.cell.column.settings)):
        metric = metrics.get(match.cell.measure or "")
        if metric and match.line.unit == "%" and match.cell.value.mean is not None:
            where = f"{match.table.label}, {match.book.source}"
            entry = Accuracy(match.cell, metric.label.removesuffix(", %").lower(), where)
            by_variant.setdefault(match.runs[0].variant, entry)
    return by_variant


def known_data() -> list[str]:
    """Titles of the datasets with published numbers that runs can be compared with."""
    names = {
        line.where.dataset
        for book in books().values()
        for table in book.tables
        for line in table.lines
        if line.where.dataset and any(cell.comparable for cell in line.cells)
    }
    return sorted((SOURCES[name].title if name in SOURCES else name for name in names), key=str.lower)


def agrees(wanted: Any, value: Any) -> bool:
    """True if a setting has the wanted value; mappings may be partial, and a list gives alternatives."""
    if isinstance(wanted, Mapping):
        return isinstance(value, Mapping) and all(agrees(v, value.get(name)) for name, v in wanted.items())
    if isinstance(wanted, list) and not isinstance(value, list | tuple):
        return any(agrees(alternative, value) for alternative in wanted)
    if isinstance(wanted, float) and isinstance(value, int | float):
        return math.isclose(wanted, value)
    return wanted == value


def fits(where: Where, runs: Sequence[Run]) -> bool:
    """True if the runs of one variant are of the division or procedure in ``where``, with its settings."""
    run = runs[0]
    if run.procedure != (where.procedure or ""):
        return False
    return (_fits_outcome if run.procedure else _fits_run)(where, run) and not _differ(where, runs)


def _fits_run(where: Where, run: Run) -> bool:
    partition, data = run.params["partition"], _data(run)
    # A name in params.yaml counts only for data without a source of ours: `mnist` may name anything.
    named = data.get("source") if where.dataset in SOURCES else partition["dataset"]
    divided = where.dataset in (None, named) and where.scheme in (None, partition["scheme"])
    pairs = (where.params, partition["parameters"]), (where.data, data), (where.settings, run.params)
    return divided and all(agrees(wanted, value) for wanted, value in pairs)


def _fits_outcome(where: Where, run: Run) -> bool:
    """One of the partitions that the procedure reads must agree.

    The central networks that it reads are ``networks`` in its settings, by the field that names them.
    """
    params, networks = run.params["procedure"], run.params.get("central", {})
    used = {field: networks.get(name) for field, name in params.items() if isinstance(name, str)}
    read = run.params | {"networks": used}
    named = {} if where.dataset in SOURCES else run.params["data"]
    sources = (entry["source"] for entry in run.params["data"].values())
    if where.dataset not in (None, *named, *sources) or not agrees(where.params, params):
        return False
    return any(
        where.scheme in (None, entry.get("scheme")) and agrees(where.settings, read | {"partition": entry})
        for entry in run.params.get("partitions", {}).values() or [{}]
    )


def _is_of(cell: PublishedCell, where: Where, run: Run) -> bool:
    """True if a run has the method and the settings of a cell.

    A run with a curriculum, a side loss, an adaptation or a difficulty matches only cells that name it.
    """
    column, params = cell.column, run.params
    if run.procedure:
        same = cell.method == run.method and agrees(column.params, params["procedure"])
        return same and agrees(column.settings, params)
    named = (column.settings, where.settings)
    return (
        cell.method == params["method"]["name"].removesuffix("_as_published")
        and agrees(column.params, params["method"])
        and agrees(column.settings, params)
        and all(
            params[section].get(name) is None or any(name in settings.get(section, {}) for settings in named)
            for section, names in EXTRA.items()
            for name in names
        )
    )


def _shown(of_table: list[Match]) -> Shown:
    book, table = of_table[0].book, of_table[0].table
    texts, marks = footnotes(table)
    lines = []
    for i, line in enumerate(table.lines):
        of_line = [match for match in of_table if match.row == i]
        partitions = list(dict.fromkeys(match.runs[0].partition for match in of_line))
        cells = []
        for cell in line.cells:
            here = [match for match in of_line if match.cell.name == cell.name]
            several = len(here) > 1
            labels = [_label(match.runs[0], len(partitions) > 1) if several else "" for match in here]
            ours = [_ours(match, label) for match, label in zip(here, labels, strict=True)]
            cells.append(ComparedCell(cell, marks.get((i, cell.name)), ours))
        lines.append((line.label, marks.get((i, "")), ", ".join(partitions), cells))
    return Shown(table, book.source, [*_notes(table, of_table)], texts, lines)


def _label(run: Run, partitions: bool) -> str:
    return f"{run.partition}: {run.label}" if partitions else run.label


def _ours(match: Match, label: str) -> Ours:
    """Mean ± sample std over seeds with the decimals of the published row.

    A seed that did not reach its target counts with its lower bound, which "+" marks.
    """
    assert match.cell.measure is not None
    measure = parse(match.cell.measure, procedure=match.runs[0].procedure)
    factor = UNITS[match.line.unit]
    if match.line.unit == "Mb per client":
        factor /= match.runs[0].metrics.get("clients") or math.nan
    try:
        values = {run.seed: measure.of(run) for run in match.runs}
        bounds = {run.seed: measure.least(run) for run in match.runs if values[run.seed] is None}
    except NotMeasured as error:
        reason = str(error)  # without its folder: the report must not depend on the project's path
        for run in match.runs:
            reason = reason.replace(f"{run.folder}/", "")
        return Ours("not measured", "", label, reason)
    digits = max(cell.value.digits for cell in match.line.cells if cell.comparable)
    known = {seed: value * factor for seed, value in (values | bounds).items() if value is not None}
    stat, seeds = Stat(known), f"{len(values)} {'seed' if len(values) == 1 else 'seeds'}"
    if not known:
        return Ours("no value", seeds, label)
    if len(known) < len(values):
        seeds = f"{len(known)} of {seeds}"
    plus = "+" if bounds.keys() & known.keys() else ""
    spread = f" ± {stat.std:.{digits}f}" if len(known) > 1 and known.keys() - bounds.keys() else ""
    return Ours(f"{stat.mean:.{digits}f}{plus}{spread}", seeds, label)


def _notes(table: Table, of_table: list[Match]) -> Iterator[str]:
    """The origin of the table's cells, its caveat, its settings, and differences from ours."""
    yield ORIGINS[table.origin]
    if table.caveat:
        yield table.caveat
    settings = Setup.parse(table.setup, "setup").as_dict()
    if words := [f"{_word(name)} {_text(value)}" for name, value in settings.items() if value is not None]:
        yield f"Published settings: {', '.join(words)}."
    differ: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for match in of_table:
        for name, (here, there) in differing(match).items():
            both = differ.setdefault(name, ({}, {}))
            both[0][_text(here)] = both[1][_text(there)] = None
    words = [f"{_word(n)} {' or '.join(a)} here, {' or '.join(b)} there" for n, (a, b) in differ.items()]
    procedures = any(match.runs[0].procedure for match in of_table)
    if procedures:
        yield "Of the settings of procedures, only network and seeds are compared; see the study's scale."
    if words:
        yield f"Differences: {'; '.join(words)}."
    elif not procedures:
        yield "No differences in the settings that are known."
    runs = [run for match in of_table for run in match.runs if not run.procedure]
    rates = sorted({run.params["training"]["lr"] for run in runs})
    named = "rate" if len(rates) == 1 else "rates"
    if rates:
        yield f"Our learning {named}: {' or '.join(f'{rate:g}' for rate in rates)}."


def differing(match: Match) -> dict[str, tuple[Any, Any]]:
    """Our and the published value, by name, of the known settings that differ, also of data and division."""
    differ, run = _differ(match.line.setup, match.runs), match.runs[0]
    if run.procedure:
        return differ
    where = match.line.where
    asked = {*where.data, *where.settings.get("partition", {})}
    for name in DATA:
        if (here := _data(run).get(name)) and name not in asked:
            differ[name] = here, "none"
    for name, usual in PARTITION.items():
        here = run.params["partition"].get(name, usual)
        if here != usual and name not in asked:
            differ[name] = here, usual or "none"
    return differ


def scale(matched: Sequence[Match], runs: Sequence[Run], source: str) -> str:
    """Sizes of ``runs``, "12 of 100 rounds", relative to published tables that a claim's ``source`` names.

    "full" if no known setting differs, "full, but network mlp" if sizes agree; empty without such a table, or
    one whose sizes are unknown.
    """
    numbers, variants = numbered(source), {(run.partition, run.variant) for run in runs}
    named = [
        match
        for match in matched
        if numbers & numbered(match.table.label)
        and (match.runs[0].partition, match.runs[0].variant) in variants
        and _sized(match)
    ]
    words: dict[str, None] = {}
    for match in named:
        for name, (here, there) in differing(match).items():
            size, other = f"{_text(here)} of {_text(there)} {_word(name)}", f"{_word(name)} {_text(here)}"
            words |= {size if name in SIZES else other: None} if name != "seeds" else {}
    if not named or not all(map(full, named)):
        return ", ".join(words)
    return f"full, but {', '.join(words)}" if words else "full"


def full(match: Match) -> bool:
    """True if the runs have all sizes of the published ones, and some are known."""
    return _sized(match) and not differing(match).keys() & set(SIZES)


def _sized(match: Match) -> bool:
    return any(getattr(match.line.setup, name) for name in SIZES)


def numbered(text: str) -> set[tuple[str, str]]:
    """Tables and figures in a text: "Tables 3.1 and 3.8" has ("Table", "3.1") and ("Table", "3.8")."""
    named = NUMBERED.findall(text)
    return {(kind, number) for kind, numbers in named for number in re.findall(r"[\w.]*\d", numbers)}


def _differ(wanted: Setup, runs: Sequence[Run]) -> dict[str, tuple[Any, Any]]:
    """Our and the published value, by name, of the known settings that differ."""
    run = runs[0]
    params = run.params
    if run.procedure:
        models = params.get("models", {}).values()
        here = {"model": next((model["name"] for model in models), None)}
    else:
        here = {
            "clients": run.metrics.get("clients"),
            "participation": params["run"]["participation"],
            "rounds": params["run"]["rounds"] if params["run"].get("stop_at") else run.metrics["rounds"],
            "model": run.metrics["model"],
            "epochs": params["training"]["epochs"],
            "batch_size": params["training"]["batch_size"],
            "sources": sorted(part["source"] for part in _data(run).get("parts") or []) or None,
        }
    here["seeds"] = len(runs)
    there = {name: getattr(wanted, name) for name in here}
    known = {name for name in here if here[name] is not None and there[name] is not None}
    return {n: (here[n], there[n]) for n in here if n in known and not agrees(there[n], here[n])}


def _data(run: Run) -> dict[str, Any]:
    """The fields of the dataset of ``run``, with the parameters of its source, noise and transforms."""
    partition = run.params["partition"]
    data = run.params["data"].get(partition["dataset"], {})
    noise = {
        name: (partition.get(name) or {}).get(level)
        for name, level in (("label_noise", "ratio"), ("feature_noise", "sigma"), ("transforms", "sets"))
    }
    return {**data, **data.get("parameters", {}), **noise}


def _word(name: str) -> str:
    return WORDS.get(name, name.replace("_", " "))


def _text(value: Any) -> str:
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:g}"
    return ", ".join(map(_text, value)) if isinstance(value, list) else str(value)
