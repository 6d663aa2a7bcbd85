"""Printing of tables, texts and single lines."""

import json
import re
import textwrap
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

WORD = 24  # letters; longer words may be broken
MANY, GAP = 100, 2  # rows that rich lays out; spaces between columns
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
    """Print a table as wide as the terminal; cells are wrapped, or cut with "…" in the first column.

    It is wider if words, such as numbers, would be broken.
    """
    rows = [*rows]
    widths = _widths(columns, rows)
    room = max(console.width, sum(widths) + GAP * (len(widths) - 1))

    def show(part: RenderableType) -> None:
        console.print(_Wide(part, room), crop=False)

    def fits(row: Sequence[str]) -> bool:
        return all(cell_len(cell) <= width and "\n" not in cell for cell, width in zip(row, widths))

    if len(rows) <= MANY:
        show(_table(title, columns, rows, widths))
        return
    show(_table(title, columns, rows[:1], widths))
    for short, group in groupby(rows[1:], fits):  # rich takes as long for a cell that fits as for a paragraph
        alike = [*group]
        show(_lines(alike, widths) if short else _table("", columns, alike, widths, header=False))


class _Wide(NamedTuple):
    """Something printed in this width, which may be more than the console's."""

    part: RenderableType
    width: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from console.render(self.part, options.update(width=self.width))


def _table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    widths: Sequence[int],
    header: bool = True,
) -> Table:
    shown = header and any(columns)
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, show_header=shown)
    for i, (column, width) in enumerate(zip(columns, widths, strict=True)):
        first = i == 0
        overflow: Literal["ellipsis", "fold"] = "ellipsis" if first else "fold"
        style = "bold" if first else ""
        table.add_column(column, no_wrap=first, style=style, overflow=overflow, width=width)
    for row in rows:
        table.add_row(*row)
    return table


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """The widths of the columns: of their longest lines if there is room, at least of their longest words.

    The widest columns are narrowed, the first one last. Words count up to `WORD` letters.
    """
    cells = [
        [text for cell in column for text in cell.splitlines()] for column in zip(columns, *rows, strict=True)
    ]
    widths = [max(map(cell_len, lines), default=0) for lines in cells]
    words = [max((cell_len(word) for line in lines for word in line.split()), default=0) for lines in cells]
    least = [min(word, WORD) for word in words]
    for narrowed in (range(1, len(widths)), range(1)):
        for _ in range(sum(widths) + GAP * (len(widths) - 1) - console.width):
            if wide := [i for i in narrowed if widths[i] > least[i]]:
                widths[max(wide, key=lambda i: widths[i])] -= 1
    return widths


def _lines(rows: Iterable[Sequence[str]], widths: Sequence[int]) -> Text:
    """Rows whose cells fit, as `_table` shows them."""
    gap, lines = " " * GAP, Text(no_wrap=True, overflow="ignore")
    for row in rows:
        first, *others = (cell + " " * (w - cell_len(cell)) for cell, w in zip(row, widths, strict=True))
        lines.append(first, "bold").append(f"{gap}{gap.join(others)}\n")
    lines.right_crop(1)  # printing ends the last line
    return lines


def cut(value: object, length: int) -> str:
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
