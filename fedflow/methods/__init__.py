"""Federated methods by family, one file each. Importing this package registers them all."""

from fedflow.methods import asynchronous, averaging, clustered, fairness, personal  # noqa: F401
from fedflow.methods.base import Method
from fedflow.methods.registry import METHODS, build_method

__all__ = ["METHODS", "Method", "build_method"]
