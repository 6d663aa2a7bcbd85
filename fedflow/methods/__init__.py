"""Federated methods, one file each. Importing this package registers them all."""

from fedflow.methods import (  # noqa: F401
    ditto,
    fedavg,
    fednova,
    fedper,
    fedprox,
    fedsgd,
    ifca,
    local,
    scaffold,
)
from fedflow.methods.base import METHODS, Method, build_method

__all__ = ["METHODS", "Method", "build_method"]
