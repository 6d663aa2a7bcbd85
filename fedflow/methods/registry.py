"""The methods by name."""

from collections.abc import Mapping

from fedflow.errors import called, unknown_name
from fedflow.methods.method import Method
from fedflow.settings import registering

METHODS: dict[str, type[Method]] = {}
register = registering(METHODS)


def method_name(name: object) -> object:
    """The registered name of a method that is called by its label or in other capitals; else ``name``.

    "FedAvg", "LG-FedAvg" and "SCAFFOLD" are `fedavg`, `lg_fedavg` and `scaffold`.
    """
    labels = {each: cls.label for each, cls in METHODS.items()}
    return called(name, labels) if isinstance(name, str) else name


def build_method(name: str, hyper_parameters: Mapping[str, object] | None = None) -> Method:
    """The named method with its hyper-parameters; `BadInput` for unknown names or bad values."""
    known = method_name(name)
    if known not in METHODS:
        raise unknown_name("method.name", name, METHODS, "fedflow methods")
    return METHODS[str(known)].parse(hyper_parameters or {})
