"""Methods as `fedflow.Ditto` and partition schemes as `fedflow.dirichlet`."""

from collections.abc import Callable
from functools import partial
from typing import Any

from fedflow.errors import unknown_name
from fedflow.front.inputs import scheme
from fedflow.methods import METHODS
from fedflow.partition import SCHEMES


def methods() -> dict[str, Any]:
    """Class name -> class of every registered method."""
    return {cls.__name__: cls for cls in METHODS.values()}


def known() -> list[str]:
    """All names that `lookup` finds."""
    return [*methods(), *SCHEMES]


def lookup(name: str) -> Callable[..., Any]:
    """The method or the scheme of this name. Raises AttributeError."""
    if name in SCHEMES:
        made = partial(scheme, name)
        made.__doc__ = f"{SCHEMES[name].__doc__ or ''}\n\nSee `fedflow schemes {name}`."
        return made
    if name in methods():
        return methods()[name]
    raise AttributeError(str(unknown_name("fedflow", name, known())))
