"""A quick start of commands that import much."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """No garbage collection within this context, and none of what is in memory at its end.

    Imports of PyTorch and MLflow make a million objects that stay: looking through them again and again takes
    a quarter of a small command. Not for training, which makes tensors in cycles.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
