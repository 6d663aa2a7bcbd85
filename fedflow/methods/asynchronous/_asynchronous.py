"""Base of asynchronous methods: clients report when they are done, with updates to an older model.

Several clients train at any time, each from the model that it received. The server takes a step after every
m updates, stale ones included. Clients train with the learning rate of the round in which they report, which
matters with `training.lr_decay`. A difference of running statistics that is stale may make a variance
negative, so clients send the statistics themselves.
"""

import math

from fedflow.errors import BadInput
from fedflow.methods.averaging._averaging import weights
from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.methods.method import Conditions, M, Round
from fedflow.methods.protocols import Asynchronous, VariableEpochs
from fedflow.settings import option


class Buffered(Asynchronous, VariableEpochs, FedAvg[M]):
    weighting: str = weights("uniform")
    concurrency: float = option(
        2.0, "clients that train at any time, in multiples of m; 0 = synchronous", ge=0, grid=(1, 2, 4)
    )
    most_epochs: int | None = option(
        None, "clients draw between 1 and this many epochs; null = E for all", ge=1
    )

    def clients_in_flight(self, size: int) -> int:
        return math.ceil(self.concurrency * size)

    def check(self, run: Conditions) -> None:
        if self.most_epochs is not None and run.training.steps is not None:
            raise BadInput("method.most_epochs", self.most_epochs, "null with training.steps")

    def epochs(self, now: Round, server: M, client: int) -> int | None:
        return None if self.most_epochs is None else int(now.rng.integers(1, self.most_epochs, endpoint=True))
