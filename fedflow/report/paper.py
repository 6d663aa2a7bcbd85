"""Files for a paper: tables in LaTeX, curves, and the references of the methods."""

import re
from collections.abc import Sequence
from pathlib import Path

from fedflow.errors import FedflowError
from fedflow.files import make_writable
from fedflow.methods import METHODS
from fedflow.methods.citing import bibtex
from fedflow.metrics.table import METRICS
from fedflow.pictures.accuracy import curve, measured
from fedflow.pictures.drawing import PNG_DPI
from fedflow.report.cells import Methods, Table, accuracy_table, metric_table
from fedflow.report.run import Run
from fedflow.report.tables import PLOTTED, TABLES, by_method, by_partition, columns

SPECIAL = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "\u2212": "$-$", "–": "--", "\u2009": r"\,", "²": "$^2$", "·": r"$\cdot$",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}  # fmt: skip
LIMIT = 60  # letters of a file's name


def write_paper(runs: Sequence[Run], folder: Path, figures: str | None = None) -> list[Path]:
    """Write tables of all partitions, ``methods.bib`` and, in the format ``figures``, curves; their paths.

    A table is a ``tabular`` with rules of booktabs: mean and sample standard deviation over seeds, the best
    mean bold. Raises `FedflowError` if the folder cannot be written.
    """
    make_writable(folder)
    written = []
    for partition, own in by_partition(runs).items():
        methods = by_method(own)
        tables = {name: metric_table(methods, columns(name)) for name in TABLES if name != "accuracy"}
        for name, table in {"accuracy": accuracy_table(methods, {}), **tables}.items():
            if table.columns:
                written.append(folder / f"{_file(partition)}-{name}.tex")
                _write(written[-1], latex(table))
        for metric in PLOTTED if figures else ():
            if any(measured(rows, metric) for rows in methods.values()):
                written.append(folder / f"{_file(partition)}-{metric}.{figures}")
                _draw(methods, metric, written[-1])
    registered = dict.fromkeys(run.params["method"]["name"] for run in runs)
    written.append(folder / "methods.bib")
    _write(written[-1], bibtex([name for name in registered if name in METHODS]))
    return written


def latex(table: Table) -> str:
    """The table as a ``tabular`` environment for the package booktabs."""
    head = ["Method", *(name for name, _, _ in table.columns)]
    lines = [
        r"\begin{tabular}{l" + "r" * len(table.columns) + "}", r"\toprule",
        " & ".join(map(escaped, head)) + r" \\", r"\midrule",
    ]  # fmt: skip
    for row in table.rows:
        cells = []
        for cell in row.cells:
            mean = rf"\textbf{{{escaped(cell.text)}}}" if cell.best else escaped(cell.text)
            cells.append(" ".join(filter(None, [mean, escaped(cell.spread)])))
        lines.append(" & ".join([escaped(row.label), *cells]) + r" \\")
    spreads = {spread for _, spread, _ in table.columns if spread}
    note = [f"% {' and '.join(sorted(spreads))} over seeds; the best mean is bold"] if spreads else []
    return "\n".join([*note, *lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def escaped(text: str) -> str:
    """Text as LaTeX prints it."""
    return "".join(SPECIAL.get(sign, sign) for sign in text)


def _draw(methods: Methods, metric: str, path: Path) -> None:
    places = {variant: place for place, variant in enumerate(methods)}
    drawn = curve(methods, places, metric, "round", path.stem)
    drawn.axes.set_ylabel(METRICS[metric].label)
    try:
        drawn.figure.savefig(path, dpi=PNG_DPI, bbox_inches="tight")
    except OSError as error:
        raise FedflowError(f"cannot write {path}: {error.strerror or error}") from error


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise FedflowError(f"cannot write {path}: {error.strerror or error}") from error


def _file(name: str) -> str:
    """The name of a partition as part of a file's name, which LaTeX reads without quotes."""
    return re.sub(r"[^\w-]+", "-", name)[:LIMIT]
