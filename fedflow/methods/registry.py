"""The methods by name."""

from collections.abc import Mapping

from fedflow.errors import called, unknown_name
from fedflow.methods.method import Method
from fedflow.settings import registering

METHODS: dict[str, type[Method]] = {}
register = registering(METHODS, Method)


def method_name(name: object) -> object:
    """Return the registered name for a label such as "LG-FedAvg"; other values are returned unchanged."""
    labels = {registered: cls.label for registered, cls in METHODS.items()}
    return called(name, labels) if isinstance(name, str) else name


def build_method(name: str, hyper_parameters: Mapping[str, object] | None = None) -> Method:
    """Return the named method with its hyperparameters; raise `BadInput` for unknown names or bad values."""
    registered = method_name(name)
    if registered not in METHODS:
        raise unknown_name("method.name", name, METHODS, "fedflow methods")
    return METHODS[str(registered)].parse(hyper_parameters or {})
