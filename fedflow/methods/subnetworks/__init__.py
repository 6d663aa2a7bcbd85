"""Clients with part of a network: masks that they learn, and networks of several sizes."""

from fedflow.methods.subnetworks import decouple, fedhen, heterofl, noside, subfedavg_hy, subfedavg_un  # noqa: F401
