"""fedflow: federated-learning experiments that are right, fast, tracked and restartable."""

__version__ = "0.1.0"
