"""The tables of the page: what a cell says, how it sorts, and which one is best."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedflow.report.collect import Run
from fedflow.report.published import Published
from fedflow.report.tables import LOWER_IS_BETTER, Stat, best, stat, yardstick

Methods = dict[str, list[Run]]  # by variant
SPREAD = "± sample std"  # over seeds


@dataclass(frozen=True)
class Cell:
    """Text, the spread after it, a small note below it, and the number it sorts by."""

    text: str
    spread: str = ""
    note: str = ""
    sort: float | None = None
    best: bool = False


@dataclass(frozen=True)
class Row:
    variant: str
    label: str
    cells: list[Cell]


@dataclass(frozen=True)
class Table:
    columns: list[tuple[str, str, str]]  # heading, what follows the mean in its cells, its explanation
    rows: list[Row]


@dataclass(frozen=True)
class Column:
    """One metric of a table: heading, unit factor and how many decimals."""

    metric: str
    title: str
    hint: str
    factor: float = 100.0
    digits: int = 1
    rated: bool = True  # the best value is set in bold


ACCURACY = (
    Column("local_accuracy", "Local, %", "mean over clients, each on its own test set"),
    Column("global_accuracy", "Global, %", "on the complete test set"),
    Column("tuned_accuracy", "After fine-tuning, %", "local, after one more local training"),
    Column(
        "local_final_accuracy",
        "Local, last trained, %",
        "local, of the model a client holds after its last training",
    ),
    Column("newcomer_accuracy", "Newcomers, %", "local, of clients that joined after the last round"),
    Column("newcomer_tuned_accuracy", "Newcomers, tuned, %", "the same, after one local training"),
)
LOSS = (Column("loss", "Loss", "mean over clients, each on its own test set", factor=1, digits=4),)
FAIRNESS = (
    Column("local_weighted", "By samples, %", "local accuracy, clients weighted by their test samples"),
    Column("local_worst10", "Worst tenth, %", "mean local accuracy of the worst tenth of the clients"),
    Column("local_best10", "Best tenth, %", "mean local accuracy of the best tenth of the clients"),
    Column("local_lowest", "Lowest, %", "local accuracy of the client with the lowest one"),
    Column("local_highest", "Highest, %", "local accuracy of the client with the highest one"),
    Column("local_std", "Std over clients, points", "population std of local accuracy over clients"),
    Column("local_variance", "Variance, points²", "the square of that", factor=1e4),
    Column("local_gini", "Gini", "0 = all clients are served alike", factor=1, digits=3),
)
TRAFFIC = (
    Column("bytes_down", "Down, MB", "server to clients, all rounds", factor=1e-6, rated=False),
    Column("bytes_up", "Up, MB", "clients to server, all rounds", factor=1e-6, rated=False),
    Column("rounds_to_target", "Rounds to target", "first evaluated round at or above the target", factor=1),
    Column("bytes_to_target", "MB to target", "down and up until that round", factor=1e-6),
)
CLUSTERS = (
    Column("clusters", "Clusters", "at the end", factor=1, rated=False),
    Column("ari", "ARI", "adjusted Rand index with the planted groups", factor=1, digits=3),
    Column("nmi", "NMI", "normalised mutual information with the planted groups", factor=1, digits=3),
    Column(
        "clustering_error",
        "Clustering error",
        "wrong companions of a client: of other groups in its cluster, and of its own group elsewhere",
        factor=1,
        digits=2,
    ),
)


def metric_table(methods: Methods, columns: Sequence[Column]) -> Table:
    """Mean ± sample std over seeds of every column, a row per variant, without columns that no run has."""
    columns = [
        c for c in columns if any(stat(runs, c.metric) for runs in methods.values()) or "target" in c.metric
    ]
    winners = {c.metric: _winners(methods, c) for c in columns}
    rows = [
        Row(name, label(runs), [_cell(runs, column, name in winners[column.metric]) for column in columns])
        for name, runs in methods.items()
    ]
    spreads = [SPREAD if any(row.cells[i].spread for row in rows) else "" for i in range(len(columns))]
    return Table([(c.title, spread, c.hint) for c, spread in zip(columns, spreads, strict=True)], rows)


def accuracy_table(methods: Methods, published: Published | None) -> Table:
    """The accuracy columns, or the loss without any, and published numbers where there are some."""
    table = metric_table(methods, LOSS if yardstick(methods) == "loss" else ACCURACY)
    if published is None:
        return table
    rows = []
    for row in table.rows:
        known = published.values.get(methods[row.variant][0].method)
        cell = Cell("–")
        if known:
            mean, std, metric, theirs = known
            cell = Cell(f"{mean:g}", f"±\u2009{std:g}", f"{theirs}, {metric}", mean)
        rows.append(Row(row.variant, row.label, [*row.cells, cell]))
    return Table([*table.columns, ("Published, %", "", published.label)], rows)


def label(runs: Sequence[Run]) -> str:
    """The method's name as its paper writes it, and what sets this variant apart from the plain one."""
    return runs[0].label


def write(value: Stat, factor: float = 100.0, digits: int = 1) -> tuple[str, str]:
    """Mean and spread in words: ('97.1', '± 0.2'); one seed has no spread."""
    spread = f"±\u2009{value.std * factor:.{digits}f}" if len(value.values) > 1 else ""
    return f"{value.mean * factor:.{digits}f}", spread


def _cell(runs: Sequence[Run], column: Column, is_best: bool) -> Cell:
    value = stat(runs, column.metric)
    if value is None:
        return Cell("not reached" if "target" in column.metric else "–")
    exact = not column.rated and value.std == 0  # counted, not measured: every seed says the same
    digits = 0 if exact and column.factor == 1 else column.digits
    text, spread = write(value, column.factor, digits)
    spread = "" if exact else spread
    some = f"{len(value.values)} of {len(runs)} seeds" if len(value.values) < len(runs) else ""
    return Cell(text, spread, some, value.mean * column.factor, is_best)


def _winners(methods: Methods, column: Column) -> set[str]:
    """The methods with the best printed mean; for a target, among those whose every seed reached it."""
    shown: Callable[[float], str] = lambda mean: f"{mean * column.factor:.{column.digits}f}"  # noqa: E731
    ranked = best(methods, column.metric)
    if column.metric in LOWER_IS_BETTER and "target" in column.metric:
        ranked = [(name, value) for name, value in ranked if len(value.values) == len(methods[name])]
    if not column.rated or len(ranked) < 2:
        return set()
    return {name for name, value in ranked if shown(value.mean) == shown(ranked[0][1].mean)}
