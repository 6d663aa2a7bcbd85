"""Federated methods by family, one file each. Importing this package registers them all."""

from fedflow.methods import asynchronous, averaging, clustered, fairness, generative, personal, subnetworks
from fedflow.methods.method import Method
from fedflow.methods.registry import METHODS, build_method
from fedflow.plugins import load_plugins

FAMILIES = (averaging, fairness, asynchronous, personal, clustered, subnetworks, generative)

__all__ = ["FAMILIES", "METHODS", "Method", "build_method"]

load_plugins()  # also those that register schemes: everything that reads params.yaml imports methods
