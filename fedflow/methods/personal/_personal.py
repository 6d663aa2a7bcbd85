"""Base of methods with a global model and personal ones."""

from torch import Tensor

from fedflow.methods.method import Method, S
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
        """`Client.trained` [D]: of the models that a client trained, the one of the kind that is served.

        So their mean (`run.reports`) is a global model where the global model is served. A curriculum that
        scores samples by the last trained model (score: local or both) uses this one too.
        """
        return shared if self.served == "global" else personal
