"""Partition schemes as functions: `fedflow.dirichlet`."""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

from fedflow.errors import BadInput, unknown_name
from fedflow.front.inputs import scheme
from fedflow.front.pages import keywords, page, parameters
from fedflow.partition import SCHEMES, PartitionParams
from fedflow.partition.scheme import Scheme
from fedflow.settings import Words

COUNT = "clients"  # the keyword of all schemes
NAMED = ("dataset", "scheme", "parameters")  # of a partition: what the function itself stands for


def scheme_function(name: str) -> Callable[..., PartitionParams]:
    """`scheme` with this name, with its keywords as signature and its page as docstring."""
    return _function(name, SCHEMES[name])  # type: ignore[arg-type]


@cache
def _function(name: str, parameters_of: type[Scheme]) -> Callable[..., PartitionParams]:
    rows = [*keywords(parameters_of), *(row for row in keywords(PartitionParams) if row["name"] not in NAMED)]

    def made(*values: Any, **settings: Any) -> PartitionParams:
        if values:
            raise BadInput(f"fedflow.{name}", _listed(values), f"keywords, such as {_keyed(rows, values)}")
        for other in NAMED:
            if other in settings:
                raise unknown_name(f"fedflow.{name}", other, [row["name"] for row in rows])
        return scheme(name, **settings)

    made.__name__ = made.__qualname__ = name
    made.__doc__ = page(parameters_of, rows)
    made.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        parameters(rows), return_annotation=PartitionParams
    )
    return made


def _listed(values: tuple[Any, ...]) -> Words:
    return Words(", ".join(map(repr, values)))


def _keyed(rows: list[dict[str, Any]], values: tuple[Any, ...]) -> str:
    """The values with probable keywords: of the scheme, then the number of clients."""
    first = rows[0]["name"]
    names = dict.fromkeys([COUNT] if isinstance(values[0], int) and len(values) == 1 else [first, COUNT])
    return ", ".join(f"{name}={value!r}" for name, value in zip(names, values))
