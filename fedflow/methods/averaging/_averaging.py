"""Base of methods whose server averages what the clients send."""

from torch import Tensor

from fedflow.local.client import Client
from fedflow.methods.method import Method
from fedflow.settings import option


class Averaging(Method):
    weighting: str = option(
        "samples", "weights p_k: n_k or uniform", symbol="p_k", choices=("samples", "uniform")
    )

    def weight(self, client: Client) -> Tensor | float:
        """The client's weight, not normalized."""
        return client.samples if self.weighting == "samples" else 1.0

    def weighs_samples(self) -> bool:
        return self.weighting == "samples"
