"""Computations of servers, partitions and procedures relative to their earlier forms, in turns.

Angles of 1,000 clients from an SVD of every pair; signatures from a Gram matrix up to 1,024 images; shares
of a Dirichlet scheme drawn one by one; percentiles of LeNet-5 by sorting all weights; functions of the loss
as objectives of the whole vector; LTM of models that never change, recomputed. Processor seconds.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.quadratic import FIT, Timed
from benchmarks.workload import federation, spread, summary
from fedflow.heterogeneity import proximity, signature, subspace
from fedflow.local import masks
from fedflow.local.trainer import Trainer
from fedflow.partition import Samples, dirichlet_disjoint
from fedflow.procedures.online.procedure import Online
from fedflow.procedures.online.stream import stream_of
from fedflow.seeding import generator

TURNS = 3
Ways = tuple[Callable[[], float], Callable[[], float]]  # seconds before and now


def seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


@contextmanager
def replaced(owner: Any, name: str, value: object) -> Iterator[None]:
    """``owner`` with another attribute or item ``name``."""
    table = owner if isinstance(owner, dict) else vars(owner)
    before = table[name]
    table[name] = value
    yield
    table[name] = before


def both(work: Callable[[], object], owner: Any, name: str, value: object) -> Ways:
    """Seconds of ``work`` with the earlier ``value`` of an attribute or item, and as it is."""

    def before() -> float:
        with replaced(owner, name, value):
            return seconds(work)

    return before, lambda: seconds(work)


def images(count: int, side: int, channels: int) -> np.ndarray:
    """Random images [n, channels, side, side] whose neighboring pixels are similar."""
    noise = np.random.default_rng(count).normal(size=(count, channels, side, side))
    smooth = noise.cumsum(2).cumsum(3)
    return np.uint8(127 * smooth / np.abs(smooth).max() + 127)


def angles(p: int, mode: str) -> Ways:
    pixels = images(60_000, 28, 1).reshape(1000, 60, -1)
    signatures = [signature(x, p) for x in pixels]

    def singular(c: np.ndarray, p: np.ndarray, q: np.ndarray) -> np.ndarray:
        degrees = subspace._degrees(np.linalg.svd(c, compute_uv=False))
        return degrees[..., 0] if mode == "principal_min" else subspace._first(degrees, p, q)

    return both(lambda: proximity(signatures, mode=mode), subspace.MODES, mode, singular)


def client_signature(count: int) -> Ways:
    x = images(count, 32, 3)
    return both(lambda: [signature(x, 3) for _ in range(5)], subspace, "GRAM_SIDE", 128)


def shares(clients: int) -> Ways:
    samples = Samples(np.random.default_rng(0).integers(10, size=1_000_000))
    scheme = dirichlet_disjoint.DirichletDisjoint()

    def split() -> None:
        scheme.split(samples, clients, generator(0, "benchmark"))

    return both(split, dirichlet_disjoint, "ALONE", 1 << 62)


def percentiles() -> Ways:
    model = federation(1, 10).model
    w = model.init(0)
    mask = torch.ones_like(w, dtype=torch.bool)

    def by_sorting(values: Tensor, chosen: Tensor, rate: float, most: float) -> Tensor:
        ascending = values.double().masked_fill(~chosen, torch.inf).sort().values
        rank = rate * (chosen.sum().double() - 1)
        low, high = ascending.gather(0, torch.stack([rank.floor(), rank.ceil()]).long()).unbind()
        return torch.lerp(low, high, rank - rank.floor())

    def prune() -> None:
        for _ in range(30):
            masks.without_smallest(model, w, mask, 0.1, model.weights)

    return both(prune, masks, "_percentile", by_sorting)


def costs(name: str) -> Ways:
    def objective(self: Trainer, loss: Any = None, *, start: Tensor, cost: Any = None, **more: Any) -> Tensor:
        plain = loss or self.loss
        return FIT(self, (lambda w, batch: cost(plain(w, batch))) if cost else loss, start=start, **more)

    work = federation(10, 100)
    before, now = Timed(work, name, objective), Timed(work, name)
    return before.turn, now.turn


class Forgetting(dict[Any, Any]):
    """A dictionary that never has what it holds."""

    def __contains__(self, key: object) -> bool:
        return False


def ltm() -> Ways:
    tasks = 60
    procedure = Online.parse({"partition": "toy", "learners": {"fs": {}}, "evaluate_every": 5})
    stream = stream_of(federation(tasks, 20, "mlp", hidden=[32]), "toy", None, 0, 0)
    part = procedure.parts(stream)[0]

    def measured(memory: dict[Any, Any]) -> float:
        stream.untrained.clear()
        object.__setattr__(stream, "untrained", memory)
        state = procedure.start(stream, part)
        started = time.process_time()
        for number in range(1, tasks + 1):
            state, _ = procedure.step(stream, part, state, number)
        return time.process_time() - started

    return lambda: measured(Forgetting()), lambda: measured({})


ROWS: dict[str, Callable[[], Ways]] = {
    "angles, p = 3": lambda: angles(3, "principal_min"),
    "sums of angles, p = 3": lambda: angles(3, "principal_sum"),
    "angles, p = 5": lambda: angles(5, "principal_min"),
    "signatures, 250 images": lambda: client_signature(250),
    "signatures, 500 images": lambda: client_signature(500),
    "signatures, 1,000 images": lambda: client_signature(1000),
    "dirichlet_disjoint, 1,000 clients": lambda: shares(1000),
    "dirichlet_disjoint, 10,000 clients": lambda: shares(10_000),
    "Sub-FedAvg (Un), percentiles": percentiles,
    "PropFair, client steps": lambda: costs("propfair"),
    "FedSplit, client steps": lambda: costs("fedsplit"),
    "LTM of fs, 60 tasks": ltm,
}


def main() -> dict[str, Any]:
    torch.set_num_threads(1)
    measured: dict[str, Any] = {}
    for name, prepare in ROWS.items():
        ways = prepare()
        turns = [[way() for way in ways] for _ in range(1 + TURNS)][1:]  # the first one warms up
        times = dict(zip(("before", "now"), zip(*turns)))
        ratios = [before / now for before, now in turns]
        print(
            f"{name:<36} {', '.join(f'{way} {spread(s)}' for way, s in times.items())}, {spread(ratios)}",
            flush=True,
        )
        measured[name] = {way: summary(s) for way, s in times.items()} | {"ratio": summary(ratios)}
    return measured
