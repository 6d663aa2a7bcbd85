"""Printing of tables, texts and single lines."""

import json
import re
import textwrap
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

MANY, GAP, MARK = 100, 2, 0xE000  # rows that rich lays out; spaces between columns; characters without use
console = Console(markup=False, emoji=False)  # names, reasons and references may contain square brackets


def print_line(line: object) -> None:
    """Print one line as it is, however long."""
    console.print(line, highlight=False, soft_wrap=True)


def print_indented(words: str) -> None:
    """Print words in lines as wide as the terminal, indented."""
    lines = textwrap.wrap(
        words,
        console.width,
        initial_indent="  ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    print_line("\n".join(lines))


def print_json(value: object) -> None:
    print(json.dumps(value, indent=1, ensure_ascii=False))


def records(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[dict[str, Any]]:
    """The rows of a table by column, for JSON."""
    return [dict(zip(columns, row, strict=True)) for row in rows]


def print_metrics(metrics: dict[str, Any], folder: Path) -> None:
    """Print the headline numbers of a run; diagnostics of the method are in its files."""
    from fedflow.metrics.table import headlines, metric_of

    print_numbers({name: metrics[name] for name in headlines(metrics) if metric_of(name)}, folder)


def print_numbers(numbers: dict[str, Any], folder: Path) -> None:
    """Print the numbers that were measured, and the folder of the results."""
    measured = {name: value for name, value in numbers.items() if value is not None}
    parts = [f"{name} {v if type(v) is int else format(v, '.4g')}" for name, v in measured.items()]
    print_line(", ".join(parts))
    print_line(f"results: {folder}")


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table as wide as the terminal; cells are wrapped, or cut with "…" in the first column."""
    rows = [*rows]
    if len(rows) <= MANY:
        console.print(_table(title, columns, rows))
        return
    widths = _widths(columns, rows)
    console.print(_table(title, columns, rows[:1], widths))

    def fits(row: Sequence[str]) -> bool:
        return all(cell_len(cell) <= width and "\n" not in cell for cell, width in zip(row, widths))

    for short, group in groupby(rows[1:], fits):  # rich takes as long for a cell that fits as for a paragraph
        alike = [*group]
        console.print(_lines(alike, widths) if short else _table("", columns, alike, widths, header=False))


def _table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    widths: Sequence[int | None] = (),
    header: bool = True,
) -> Table:
    shown = header and any(columns)
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, show_header=shown)
    for i, (column, width) in enumerate(zip(columns, widths or [None] * len(columns), strict=True)):
        first = i == 0
        overflow: Literal["ellipsis", "fold"] = "ellipsis" if first else "fold"
        style = "bold" if first else ""
        table.add_column(column, no_wrap=first, style=style, overflow=overflow, width=width)
    for row in rows:
        table.add_row(*row)
    return table


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """The widths of the columns of a table, which follow from its longest cells and words."""
    longest = [max(rows, key=lambda row: cell_len(row[i])) for i in range(len(columns))]
    words = [
        max(rows, key=lambda row: max(map(cell_len, row[i].split()), default=0)) for i in range(len(columns))
    ]
    marks = [chr(MARK + i) for i in range(len(columns))]
    *_, last = console.render_lines(_table("", columns, [*longest, *words, marks]), pad=False)
    line = "".join(segment.text for segment in last)
    ends = [line.index(mark) - GAP for mark in marks[1:]]
    return [end - line.index(mark) for mark, end in zip(marks, [*ends, len(line)], strict=True)]


def _lines(rows: Iterable[Sequence[str]], widths: Sequence[int]) -> Text:
    """Rows whose cells fit, as `_table` shows them."""
    gap, lines = " " * GAP, Text(no_wrap=True, overflow="ignore")
    for row in rows:
        first, *others = (cell + " " * (w - cell_len(cell)) for cell, w in zip(row, widths, strict=True))
        lines.append(first, "bold").append(f"{gap}{gap.join(others)}\n")
    lines.right_crop(1)  # printing ends the last line
    return lines


def shortened(value: object, length: int) -> str:
    """A value as text of at most this length."""
    text = "" if value is None else str(value)
    return text if len(text) <= length else f"{text[: length - 3]}..."


def print_text(text: str) -> None:
    """Print the text of a module with paragraphs wrapped to the terminal; examples are not wrapped."""
    for paragraph in text.split("\n\n"):
        if not paragraph.startswith(">>>"):
            items = re.split(r"\n(?=\*|[A-Z][\w ]{2,20}: )", paragraph)
            paragraph = "\n".join(textwrap.fill(" ".join(i.split()), console.width) for i in items)
        console.print(paragraph, highlight=False, soft_wrap=True)
        console.print()


def options_table(options: list[dict[str, Any]]) -> tuple[str, tuple[str, ...], list[tuple]]:
    """The title, columns and rows of a table of parameters."""
    from fedflow.settings import written

    rows = [
        (
            o["name"],
            o["symbol"],
            written(o["default"]),
            o["accepts"],
            o["doc"] + (f" [{o['source']}]" if o["source"] else ""),
        )
        for o in options
    ]
    return "parameters", ("name", "symbol", "default", "accepts", "meaning"), rows
