"""What CC-FedAdagrad, CC-FedAdam and CC-FedAMS share: clients come when they are done, with updates by step.

Several clients are at work at any time. Each has fetched the model of its day, and trains as long as it
likes; with every m updates, late ones among them, the server takes a step of an adaptive optimiser.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fedflow.local.client import Client, Update
from fedflow.methods.base import Cohort, Server
from fedflow.methods.fedavg import FedAvg
from fedflow.models.flat import FlatModel
from fedflow.settings import option


class ClientCentric(FedAvg):
    """d = mean (x - x_K) / K; m <- beta m + (1 - beta) d; v <- `second`; x <- x - eta m / (sqrt(v) + eps)."""

    weighting: str = option(
        "uniform", "weights of updates in their mean: the same for all, or n_k",
        choices=("samples", "uniform"), source="Algorithm 2: uniform",
    )  # fmt: skip
    server_lr: float = option(
        0.01, "server learning rate", symbol="eta", gt=0, grid=(1e-4, 1e-3, 1e-2, 1e-1, 1)
    )
    beta: float = option(
        0.9, "decay of the first moment m", symbol="beta", ge=0, lt=1, source="code of FADAS"
    )
    eps: float = option(
        1e-8, "added to the root of the second moment", symbol="eps", gt=0, grid=(1e-8, 1e-3),
        source="code of FADAS",
    )  # fmt: skip
    normalise: bool = option(True, "updates are divided by the number K of local steps", source="Algorithm 3")
    concurrency: float = option(
        2.0, "clients at work at any time, in multiples of m (at most all); 0 = wait for cohorts, as FedAvg",
        ge=0, grid=(1, 2, 4),
    )  # fmt: skip
    most_epochs: int | None = option(
        None, "clients choose from 1 to so many epochs at random; nothing = E for all", ge=1
    )

    def setup(self, model: FlatModel, initial: Callable[[int], Tensor]) -> Server:
        x = initial(0)
        return {"model": x, "m": torch.zeros_like(x), "v": torch.zeros_like(x)}

    def busy(self, size: int) -> int:
        return math.ceil(self.concurrency * size)

    def epochs(self, rng: np.random.Generator, server: Server, client: int) -> int | None:
        return None if self.most_epochs is None else int(rng.integers(1, self.most_epochs, endpoint=True))

    def local(self, client: Client) -> Update:
        x = client.received["model"]
        moved = x - client.fit(start=x)
        steps = client.steps() if self.normalise else 1.0
        return client.update(d=client.model.with_buffers(moved / steps, moved), weight=self.weight(client))

    def second(self, server: Server, square: Tensor) -> Server:
        """The next second moment ``v`` [D], by whose root steps are divided, and what else is remembered."""
        raise NotImplementedError

    def aggregate(self, server: Server, cohort: Cohort) -> Server:
        x, mean = server["model"], cohort.mean("d")
        d = cohort.model.trainable(mean)
        m = self.beta * server["m"] + (1 - self.beta) * d
        after = {"m": m} | self.second(server, d.square())
        stepped = x - self.server_lr * m / (after["v"].sqrt() + self.eps)
        return {"model": cohort.model.with_buffers(stepped, x - mean)} | after
