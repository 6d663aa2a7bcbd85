"""A quick start of commands that import much."""

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """No garbage collection within this context, and none later of what is in memory at its end.

    Imports of PyTorch and MLflow make a million objects that stay: looking through them again and again takes
    a quarter of a small command, half of that when it ends. Not for training, which makes tensors in cycles.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if "triton" in sys.modules:  # it reports what is not collected in the end as leaks
            atexit.unregister(gc.unfreeze)  # once, however often this is called
            atexit.register(gc.unfreeze)
        if enabled:
            gc.enable()
