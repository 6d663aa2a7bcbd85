"""Counter-based randomness: every random choice has a key, not a position in a sequence.

A generator is keyed by (seed, purpose, round, client), so that results do not depend on the number of
workers, on the order in which they finish, on resuming, or on the other clients of the cohort.
"""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np


def generator(seed: int, purpose: str, *counters: int) -> np.random.Generator:
    """A NumPy generator for one purpose, e.g. ``generator(0, "batches", round, client)``."""
    return np.random.Generator(
        np.random.Philox(key=np.frombuffer(_digest(seed, purpose, counters), np.uint64))
    )


def torch_seed(seed: int, purpose: str, *counters: int) -> int:
    """A 63-bit seed for ``torch.Generator.manual_seed``, from the same keys."""
    return int.from_bytes(_digest(seed, purpose, counters)[:8], "little") >> 1


def place(seed: int, client: int, clients: int) -> float:
    """The place of a client in a random order of all ``clients``, in [0, 1), the same in all rounds.

    Of any share of the clients, exactly those have a smaller place. Newcomers have place 1.
    """
    return float(_order(seed, clients)[client]) / clients if client < clients else 1.0


@contextmanager
def undisturbed() -> Iterator[None]:
    """Leave the caller's generators of Python, NumPy and torch as they were before this context.

    Networks are initialized, and functions of the caller draw, from global generators.
    """
    import torch

    python, array = random.getstate(), np.random.get_state()  # noqa: NPY002
    started = torch.cuda.is_initialized()
    devices = list(range(torch.cuda.device_count())) if started else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(array)  # noqa: NPY002
        if not started and torch.cuda.is_available():  # does not start CUDA
            torch.cuda.manual_seed_all(torch.initial_seed())


@cache
def _order(seed: int, clients: int) -> np.ndarray:
    return generator(seed, "places").permutation(clients)


def _digest(seed: int, purpose: str, counters: tuple[int, ...]) -> bytes:
    address = ":".join(map(str, (seed, purpose, *counters)))
    return hashlib.blake2b(address.encode(), digest_size=16).digest()
