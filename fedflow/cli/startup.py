"""Quick start of commands with large imports."""

import atexit
import gc
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


def interrupted(*_: object) -> NoReturn:
    """Handle SIGTERM like Ctrl-C, so that the run is recorded as killed; ignore it while that is done."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


@contextmanager
def importing() -> Iterator[None]:
    """Suspend garbage collection, and exclude from it all objects in memory at the end of the context.

    Imports of PyTorch and MLflow make a million objects that stay; scanning them repeatedly takes a quarter
    of a small command, half of it at exit. Not for training, which makes cycles of tensors.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if "triton" in sys.modules:  # it reports objects that are not collected at exit as leaks
            atexit.unregister(gc.unfreeze)  # once, however often this is called
            atexit.register(gc.unfreeze)
        if enabled:
            gc.enable()
