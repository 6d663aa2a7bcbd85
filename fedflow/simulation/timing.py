"""Simulated time, by which runs are compared and updates of asynchronous clients are ordered.

A client k that goes G times through its samples for gradients and L times for losses only is done after
down_k + (G + L / 3) sigma_k + up_k: a gradient is a forward pass and a backward pass of twice the cost.
G is E epochs for most methods; `Method.work` has the numbers of each. One epoch, or one gradient over all
samples, takes sigma_k = ceil(n_k / B) * (seconds per local step), where the latter is the client's speed.
Computation in the onboarding, and for serving a model, takes no time.

Sources: FedEff (down_k, sigma_k and up_k are its beta_i, sigma_i and delta_i); Wang, Wang, Cui, Chen, "FADAS:
Towards Federated Adaptive Asynchronous Optimization", ICML 2024, whose code has the three classes of speed.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fedflow.errors import BadInput
from fedflow.local.local_training import LocalTraining
from fedflow.seeding import generator
from fedflow.settings import Settings, option

LOSS = 1 / 3  # of the time of a gradient


class Timing(Settings):
    """Speed of clients. All times are in one unit, for example seconds."""

    section = "run.timing"
    speeds: list[list[float]] = option(
        factory=lambda: [[1.0, 2.0], [3.0, 5.0], [5.0, 8.0]],
        ge=0,
        doc="classes of clients, equally likely: least and most time per unit of work",
        source="code of FADAS; (50, 80) for the last one is its large delay",
    )
    work: str = option(
        "step", "unit of work: a local step, or an epoch of any size", choices=("step", "epoch")
    )
    steady: bool = option(True, "each client draws its speed once; else in every round")
    down: list[float] = option(factory=lambda: [0.0, 0.0], doc="least and most time of a download", ge=0)
    up: list[float] = option(factory=lambda: [0.0, 0.0], doc="least and most time of an upload", ge=0)
    given: list[list[float]] | None = option(
        None, "times of a download, an epoch and an upload of every client, instead of drawn ones", ge=0
    )

    def validate(self) -> None:
        ranges = [(f"speeds[{i}]", r) for i, r in enumerate(self.speeds)]
        for name, given in (*ranges, ("down", self.down), ("up", self.up)):
            if len(given) != 2 or given[0] > given[1]:
                raise BadInput(f"{self.section}.{name}", given, "two numbers, the least and the most time")
        if not self.speeds:
            raise BadInput(f"{self.section}.speeds", self.speeds, "at least one class of clients")
        for k, row in enumerate(self.given or ()):
            if len(row) != 3:
                raise BadInput(f"{self.section}.given[{k}]", row, "three numbers: download, epoch, upload")

    def check(self, clients: int) -> None:
        """Raise `BadInput` if ``given`` has times for another number of clients."""
        if self.given is not None and len(self.given) != clients:
            raise BadInput(f"{self.section}.given", self.given, f"a list of {clients} items, one per client")

    def times(self, seed: int, client: int, steps: int, round: int = 0) -> np.ndarray:
        """Times [3] of a download, of an epoch of ``steps`` local steps, and of an upload."""
        if self.given is not None:
            return np.array(self.given[client])
        least, most = self.speeds[generator(seed, "speed", client).integers(len(self.speeds))]
        rng = generator(seed, "time", client, *([] if self.steady else [round]))
        low, high = np.array([self.down, [least, most], self.up]).T
        times: np.ndarray = rng.uniform(low, high) * [1, steps if self.work == "step" else 1, 1]
        return times


class Clock:
    """The simulated time of one run, whose clients have ``sizes`` [N] training samples."""

    def __init__(self, timing: Timing, seed: int, training: LocalTraining, sizes: np.ndarray) -> None:
        self.timing, self.seed, self.training, self.sizes = timing, seed, training, sizes

    def ends(self, t: int, client: int, start: float, gradients: float, losses: float) -> float:
        """The end of work of these passes over the samples, begun at ``start`` in round ``t``."""
        batches = self.training.batches(int(self.sizes[client]))
        down, epoch, up = self.timing.times(self.seed, client, batches, t)
        return start + float(down + (gradients + LOSS * losses) * epoch + up)

    def poll(self, t: int, client: int) -> float:
        """The time that a client takes for a download, its losses, and an upload."""
        return self.ends(t, client, 0.0, 0.0, 1.0)


@dataclass(frozen=True)
class Work:
    """The training of one client, started in round ``begun`` with ``received``, done at time ``ends``."""

    client: int
    begun: int
    ends: float
    epochs: int | None  # set by the method, or None for the usual number
    received: dict[str, Tensor]
    most: int | None = None  # upper limit of epochs, for a straggler
    gradients: int = 0  # samples whose gradient it computes


def first_done(
    busy: list[Work],
    now: float,
    size: int,
    slots: int,
    clients: int,
    rng: np.random.Generator,
    begin: Callable[[int, float], Work],
) -> tuple[list[Work], list[Work]]:
    """The next ``size`` works to finish, in order, and the works still ``busy`` when the last one ends.

    ``slots`` of all ``clients`` train at any time. A client that finishes is replaced at once by a random
    idle one, which starts from the server's state before these updates. No client trains twice for the same
    server step, so a slot stays empty if all other clients are busy or done.
    """
    busy, done = list(busy), list[Work]()
    while len(done) < size:
        taken = sorted(work.client for work in busy + done)
        idle = clients - len(taken)
        for number in rng.choice(idle, size=min(slots - len(busy), idle), replace=False) if idle else ():
            busy.append(begin(_idle(int(number), taken), now))
        first = min(busy, key=lambda work: (work.ends, work.client))
        busy.remove(first)
        done.append(first)
        now = first.ends
    return done, busy


def _idle(number: int, taken: list[int]) -> int:
    """The client with this number among all that are not ``taken`` (sorted)."""
    for k in taken:
        number += k <= number
    return number
