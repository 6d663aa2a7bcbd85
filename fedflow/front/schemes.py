"""Partition schemes as functions: `fedflow.dirichlet`."""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

from fedflow.errors import unknown_name
from fedflow.front.inputs import scheme
from fedflow.front.pages import keywords, page, parameters
from fedflow.partition import SCHEMES, PartitionParams

NAMED = ("dataset", "scheme", "parameters")  # of a partition: what the function itself stands for


@cache
def scheme_function(name: str) -> Callable[..., PartitionParams]:
    """``scheme`` with this name, with its keywords as signature and its page as docstring."""
    rows = [*keywords(SCHEMES[name]), *(row for row in keywords(PartitionParams) if row["name"] not in NAMED)]

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
