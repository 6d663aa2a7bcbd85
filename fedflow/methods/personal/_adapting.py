"""Base of methods that train a model to be adapted to each client's samples."""

from dataclasses import fields, replace

from torch import Tensor

from fedflow.errors import BadInput
from fedflow.local.client import Client
from fedflow.local.extensions.adaptation import Adaptation
from fedflow.local.local_training import LocalTraining
from fedflow.methods.method import Method, S
from fedflow.methods.protocols import Adapting
from fedflow.settings import option, shown


class OwnAdaptation(Adaptation):
    """The adaptation of a method."""

    section = "method.adaptation"

    def __str__(self) -> str:
        """As in params.yaml."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        default = {field.name: field.default for field in fields(self)}
        return f"{{{', '.join(f'{name}: {v}' for name, v in given.items() if v != default[name])}}}"


class AdaptedMethod(Adapting, Method[S]):
    """Trains F_k(T(w)) in place of F_k(w) and serves T(w; all samples of the client).

    The client step, the server step and the state come from another base class, the host.
    """

    serves = "personal"
    serves_with = ()

    adaptation: OwnAdaptation = option(
        factory=lambda: OwnAdaptation.parse({"name": "proto"}),
        doc="T, a mapping as `training.adaptation`: name (maml or proto), and lr, steps, ... of maml",
        symbol="T",
        source="Chapter 3: proto is the best in all but a few rows of Tables 3.1 and 3.2",
    )

    def trains(self, training: LocalTraining) -> LocalTraining:
        return adapting(training, self.adaptation, f"{self.name}, which has method.adaptation")

    def serves_adapted(self) -> bool:
        return self.adaptation.adapts

    def model_for(self, client: Client) -> Tensor:
        return self.adaptation.adapted(client, client.received["model"])


def adapting(training: LocalTraining, adaptation: Adaptation, by: str) -> LocalTraining:
    """Return ``training`` with the ``adaptation`` of the method named ``by``.

    Raises `BadInput` if it has a different adaptation or a curriculum.
    """
    given, curriculum = training.adaptation, training.curriculum
    if given is not None and given.as_dict() != adaptation.as_dict():
        raise BadInput("training.adaptation", shown(given), f"null with {by}")
    if curriculum is not None:
        raise BadInput("training.curriculum", shown(curriculum), f"null with {by}")
    return replace(training, adaptation=adaptation)
