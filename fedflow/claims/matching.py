"""Published numbers beside ours: which runs stand beside which cell, and how their settings differ."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedflow.claims.books import UNITS, Book, Line, PublishedCell, Setup, Table, Where, books, footnotes
from fedflow.claims.measures import parse
from fedflow.claims.targets import NotMeasured
from fedflow.data import SOURCES
from fedflow.finished.run import Run
from fedflow.finished.tables import Stat, by_method, by_partition, columns

WORDS = {"model": "network", "epochs": "local epochs", "batch_size": "batch size"}  # in the notes
OWN = {
    "training": ("adaptation", "curriculum", "objective"),
    "run": ("client_curriculum",),
    "partition": ("difficulty",),
}  # null, unless a cell names them
PARTITION = {
    "pieces": None,
    "pieces_used": "first",
    "selection": 0.0,
}  # noted, unless a cell names them; and the defaults
DATA = ("keep_labels", "train_limit", "test_limit", "rotations", "label_noise", "feature_noise", "transforms")


class Match(NamedTuple):
    """A cell of a published table and the runs of one variant that stand beside it."""

    book: Book
    table: Table
    place: int  # of the line
    line: Line
    cell: PublishedCell
    runs: list[Run]


@dataclass(frozen=True)
class Ours:
    """Our number in a cell, and of how many seeds; ``label`` distinguishes several numbers of a cell.

    ``missing``: why there is none.
    """

    text: str
    note: str = ""
    label: str = ""
    missing: str = ""


class Beside(NamedTuple):
    """A published cell with the number of its footnote, and ours."""

    cell: PublishedCell
    mark: int | None
    ours: list[Ours]


@dataclass(frozen=True)
class Shown:
    """A published table with ours beside it: lines of label, footnote, our partitions and cells."""

    table: Table
    source: str
    notes: list[str]
    footnotes: list[str]
    lines: list[tuple[str, int | None, str, list[Beside]]]

    @property
    def measured(self) -> bool:
        """Whether a cell has a number of ours."""
        return any(not ours.missing for *_, cells in self.lines for cell in cells for ours in cell.ours)

    @property
    def missing(self) -> str:
        """Why the first cell that lacks a number of ours does."""
        missing = (ours.missing for *_, cells in self.lines for cell in cells for ours in cell.ours)
        return next(filter(None, missing), "")


class Accuracy(NamedTuple):
    """A published accuracy: the cell, our name of its metric, and the table."""

    cell: PublishedCell
    metric: str
    table: str


def matches(runs: Sequence[Run]) -> Iterator[Match]:
    """Every cell of every book with a variant of ``runs`` that agrees in data, scheme and method."""
    groups = [own for found in by_partition(runs).values() for own in by_method(found).values()]
    for book in books().values():
        for table in book.tables:
            for place, line in enumerate(table.lines):
                found = [own for own in groups if fits(line.where, own)]
                for cell in (cell for cell in line.cells if cell.comparable):
                    for own in found:
                        if _is_of(cell, line.where, own[0]):
                            yield Match(book, table, place, line, cell, own)


def compare(runs: Sequence[Run]) -> list[Shown]:
    """Every table with a cell that ``runs`` stand beside, complete, in the order of the books."""
    by_table: dict[int, list[Match]] = {}
    for match in matches(runs):
        by_table.setdefault(id(match.table), []).append(match)
    return [_shown(found) for found in by_table.values()]


def accuracies(runs: Sequence[Run]) -> dict[str, Accuracy]:
    """By variant, the first published accuracy of a metric that the accuracy table has as a column.

    Tables of methods come before tables of settings, where a plain run is the reference.
    """
    known = {metric.name: metric for metric in columns("accuracy")}
    found: dict[str, Accuracy] = {}
    for match in sorted(matches(runs), key=lambda match: bool(match.cell.column.settings)):
        metric = known.get(match.cell.measure or "")
        if metric and match.line.unit == "%" and match.cell.value.mean is not None:
            where = f"{match.table.label}, {match.book.source}"
            entry = Accuracy(match.cell, metric.label.removesuffix(", %").lower(), where)
            found.setdefault(match.runs[0].variant, entry)
    return found


def known_data() -> list[str]:
    """The data sets that some run could be compared on, by title."""
    names = {
        line.where.dataset
        for book in books().values()
        for table in book.tables
        for line in table.lines
        if line.where.dataset and any(cell.comparable for cell in line.cells)
    }
    return sorted((SOURCES[name].title if name in SOURCES else name for name in names), key=str.lower)


def agrees(wanted: Any, found: Any) -> bool:
    """Whether a setting is the wanted one; mappings need not be complete, and a list gives alternatives."""
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(agrees(v, found.get(name)) for name, v in wanted.items())
    if isinstance(wanted, list) and not isinstance(found, list | tuple):
        return any(agrees(one, found) for one in wanted)
    if isinstance(wanted, float) and isinstance(found, int | float):
        return math.isclose(wanted, found)
    return wanted == found


def fits(where: Where, runs: Sequence[Run]) -> bool:
    """Whether the runs of one variant are on this data set and scheme, or of this procedure, with the other
    settings of ``where``. Of the partitions that a procedure reads, one must agree; the central networks that
    it reads are `networks` in its settings, by the field that names them."""
    run = runs[0]
    if run.procedure != (where.procedure or ""):
        return False
    if run.procedure:
        own, networks = run.params["procedure"], run.params.get("central", {})
        used = {
            "networks": {field: networks.get(name) for field, name in own.items() if isinstance(name, str)}
        }
        named = run.params["data"] if where.dataset not in SOURCES else {}
        return (
            agrees(where.params, own)
            and where.dataset in (None, *named, *(entry["source"] for entry in run.params["data"].values()))
            and any(
                where.scheme in (None, entry.get("scheme"))
                and agrees(where.settings, {**run.params, **used, "partition": entry})
                for entry in run.params.get("partitions", {}).values() or [{}]
            )
            and not _differ(where, runs)
        )
    partition = run.params["partition"]
    data = _data(run)
    # A name in params.yaml counts only for data without a source of ours: `mnist` may name anything.
    named = data.get("source") if where.dataset in SOURCES else partition["dataset"]
    return (
        where.dataset in (None, named)
        and where.scheme in (None, partition["scheme"])
        and agrees(where.params, partition["parameters"])
        and agrees(where.data, data)
        and agrees(where.settings, run.params)
        and not _differ(where, runs)
    )


def _is_of(cell: PublishedCell, where: Where, run: Run) -> bool:
    """Whether a run is of the method and the settings of a cell.

    A curriculum, a side loss or an adaptation is a setting of any method, and difficulty one of any scheme:
    what names none has none.
    """
    column, params = cell.column, run.params
    if run.procedure:
        same = cell.method == run.method and agrees(column.params, params["procedure"])
        return same and agrees(column.settings, params)
    named = (column.settings, where.settings)
    return (
        cell.method == params["method"]["name"]
        and agrees(column.params, params["method"])
        and agrees(column.settings, params)
        and all(
            params[section].get(name) is None or any(name in one.get(section, {}) for one in named)
            for section, names in OWN.items()
            for name in names
        )
    )


def _shown(found: list[Match]) -> Shown:
    book, table = found[0].book, found[0].table
    texts, marks = footnotes(table)
    lines = []
    for i, line in enumerate(table.lines):
        own = [match for match in found if match.place == i]
        partitions = list(dict.fromkeys(match.runs[0].partition for match in own))
        cells = []
        for cell in line.cells:
            here = [match for match in own if match.cell.name == cell.name]
            several = len(here) > 1
            labels = [_label(match.runs[0], len(partitions) > 1) if several else "" for match in here]
            ours = [_ours(match, label) for match, label in zip(here, labels, strict=True)]
            cells.append(Beside(cell, marks.get((i, cell.name)), ours))
        lines.append((line.label, marks.get((i, "")), ", ".join(partitions), cells))
    return Shown(table, book.source, [*_notes(table, found)], texts, lines)


def _label(run: Run, partitions: bool) -> str:
    return f"{run.partition}: {run.label}" if partitions else run.label


def _ours(match: Match, label: str) -> Ours:
    """Mean ± sample std over seeds, with the decimals of the published row; "+": a seed did not arrive."""
    assert match.cell.measure is not None
    measure = parse(match.cell.measure, procedure=match.runs[0].procedure)
    factor = UNITS[match.line.unit]
    if match.line.unit == "Mb per client":
        factor /= match.runs[0].metrics["clients"]
    try:
        values = {run.seed: measure.of(run) for run in match.runs}
        least = [measure.least(run) for run in match.runs if values[run.seed] is None]
    except NotMeasured as error:
        reason = str(error)  # without its folder: where a project is does not change its report
        for run in match.runs:
            reason = reason.replace(f"{run.folder}/", "")
        return Ours("not measured", "", label, reason)
    digits = max(cell.value.digits for cell in match.line.cells if cell.comparable)
    stat = Stat({seed: value * factor for seed, value in values.items() if value is not None})
    seeds = f"{len(values)} {'seed' if len(values) == 1 else 'seeds'}"
    if not stat.values:
        bounds = [value * factor for value in least if value is not None]
        return Ours(f"{min(bounds):.{digits}f}+" if bounds else "no value", seeds, label)
    spread = f" ± {stat.std:.{digits}f}" if len(stat.values) > 1 else ""
    if least:
        seeds = f"{len(stat.values)} of {seeds}"
    return Ours(f"{stat.mean:.{digits}f}{spread}{'+' if least else ''}", seeds, label)


def _notes(table: Table, found: list[Match]) -> Iterator[str]:
    """The table's caveat, its settings, and where ours differ."""
    if table.caveat:
        yield table.caveat
    settings = Setup.parse(table.setup, "setup").as_dict()
    if words := [f"{_word(name)} {_text(value)}" for name, value in settings.items() if value is not None]:
        yield f"Published settings: {', '.join(words)}."
    differ: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for match in found:
        for name, (here, there) in _differ(match.line.setup, match.runs).items():
            both = differ.setdefault(name, ({}, {}))
            both[0][_text(here)] = both[1][_text(there)] = None
        if match.runs[0].procedure:
            continue
        for name in DATA:
            if (here := _data(match.runs[0]).get(name)) and name not in match.line.where.data:
                differ.setdefault(name, ({}, {"none": None}))[0][_text(here)] = None
        for name, usual in PARTITION.items():
            here = match.runs[0].params["partition"].get(name, usual)
            if here != usual and name not in match.line.where.settings.get("partition", {}):
                differ.setdefault(name, ({}, {_text(usual or "none"): None}))[0][_text(here)] = None
    words = [f"{_word(n)} {' or '.join(a)} here, {' or '.join(b)} there" for n, (a, b) in differ.items()]
    yield f"Differences: {'; '.join(words)}." if words else "No differences in the settings that are known."
    runs = [run for match in found for run in match.runs if not run.procedure]
    rates = sorted({run.params["training"]["lr"] for run in runs})
    named = "rate" if len(rates) == 1 else "rates"
    if rates:
        yield f"Our learning {named}: {' or '.join(f'{rate:g}' for rate in rates)}."


def _differ(wanted: Setup, runs: Sequence[Run]) -> dict[str, tuple[Any, Any]]:
    """By name, ours and theirs of the settings that are known and differ."""
    run = runs[0]
    if run.procedure:
        here = {"model": next((each["name"] for each in run.params.get("models", {}).values()), None)}
    else:
        here = {
            "clients": run.metrics["clients"],
            "participation": run.params["run"]["participation"],
            "rounds": run.metrics["rounds"],
            "model": run.metrics["model"],
            "epochs": run.params["training"]["epochs"],
            "batch_size": run.params["training"]["batch_size"],
        }
    here["seeds"] = len(runs)
    there = {name: getattr(wanted, name) for name in here}
    return {n: (here[n], there[n]) for n in here if there[n] is not None and not agrees(there[n], here[n])}


def _data(run: Run) -> dict[str, Any]:
    """The fields of the data set of ``run``, with the parameters of its source, noise and transforms."""
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
    return (
        f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)
    )
