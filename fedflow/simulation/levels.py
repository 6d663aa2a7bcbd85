"""Networks of clients: each has the network of its level, or of the run if there are no levels."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fedflow.errors import BadInput
from fedflow.methods.method import Method
from fedflow.methods.protocols import Leveled
from fedflow.models.flat import FlatModel
from fedflow.models.registry import architecture
from fedflow.settings import Words
from fedflow.simulation.clients import FirstOf
from fedflow.simulation.federation import Federation


def level(method: Method, federation: Federation, client: int) -> str:
    """The level of a client's network; empty if all have the network of the run."""
    clients = federation.partition.training_clients
    return method.level(client, clients) if isinstance(method, Leveled) else ""


def network(method: Method, federation: Federation, level: str) -> FlatModel:
    if not isinstance(method, Leveled):
        return federation.model
    return federation.model.variant(**method.networks()[level])


def networks(method: Method, federation: Federation) -> dict[str, FlatModel]:
    """The networks of all levels; only the network of the run, as "", if all clients have it."""
    names = method.networks() if isinstance(method, Leveled) else ("",)
    return {name: network(method, federation, name) for name in names}


def clients_by_level(method: Method, clients: int) -> dict[str, list[int]]:
    """The clients of every level, without newcomers; one level "" if all ``clients`` (N) have one network."""
    if not isinstance(method, Leveled):
        return {"": [*range(clients)]}
    members: dict[str, list[int]] = {name: [] for name in method.networks()}
    for client in range(clients):
        members[method.level(client, clients)].append(client)
    return members


def check_architecture(method: Method, name: str) -> None:
    """Raise `BadInput` unless there is an architecture ``name``, with the options of every level."""
    known = architecture(name).known_options()
    for options in method.networks().values() if isinstance(method, Leveled) else ():
        if not {*options} <= {*known}:
            raise _without(method, options, name)


def check_levels(method: Method, whole: FlatModel) -> None:
    """Raise `BadInput` unless the network of the run has the options of every level, and contains it."""
    for options in method.networks().values() if isinstance(method, Leveled) else ():
        try:
            part = whole.variant(**options)
        except BadInput as error:
            if error.field.startswith("model.options."):
                raise _without(method, options, whole.title) from error
            raise
        part.within(whole)


def _without(method: Method, options: Mapping[str, Any], network: str) -> BadInput:
    words = " and the option ".join(options)
    accepted = f"a network with the option {words}, which {method.name} changes"
    return BadInput("model.name", Words(network), accepted)


def first_trained(method: Method, federation: Federation, initial: Tensor) -> Tensor | FirstOf:
    """The model with which a client that never trained counts in means of trained models."""
    if not isinstance(method, Leveled):
        return initial
    parts = {n: initial[part.within(federation.model)] for n, part in networks(method, federation).items()}
    return FirstOf(lambda client: parts[level(method, federation, client)], initial)
