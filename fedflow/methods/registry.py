"""The methods by name."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from fedflow.errors import unknown_name
from fedflow.methods.base import Method

METHODS: dict[str, type[Method]] = {}

M = TypeVar("M", bound=type[Method])


def register(name: str, label: str) -> Callable[[M], M]:
    """Class decorator: register a method under ``name``, shown as ``label``."""

    def add(cls: M) -> M:
        cls.name, cls.label = name, label
        METHODS[name] = cls
        return cls

    return add


def build_method(name: str, hyper_parameters: Mapping[str, object] | None = None) -> Method:
    """The named method with its hyper-parameters; `BadInput` for unknown names or bad values."""
    if name not in METHODS:
        raise unknown_name("method.name", name, METHODS)
    return METHODS[name].parse(hyper_parameters or {})
