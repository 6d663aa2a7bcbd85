"""Clients that come late, and servers that wait for none, or for a while."""

from fedflow.methods.asynchronous import (  # noqa: F401
    cc_fedadagrad,
    cc_fedadam,
    cc_fedams,
    fedbuff,
    fedeff,
)
