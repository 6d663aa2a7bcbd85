"""Options that methods have in common: weights of averages, and which of two models clients are served."""

from typing import ClassVar

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


class Personal(Method):
    """Methods with a model for all beside every client's own: either can be served."""

    serves: ClassVar[str] = "personal"

    served: str = option(
        "personal", "the model served and scored: every client's own, or the one for all",
        choices=("personal", "global"), source="papers report both",
    )  # fmt: skip

    def validate(self) -> None:
        super().validate()
        if self.served == "global":
            object.__setattr__(self, "serves", "global")
