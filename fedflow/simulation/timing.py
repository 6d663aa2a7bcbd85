"""How long clients would take: simulated time, by which runs can be compared and clients come late.

A client k that goes G times through its samples for gradients and L times for losses alone is done after
down_k + (G + L / 3) sigma_k + up_k: a gradient is a pass forwards and one backwards, of twice the products.
G is E epochs for most methods; `Method.work` has those of each. One epoch, or one gradient of all samples at
once, takes sigma_k = ceil(n_k / B) * (seconds per local step), which depends on how fast the client is. What
clients compute in introductions, and to be served, takes no time.

Sources: FedEff (down_k, sigma_k and up_k are its beta_i, sigma_i and delta_i); Wang, Wang, Cui, Chen, "FADAS:
Towards Federated Adaptive Asynchronous Optimization", ICML 2024, whose code has the three classes of speed.
"""

import numpy as np

from fedflow.errors import BadInput
from fedflow.seeding import generator
from fedflow.settings import Settings, option

LOSS = 1 / 3  # of the time of a gradient


class Timing(Settings):
    """How fast clients are. Every time is in the same unit, say seconds."""

    section = "run.timing"
    speeds: list[list[float]] = option(
        factory=lambda: [[1.0, 2.0], [3.0, 5.0], [5.0, 8.0]], ge=0,
        doc="classes of clients, equally likely: least and most time per unit of work",
        source="code of FADAS; (50, 80) for the last one is its large delay",
    )  # fmt: skip
    work: str = option(
        "step", "the unit of work: a local step, or an epoch however many samples it has",
        choices=("step", "epoch"),
    )  # fmt: skip
    steady: bool = option(True, "a client keeps the speed that it drew; else it draws anew in every round")
    down: list[float] = option(factory=lambda: [0.0, 0.0], doc="least and most time of a download", ge=0)
    up: list[float] = option(factory=lambda: [0.0, 0.0], doc="least and most time of an upload", ge=0)
    given: list[list[float]] | None = option(
        None, "time of a download, an epoch and an upload of every client, in place of all drawn ones", ge=0
    )

    def validate(self) -> None:
        ranges = [(f"speeds[{i}]", r) for i, r in enumerate(self.speeds)]
        for name, found in (*ranges, ("down", self.down), ("up", self.up)):
            if len(found) != 2 or found[0] > found[1]:
                raise BadInput(f"{self.section}.{name}", found, "two numbers, the least and the most time")
        if not self.speeds:
            raise BadInput(f"{self.section}.speeds", self.speeds, "at least one class of clients")
        for k, row in enumerate(self.given or ()):
            if len(row) != 3:
                raise BadInput(f"{self.section}.given[{k}]", row, "three numbers: download, epoch, upload")

    def need(self, clients: int) -> None:
        """Raise `BadInput` unless the times of so many clients are known."""
        if self.given is not None and len(self.given) != clients:
            raise BadInput(f"{self.section}.given", self.given, f"a list of {clients} items, one per client")

    def times(self, seed: int, client: int, steps: int, round: int = 0) -> np.ndarray:
        """Time [3] of a download, of an epoch of so many local steps, and of an upload."""
        if self.given is not None:
            return np.array(self.given[client])
        least, most = self.speeds[generator(seed, "speed", client).integers(len(self.speeds))]
        rng = generator(seed, "time", client, *([] if self.steady else [round]))
        low, high = np.array([self.down, [least, most], self.up]).T
        return rng.uniform(low, high) * [1, steps if self.work == "step" else 1, 1]
