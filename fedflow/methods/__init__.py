"""Federated methods, one file each. Importing this package registers them all."""

from fedflow.methods import ditto, fedavg, fednova, fedper, fedprox, ifca, local, scaffold  # noqa: F401
from fedflow.methods.base import METHODS, Method, build_method

__all__ = ["METHODS", "Method", "build_method"]
