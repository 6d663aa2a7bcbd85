"""Signatures and docstrings of methods, schemes and `run`, from the fields of their settings."""

import inspect
import sys
import textwrap
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any

from fedflow.errors import unknown_name
from fedflow.front.inputs import scheme
from fedflow.partition import SCHEMES, PartitionParams
from fedflow.settings import Settings, explain, hints, written

NAMED = ("dataset", "scheme", "parameters")  # of a partition: what the function itself stands for


@cache
def scheme_function(name: str) -> Callable[..., PartitionParams]:
    """``scheme`` with this name, with its keywords as signature and its page as docstring."""

    rows = keywords(SCHEMES[name], PartitionParams)

    def made(**settings: Any) -> PartitionParams:
        for other in NAMED:
            if other in settings:
                raise unknown_name(f"fedflow.{name}", other, [row["name"] for row in rows])
        return scheme(name, **settings)

    made.__name__ = made.__qualname__ = name
    made.__doc__ = page(SCHEMES[name], rows)
    made.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        parameters(rows), return_annotation=PartitionParams
    )
    return made


def keywords(*classes: type[Settings]) -> list[dict[str, Any]]:
    """The rows of `explain` for the fields of these classes, with their types as ``hint``."""
    return [
        row | {"hint": hints(cls)[field.name]}
        for cls in classes
        for row, field in zip(explain(cls), fields(cls))  # type: ignore[arg-type]
        if cls is not PartitionParams or field.name not in NAMED
    ]


def parameters(rows: list[dict[str, Any]]) -> list[inspect.Parameter]:
    """The rows of `keywords` as parameters of a signature."""
    empty, kind = inspect.Parameter.empty, inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(
            row["name"],
            kind,
            default=empty if row["default"] == "required" else row["default"],
            annotation=row["hint"],
        )
        for row in rows
    ]


def page(cls: type[Settings], rows: list[dict[str, Any]]) -> str:
    """The text of the module of a method or a scheme, and its keywords."""
    text = (sys.modules[cls.__module__].__doc__ or "").split("\n\n>>>")[0].strip()
    return "\n".join([text, *([""] if rows else []), *listed(rows)])


def listed(rows: list[dict[str, Any]]) -> list[str]:
    """The section "Keywords" of a docstring; nothing without rows."""
    lines = [
        f"{row['name']}: {row['doc']} ({row['accepts']}; "
        + ("required)" if row["default"] == "required" else f"default {written(row['default'])})")
        for row in rows
    ]
    wrapped = [textwrap.fill(line, 100, initial_indent=4 * " ", subsequent_indent=8 * " ") for line in lines]
    return ["Keywords:", *wrapped] if lines else []
