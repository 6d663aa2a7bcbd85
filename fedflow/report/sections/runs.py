"""Methods, seeds, data and networks of the runs, and the settings of every row."""

from collections.abc import Sequence

from markupsafe import Markup

from fedflow.finished.cells import Cell, Row, Table
from fedflow.finished.run import Run
from fedflow.finished.variants import settings_table
from fedflow.naming import counted, text
from fedflow.report.blocks import Fold, Section, Text
from fedflow.report.compared import Compared, ComparedPartition, rounds_of

HEADS = ("Scheme", "Data and network", "Clients", "Rounds", "Failed", "Hashes")
HASHES = Markup(
    '<code title="data {0}">{0:.12}</code><small>data</small>'
    '<code title="partition {1}">{1:.12}</code><small>partition</small>'
)


def section(c: Compared) -> Section | None:
    if not c.runs:
        return None
    names = [Markup("{} (<code>{}</code>)").format(label, name) for name, label in c.methods.items()]
    seeds = ", ".join(str(seed) for seed in sorted({run.seed for run in c.runs}))
    words = Markup("Methods: {}. Seeds: {}.").format(Markup(", ").join(names), seeds)
    table = Table([(head, "", "") for head in HEADS], [_row(p) for p in c.partitions], "Partition", "words")
    return Section("runs", "What was run", "", [Text(words, ""), table])


def _row(p: ComparedPartition) -> Row:
    shown = next((run for run in p.runs if run.metrics["partition_hash"] == p.hash), p.runs[0])
    first, facts, made = shown.metrics, p.facts, shown.params["partition"]
    parameters = facts.parameters if facts else made["parameters"]
    scheme = p.scheme or str(made["scheme"]).replace("_", " ")
    sizes = (facts.summary.get("sizes") if facts else None) or {}
    samples = f"{sizes['min']:g} to {sizes['max']:g} samples each" if {"min", "max"} <= sizes.keys() else ""
    failed = sum(run.metrics["failed_clients"] for run in p.runs)
    words = [f"{name} {text(value)}" for name, value in parameters.items()]
    divisions = len({run.metrics["partition_hash"] for run in p.runs})
    words += [counted(divisions, "division")] if divisions > 1 or p.runs[0].redrawn else []
    networks = sorted({run.metrics["parameters"] for run in p.runs})
    size = f"{networks[0]:,}{f' to {networks[-1]:,}' if len(networks) > 1 else ''} parameters"
    cells = [
        Cell(scheme, note=", ".join(words)),
        Cell(first["dataset"], note=f"{first['model']}, {size}"),
        Cell(f"{first['clients']}, participation {first['participation']:g}", note=samples),
        Cell(rounds_of(p.runs).partition(" round")[0], note=_stop(p.runs)),
        Cell(str(failed)),
        Cell(HASHES.format(first["data_hash"], first["partition_hash"])),
    ]
    return Row("", p.name, cells, key=f"{p.key}-about")


def _stop(runs: Sequence[Run]) -> str:
    """Numbers of rounds, planned rounds and target of runs with `run.stop_at`; empty for others."""
    of_run = runs[0].params["run"]
    if not (stop := of_run.get("stop_at")):
        return ""
    return f"{rounds_of(runs)}, at most {of_run['rounds']}, until {stop['metric']} {stop['value']:g}"


def settings(c: Compared) -> Section | None:
    folds = [_settings(p) for p in c.partitions]
    return Section("settings", "Settings of every row", "", folds, "Settings") if folds else None


def _settings(p: ComparedPartition) -> Fold:
    rows = [
        Row(
            row["variant"],
            row["label"],
            [Cell(row["changed"]), Cell("", note=row["others"])],
            Markup("<code>{}</code>").format(row["settings"]),
        )
        for row in settings_table(run for runs in p.methods.values() for run in runs)
    ]
    columns = [("Differs from the defaults", "", ""), ("Defaults", "", "")]
    return Fold(f"{p.name}: {counted(len(rows), 'row')}", [Table(columns, rows, kind="words")])
