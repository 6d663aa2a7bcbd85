"""Servers that do not wait for slow clients, or fit the clients' work to a deadline."""

from fedflow.methods.asynchronous import cc_fedadagrad, cc_fedadam, cc_fedams, fedbuff, fedeff  # noqa: F401
