"""What asynchronous methods share: clients come when they are done, with updates to an older model.

Several clients are at work at any time. Each has fetched the model of its day; with every m updates, late
ones among them, the server takes a step.
"""

import math

from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.methods.base import Asynchronous, GlobalModel, Round
from fedflow.settings import option


class Buffered(Asynchronous, FedAvg):
    weighting: str = option(
        "uniform", "weights of updates in their mean: the same for all, or n_k",
        choices=("samples", "uniform"), source="uniform in the papers",
    )  # fmt: skip
    concurrency: float = option(
        2.0, "clients at work at any time, in multiples of m (at most all); 0 = wait for cohorts, as FedAvg",
        ge=0, grid=(1, 2, 4),
    )  # fmt: skip
    most_epochs: int | None = option(
        None, "clients choose from 1 to this many epochs at random; null = E for all", ge=1
    )

    def clients_in_flight(self, size: int) -> int:
        return math.ceil(self.concurrency * size)

    def epochs(self, now: Round, server: GlobalModel, client: int) -> int | None:
        return None if self.most_epochs is None else int(now.rng.integers(1, self.most_epochs, endpoint=True))
