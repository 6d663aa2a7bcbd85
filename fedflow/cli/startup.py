"""A quick start of commands that import much."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """No garbage collection within this context, and none of what is in memory at its end.

    Imports of PyTorch and MLflow make a million objects that stay: looking through them again and again takes
    a sixth of a small command.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
