"""The methods by name."""

from collections.abc import Mapping

from fedflow.errors import unknown_name
from fedflow.methods.base import Method
from fedflow.settings import registering

METHODS: dict[str, type[Method]] = {}
register = registering(METHODS)


def build_method(name: str, hyper_parameters: Mapping[str, object] | None = None) -> Method:
    """The named method with its hyper-parameters; `BadInput` for unknown names or bad values."""
    if name not in METHODS:
        raise unknown_name("method.name", name, METHODS)
    return METHODS[name].parse(hyper_parameters or {})
