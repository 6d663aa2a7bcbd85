"""Files for a paper: tables in LaTeX, figures, and the references of the methods."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from fedflow.errors import BadInput, FedflowError
from fedflow.files import make_writable
from fedflow.finished.cells import Cell, Methods, Row, Table, metric_table
from fedflow.finished.clusters import clusters, groups_of
from fedflow.finished.pairs import limits, pair_table
from fedflow.finished.run import Run
from fedflow.finished.tables import PLOTTED, TABLES, by_method, columns
from fedflow.methods import METHODS
from fedflow.metrics.table import METRICS, SHARE
from fedflow.pictures.accuracy import curve, measured
from fedflow.pictures.clients import heat
from fedflow.pictures.drawing import ENDINGS, PNG_DPI, Drawing
from fedflow.project.digest import SHORT, digest
from fedflow.project.terminal import say
from fedflow.report.citing import bibtex
from fedflow.report.compared import Compared, grouped
from fedflow.report.sections.accuracy import accuracy_table
from fedflow.report.sections.clients import mean_scores
from fedflow.report.sections.ranks import Ranking, picture, ranking

SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "\u2212": "$-$",
    "–": "--",
    "\u2009": r"\,",
    "²": "$^2$",
    "·": r"$\cdot$",
    **{sign: f"${sign}$" for sign in "<>|"},
    '"': "''",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}
PAIRS = (
    "the row minus the column, points, and 95 % intervals: paired bootstrap over seeds and clients, or"
    " Student's t over seeds where clients score alike; bold: 0 is excluded, also by Student's t over three"
    " seeds or more, adjusted for the number of pairs"
)
LIMIT = 60  # letters of a file's name
WRITTEN = ".written"  # the names of the files of earlier calls


def write_paper(runs: Sequence[Run], folder: Path, figures: str | None = None) -> list[Path]:
    """Write tables of all partitions, ``methods.bib`` and pictures in the format ``figures``; returns paths.

    A table is a ``tabular`` with rules of booktabs: mean and sample standard deviation over seeds, the best
    mean bold. With several partitions, ``all.tex`` has the methods that are ranked on all of them.
    Pictures are curves, clients by method and, from three partitions on, critical differences of the ranks.
    There is a table of clusters if a method clusters or groups are planted.
    Files that an earlier call wrote and this one does not are removed, except pictures in other formats.
    Raises `BadInput` for another format, and `FedflowError` if the folder cannot be written.
    """
    if figures is not None and f".{figures}" not in ENDINGS:
        raise BadInput("figures", figures, f"one of {', '.join(end[1:] for end in ENDINGS)}")
    make_writable(folder)
    c = grouped([*runs])
    tables: dict[str, str] = {}
    drawings: dict[str, Drawing] = {}
    for p in c.partitions:
        methods, name = by_method(p.runs), _file(p.name, (q.name for q in c.partitions if q is not p))
        grouping = any(clusters(run).history for run in p.runs) or len({*groups_of(p.runs)}) > 1
        for kind in TABLES:
            accuracy = kind == "accuracy"
            table = accuracy_table(methods, {}) if accuracy else metric_table(methods, columns(kind))
            if table.columns and (grouping or kind != "clusters"):
                tables[f"{name}-{kind}"] = latex(table)
        for measure, pairs in p.pairs.items():
            note = "; ".join(filter(None, [PAIRS, limits(methods, measure, pairs)]))
            tables[f"{name}-pairs-{measure}"] = latex(pair_table(methods, pairs), note)
        if figures:
            drawings |= _pictures(methods, p.divided, c.colors, name)
    if (ranked := ranking(c)) is not None:
        tables["all"] = latex(_all(ranked, c))
        drawn = picture(ranked, c.colors) if figures else None
        drawings |= {"ranks": drawn} if drawn is not None else {}
    registered = dict.fromkeys(run.params["method"]["name"] for run in runs)
    texts = {folder / f"{name}.tex": text for name, text in tables.items()}
    texts[folder / "methods.bib"] = bibtex([name for name in registered if name in METHODS])
    pictures = {folder / f"{name}.{figures}": drawn for name, drawn in drawings.items()}
    try:
        path = folder / WRITTEN
        names = path.read_text().splitlines() if path.exists() else ["all.tex"]
        earlier = {file for name in names if (file := folder / Path(name).name).is_file()}
        earlier -= {*texts, *pictures}
        if removed := sorted(file for file in earlier if file.suffix in (".tex", ".bib", f".{figures}")):
            for path in removed:
                path.unlink()
            say(f"removed files of the earlier report: {', '.join(file.name for file in removed)}")
        path = folder / WRITTEN
        listed = (*texts, *pictures, *sorted(earlier - {*removed}))
        path.write_text("".join(f"{file.name}\n" for file in listed))
        for path, text in texts.items():
            path.write_text(text)
        for path, drawn in pictures.items():
            drawn.figure.savefig(path, dpi=PNG_DPI, bbox_inches="tight")
    except OSError as error:
        raise FedflowError(f"cannot write {path}: {error.strerror or error}") from error
    return [*texts, *pictures]


def _pictures(methods: Methods, divided: Methods, colors: dict[str, int], name: str) -> dict[str, Drawing]:
    """Curves, and clients by method, where they have the same data."""
    drawings = {}
    for metric in PLOTTED:
        if any(measured(rows, metric) for rows in methods.values()):
            drawn = drawings[f"{name}-{metric}"] = curve(methods, colors, metric, "round", f"{name}-{metric}")
            drawn.axes.set_ylabel(METRICS[metric].label)
    if scores := mean_scores({variant: divided[variant] for variant in methods if variant in divided}):
        labels, key = [methods[variant][0].label for variant in scores], f"{name}-clients"
        drawings[key] = heat(100 * np.stack([*scores.values()], axis=1), labels, key)
    return drawings


def _all(ranked: Ranking, c: Compared) -> Table:
    """The metric by which methods are ranked on every partition, and their mean ranks."""
    metric, means = METRICS[ranked.metric], ranked.means.tolist()
    columns, cells = [], dict[str, list[Cell]]()
    for p in c.partitions:
        table = metric_table({variant: p.methods[variant] for variant in ranked.variants}, [metric])
        columns.append((f"{p.name}, %" if metric.unit is SHARE else p.name, table.columns[0][1], ""))
        for row in table.rows:
            cells.setdefault(row.variant, []).append(row.cells[0])
    rows = [
        Row(variant, name, [*cells[variant], Cell(f"{mean:.2f}", sort=mean, best=mean == min(means))])
        for variant, name, mean in zip(ranked.variants, ranked.labels, means, strict=True)
    ]
    return Table([*columns, ("Mean rank", "", "")], rows)


def latex(table: Table, note: str = "") -> str:
    """The table as a ``tabular`` environment for booktabs; ``note`` replaces its first comment."""
    head = ["Method", *(name for name, _, _ in table.columns)]
    lines = [
        r"\begin{tabular}{l" + "r" * len(table.columns) + "}",
        r"\toprule",
        " & ".join(map(escaped, head)) + r" \\",
        r"\midrule",
    ]
    for row in table.rows:
        cells = []
        for cell in row.cells:
            mean = rf"\textbf{{{escaped(cell.text)}}}" if cell.best else escaped(cell.text)
            some = f"({escaped(cell.note)})" if cell.note else ""
            cells.append(" ".join(filter(None, [mean, escaped(cell.spread), some])))
        lines.append(" & ".join([escaped(row.label), *cells]) + r" \\")
    spreads = {spread for _, spread, _ in table.columns if spread}
    note = note or (f"{' and '.join(sorted(spreads))} over seeds; the best mean is bold" if spreads else "")
    return "\n".join([*([f"% {note}"] if note else []), *lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def escaped(text: str) -> str:
    """Text with LaTeX's special characters escaped."""
    return "".join(SPECIAL.get(sign, sign) for sign in text)


def _file(name: str, others: Iterable[str]) -> str:
    """A partition in a file name that LaTeX reads without quotes; no name of ``others`` has the same."""
    short = re.sub(r"[^\w-]+", "-", name)[:LIMIT]
    return f"{short}-{digest(name, SHORT)}" if short in [_file(other, ()) for other in others] else short
