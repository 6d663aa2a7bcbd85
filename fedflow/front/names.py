"""Methods as `fedflow.Ditto` and partition schemes as `fedflow.dirichlet`."""

import inspect
import sys
from collections.abc import Callable
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
            cls.__doc__ = page(cls, explain(cls))
        return cls
    raise AttributeError(str(unknown_name("fedflow", name, known())))


@cache
def scheme_function(name: str) -> Callable[..., PartitionParams]:
    """``scheme`` with this name, with its keywords as signature and its page as docstring."""

    def made(**settings: Any) -> PartitionParams:
        return scheme(name, **settings)

    made.__name__ = made.__qualname__ = name
    made.__doc__ = page(SCHEMES[name], keywords(name))
    made.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                row["name"], inspect.Parameter.KEYWORD_ONLY, default=default, annotation=row["hint"]
            )
            for row in keywords(name)
            for default in [inspect.Parameter.empty if row["default"] == "required" else row["default"]]
        ],
        return_annotation=PartitionParams,
    )
    return made


def keywords(name: str) -> list[dict[str, Any]]:
    """The rows of `explain` for a scheme and for what all partitions share, with their types as ``hint``."""
    return [
        row | {"hint": hints(cls)[row["name"]]}
        for cls in (SCHEMES[name], PartitionParams)
        for row in explain(cls)
        if row["name"] not in NAMED
    ]


def page(cls: type[Settings], options: list[dict[str, Any]]) -> str:
    """The text of the module of a method or a scheme, and a line per keyword."""
    text = (sys.modules[cls.__module__].__doc__ or "").split("\n\n>>>")[0].strip()
    lines = [
        f"    {o['name']}: {o['doc']} ({o['accepts']}; "
        + ("required)" if o["default"] == "required" else f"default {written(o['default'])})")
        for o in options
    ]
    return "\n".join([text, "", "Keywords:", *lines])
