"""LG-FedAvg: clients learn local representations and share the upper layers.

Source: Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency, "Think Locally, Act Globally:
Federated Learning with Local and Global Representations", 2020, arXiv 2001.01523, Algorithm 1.

Client: SGD on its own body and the received head together, sends the head. Server: averages heads with
weights p_k. P_head are the shared layers: the last two, as in the authors' code, where the architecture names
them (LeNet-5: fc2 and fc3, 11,014 parameters), else its classifier.
*Reduces to* FedAvg when all layers are shared, to Local when none are; FedPer shares the other part.
*State*: server head; client body. *Traffic*: P_head down, P_head up. *Newcomer*: the head and the first body.
*Differs from the paper in*: it starts from the initial model (the authors start from one that FedAvg
trained), weights by n_k (their code: weighting: uniform), and does not keep the model with the best
test accuracy.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedflow.local.client import Client, Update
from fedflow.methods.averaging._averaging import Averaging
from fedflow.methods.base import Cohort, Diagnostics, Message, Round, ServerState
from fedflow.methods.registry import register
from fedflow.models.flat import FlatModel, Part
from fedflow.settings import option


@dataclass(frozen=True)
class State(ServerState):
    head: Tensor


@register("lg_fedavg", "LG-FedAvg")
class LGFedAvg(Averaging):
    serves: ClassVar[str] = "personal"

    shared: list[str] | None = option(
        None,
        "name patterns of the shared parameters; null = the architecture's upper layers",
        source="authors' code: the last num_layers_keep",
    )

    def head(self, model: FlatModel) -> Part:
        return model.part(*(model.shared_patterns if self.shared is None else self.shared))

    def client_state(self, model: FlatModel, initial: Tensor) -> dict[str, Tensor]:
        return {"body": self.head(model).outside(initial)}

    def setup(self, model: FlatModel, initial: Callable[[int], Tensor]) -> State:
        return State(self.head(model).of(initial(0)))

    def broadcast(self, now: Round, server: State, client: int) -> Message:
        return {"head": server.head}

    def local(self, client: Client) -> Update:
        head = self.head(client.model)
        w = client.fit(start=self.model_for(client))
        return client.update(head=head.of(w), weight=self.weight(client), keep={"body": head.outside(w)})

    def aggregate(self, now: Round, server: State, cohort: Cohort) -> tuple[State, Diagnostics]:
        return State(cohort.mean("head")), {}

    def model_for(self, client: Client) -> Tensor:
        return self.head(client.model).join(client.received["head"], client.kept["body"])
