"""Methods as `fedflow.Ditto` and partition schemes as `fedflow.dirichlet`."""

import inspect
import sys
import textwrap
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any

from fedflow.errors import unknown_name
from fedflow.front.inputs import scheme
from fedflow.methods import METHODS, Method
from fedflow.partition import SCHEMES, PartitionParams
from fedflow.settings import Settings, explain, hints, written

NAMED = ("dataset", "scheme", "parameters")  # of a partition: what the function itself stands for


def methods() -> dict[str, type[Method]]:
    """Class name -> class of every registered method, also those that the user has registered."""
    return {cls.__name__: cls for cls in METHODS.values()}


def known() -> list[str]:
    """All names that `lookup` finds."""
    return [*methods(), *SCHEMES]


def lookup(name: str) -> Callable[..., Any]:
    """The method or the scheme of this name. Raises AttributeError."""
    if name in SCHEMES:
        return scheme_function(name)
    if cls := methods().get(name):
        if (cls.__doc__ or "").startswith(f"{name}("):  # the signature, which dataclasses write
            cls.__doc__ = page(cls, keywords(cls))
        return cls
    raise AttributeError(str(unknown_name("fedflow", name, known(), "fedflow methods")))


@cache
def scheme_function(name: str) -> Callable[..., PartitionParams]:
    """``scheme`` with this name, with its keywords as signature and its page as docstring."""

    def made(**settings: Any) -> PartitionParams:
        return scheme(name, **settings)

    made.__name__ = made.__qualname__ = name
    made.__doc__ = page(SCHEMES[name], scheme_keywords(name))
    made.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                row["name"], inspect.Parameter.KEYWORD_ONLY, default=default, annotation=row["hint"]
            )
            for row in scheme_keywords(name)
            for default in [inspect.Parameter.empty if row["default"] == "required" else row["default"]]
        ],
        return_annotation=PartitionParams,
    )
    return made


def keywords(*classes: type[Settings]) -> list[dict[str, Any]]:
    """The rows of `explain` for the fields of these classes, with their types as ``hint`` and ``choices``."""
    return [
        row | {"hint": hints(cls)[field.name], "choices": field.metadata.get("choices", ())}
        for cls in classes
        for row, field in zip(explain(cls), fields(cls))  # type: ignore[arg-type]
        if cls is not PartitionParams or field.name not in NAMED
    ]


def scheme_keywords(name: str) -> list[dict[str, Any]]:
    """Those of a scheme, then those that all partitions share."""
    return keywords(SCHEMES[name], PartitionParams)


def page(cls: type[Settings], options: list[dict[str, Any]]) -> str:
    """The text of the module of a method or a scheme, and its keywords."""
    text = (sys.modules[cls.__module__].__doc__ or "").split("\n\n>>>")[0].strip()
    lines = [
        f"{o['name']}: {o['doc']} ({o['accepts']}; "
        + ("required)" if o["default"] == "required" else f"default {written(o['default'])})")
        for o in options
    ]
    wrapped = [textwrap.fill(line, 100, initial_indent=4 * " ", subsequent_indent=8 * " ") for line in lines]
    return "\n".join([text, "", "Keywords:", *wrapped] if lines else [text])
