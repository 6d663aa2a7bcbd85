"""Base of CC-FedAdagrad, CC-FedAdam and CC-FedAMS: updates per local step, and an adaptive server step."""

from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor
from typing_extensions import TypeVar

from fedflow.local.client import Client, Update
from fedflow.methods.asynchronous._asynchronous import Buffered
from fedflow.methods.method import Cohort, GlobalModel, Initial, Next, Round
from fedflow.models.flat import FlatModel
from fedflow.settings import option


@dataclass(frozen=True)
class State(GlobalModel):
    m: Tensor
    v: Tensor


C = TypeVar("C", bound=State, default=State)


class ClientCentric(Buffered[C]):
    """d = mean (x - x_K) / K; m <- beta m + (1 - beta) d; v <- `second`; x <- x - eta m / (sqrt(v) + eps).

    Running statistics are sent as they are, and averaged.
    """

    server_lr: float = option(
        0.01, "server learning rate", symbol="eta", gt=0, grid=(1e-4, 1e-3, 1e-2, 1e-1, 1)
    )
    beta: float = option(
        0.9, "decay of the first moment m", symbol="beta", ge=0, lt=1, source="code of FADAS"
    )
    eps: float = option(
        1e-8, "added to sqrt(v)", symbol="eps", gt=0, grid=(1e-8, 1e-3), source="code of FADAS"
    )
    normalize: bool = option(
        True, "divide updates by K; with lr_within, by the sum of eta_i / eta", source="Algorithm 3"
    )

    def setup(self, model: FlatModel, initial: Initial) -> C:
        x = initial(0)
        return cast("C", State(x, torch.zeros_like(x), torch.zeros_like(x)))

    def local(self, client: Client) -> Update:
        x = client.received["model"]
        x_k = client.fit(start=x)
        steps = client.rates().sum() if self.normalize else 1.0
        d = client.model.with_buffers((x - x_k) / steps, x_k)
        return client.update(d=d, weight=self.weight(client))

    def second(self, server: C, square: Tensor) -> dict[str, Tensor]:
        """The next second moment ``v`` [D], whose root divides the step, and other fields that change."""
        raise NotImplementedError

    def aggregate(self, now: Round, server: C, cohort: Cohort) -> Next[C]:
        x, mean = server.model, cohort.mean("d")
        d = now.model.trainable(mean)
        m = self.beta * server.m + (1 - self.beta) * d
        second = self.second(server, d.square())
        stepped = x - self.server_lr * m / (second["v"].sqrt() + self.eps)
        return replace(server, model=now.model.with_buffers(stepped, mean), m=m, **second), {}
