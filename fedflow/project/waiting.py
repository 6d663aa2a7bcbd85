"""Waits for other processes and servers, which are announced if they last."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from filelock import FileLock, Timeout

from fedflow.project.terminal import say

LONG = 10.0  # seconds after which a wait is announced
_ANNOUNCED: set[str] = set()


@contextmanager
def announced(what: str) -> Iterator[None]:
    """Print that this process waits for ``what``, if the context lasts `LONG` seconds; once per process."""

    def announce() -> None:
        if what not in _ANNOUNCED:
            _ANNOUNCED.add(what)
            say(f"waiting for {what}")

    timer = threading.Timer(LONG, announce)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def held(lock: FileLock, what: str) -> Iterator[None]:
    """Hold ``lock``, and announce that this process waits for ``what``, which holds it."""
    with suppress(Timeout):
        lock.acquire(timeout=0)
    if not lock.is_locked:
        with announced(what):
            lock.acquire()
    try:
        yield
    finally:
        lock.release()
