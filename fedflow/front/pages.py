"""Signatures and docstrings of methods, schemes and `run`, from the fields of their settings."""

import inspect
import sys
import textwrap
from dataclasses import fields
from typing import Any

from fedflow.settings import Settings, explain, hints, written


def keywords(cls: type[Settings]) -> list[dict[str, Any]]:
    """The rows of `explain` for the fields of a class, with their types as ``hint``."""
    types = hints(cls)
    names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    return [row | {"hint": types[name]} for name, row in zip(names, explain(cls), strict=True)]


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
