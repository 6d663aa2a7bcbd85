"""Base of methods whose server averages what the clients send."""

from typing import Any

from torch import Tensor

from fedflow.local.client import Client, Update
from fedflow.methods.method import Method, Round, S
from fedflow.methods.protocols import Weighted
from fedflow.settings import option


def weights(default: str, source: str = "") -> Any:
    """The option ``weighting`` of a method."""
    choices = ("samples", "uniform")
    return option(default, "weights p_k: n_k or uniform", symbol="p_k", choices=choices, source=source)


class Averaging(Weighted, Method[S]):
    weighting: str = weights("samples")

    def weight(self, client: Client) -> Tensor | float:
        """Weight of the client, not normalized."""
        return client.samples if self.weighting == "samples" else 1.0

    def weighs_samples(self) -> bool:
        return self.weighting == "samples"


class ModelAveraging(Averaging[S]):
    """Clients train the model that they receive; ``server_lr`` scales the server's step to their mean."""

    server_lr: float = option(1.0, "server learning rate", symbol="eta_s", gt=0, source="1 in the paper")

    def local(self, client: Client) -> Update:
        return client.update(model=client.fit(start=client.received["model"]), weight=self.weight(client))

    def stepped(self, now: Round, w: Tensor, mean: Tensor) -> Tensor:
        """``w`` [D] after the server's step towards the ``mean`` of trained models, whose buffers it gets."""
        return mean if self.server_lr == 1 else now.model.with_buffers(w - self.server_lr * (w - mean), mean)
