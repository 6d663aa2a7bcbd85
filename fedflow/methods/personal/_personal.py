"""Methods with a model for all beside every client's own."""

from typing import ClassVar

from fedflow.methods.base import Method
from fedflow.settings import option


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
