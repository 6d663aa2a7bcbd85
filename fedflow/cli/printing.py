"""Printing of tables, texts and single lines."""

import json
import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

console = Console(markup=False, emoji=False)  # names, reasons and references may contain square brackets


def print_line(line: object) -> None:
    """Print one line as it is, however long."""
    console.print(line, highlight=False, soft_wrap=True)


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
    table = Table(
        title=title or None, title_justify="left", box=None, pad_edge=False, show_header=any(columns)
    )
    for i, column in enumerate(columns):
        first = i == 0
        overflow: Literal["ellipsis", "fold"] = "ellipsis" if first else "fold"
        table.add_column(column, no_wrap=first, style="bold" if first else "", overflow=overflow)
    for row in rows:
        table.add_row(*row)
    console.print(table)


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
