"""Methods whose server averages what the clients send."""

from torch import Tensor

from fedflow.local.client import Client
from fedflow.methods.base import Method
from fedflow.settings import option


class Averaging(Method):
    """Methods whose server averages what the clients send."""

    weighting: str = option(
        "samples", "weights p_k of the average: n_k, or the same for all", symbol="p_k",
        choices=("samples", "uniform"),
    )  # fmt: skip

    def weight(self, client: Client) -> Tensor | float:
        """The client's weight, not normalised."""
        return client.samples if self.weighting == "samples" else 1.0
