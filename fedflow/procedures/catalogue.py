"""Descriptions of procedures, read from their code: for ``fedflow procedures`` and the docs site."""

import inspect
import sys
from dataclasses import dataclass
from typing import Any

from fedflow.procedures.interface import PROCEDURES, Column, Procedure
from fedflow.settings import explain, markdown


@dataclass(frozen=True)
class ProcedurePage:
    """One procedure: text, idea, parameters, page in docs, and columns of its steps and its summary."""

    name: str
    label: str
    idea: str
    text: str
    options: list[dict[str, Any]]
    page: str
    step: str
    curves: dict[str, Column]
    metrics: dict[str, Column]


def describe(procedure: type[Procedure]) -> ProcedurePage:
    """The page of one procedure: the text is that of its class, or else of its module."""
    own = procedure.__doc__ or ""
    if own.startswith(f"{procedure.__name__}("):  # what dataclasses write where there is none
        own = sys.modules[procedure.__module__].__doc__ or ""
    text = inspect.cleandoc(own)
    first = text.split("\n\n")[0].replace("\n", " ")
    idea = first.partition(": ")[2] or first
    return ProcedurePage(
        procedure.name,
        procedure.label,
        idea[:1].upper() + idea[1:],
        text,
        explain(procedure),
        procedure.page,
        procedure.step_name,
        procedure.curves,
        procedure.metrics,
    )


def pages() -> list[ProcedurePage]:
    """All registered procedures, by name."""
    return [describe(procedure) for _, procedure in sorted(PROCEDURES.items())]


def measured(page: ProcedurePage) -> list[tuple[str, str, str, str, str]]:
    """A row per number of its summary, and of its steps: name, where, meaning, unit, what is better."""
    columns = (("summary", page.metrics), (f"every {page.step}", page.curves))
    return [
        (name, where, column.title, column.unit, column.better)
        for where, found in columns
        for name, column in found.items()
    ]


def catalogue() -> str:
    """The catalogue in Markdown: a table, then a section per procedure."""
    lines = [
        "# Procedures",
        "",
        "How to run them: [Procedures](howto/procedures.md); how to write one: "
        "[A procedure](adding.md#a-procedure).",
        "",
        "| name | procedure | idea |",
        "|---|---|---|",
        *(f"| [`{page.name}`](#{page.name}) | {page.label} | {page.idea} |" for page in pages()),
    ]
    return "\n".join([*lines, *(line for page in pages() for line in _section(page))]) + "\n"


def _section(page: ProcedurePage) -> list[str]:
    rows = [f"| `{name}` | {' | '.join(cells)} |" for name, *cells in measured(page)]
    more = [f"How to use it: [{page.page}]({page.page}).", ""] if page.page else []
    return [
        "",
        f'<a id="{page.name}"></a>',
        "",
        f"## {page.label} (`{page.name}`)",
        "",
        page.text,
        "",
        *more,
        *markdown(page.options),
        *([""] if page.options else []),
        "| number | of | meaning | unit | better |",
        "|---|---|---|---|---|",
        *rows,
    ]
