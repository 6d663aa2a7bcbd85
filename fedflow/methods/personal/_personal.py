"""Base of methods with a global model and personal ones."""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from fedflow.local.client import Client
from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.methods.method import Method, S
from fedflow.models.flat import FlatModel
from fedflow.settings import option

TENTHS = tuple(i / 10 for i in range(11))  # shares of the personal model in mixtures


class Personal(Method[S]):
    """Methods with a global model and personal ones: either can be served."""

    serves = "personal"

    served: str = option(
        "personal", "the model served and scored", choices=("personal", "global"), source="papers report both"
    )

    def validate(self) -> None:
        super().validate()
        if self.served == "global":
            object.__setattr__(self, "serves", "global")

    def trained_model(self, personal: Tensor, shared: Tensor) -> Tensor:
        """`Client.trained` [D]: of the models that a client trained, the kind that is served.

        So the mean of trained models (`run.reports`) is a global model if the global model is served. A
        curriculum that scores samples by the last trained model (score: local or both) uses it too.
        """
        return shared if self.served == "global" else personal


class WithFedAvg(Personal, FedAvg):
    """FedAvg, and a personal model of every client, which a newcomer starts from the global model."""

    newcomer: ClassVar[Mapping[str, str]] = {"personal": "model"}

    def client_state(self, model: FlatModel, initial: Tensor) -> dict[str, Tensor]:
        return {"personal": initial}

    def model_for(self, client: Client) -> Tensor:
        return client.received["model"] if self.served == "global" else client.kept["personal"]
