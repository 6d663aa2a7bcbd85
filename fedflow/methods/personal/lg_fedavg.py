"""LG-FedAvg: clients learn local representations and share the upper layers.

Source: Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency, "Think Locally, Act Globally:
Federated Learning with Local and Global Representations", 2020, arXiv 2001.01523, Algorithm 1.

Client: SGD on its own body and the received head together, sends the head. Server: averages heads with
weights p_k. P_head are the shared layers: the last two, as in the authors' code, where the architecture names
them (LeNet-5: fc2 and fc3, 11,014 parameters), else its classifier.
The authors start from a model that FedAvg trained: with ``fedavg`` > 0 the first rounds are FedAvg of the
whole model, and every client starts from its body, which it receives once, with its first head after them.
*Reduces to* FedAvg when all layers are shared, to Local when none are; FedPer shares the other part.
*State*: server head (with ``fedavg`` also the body, and the clients that have it); client body.
*Traffic*: P_head down, P_head up. With ``fedavg``, 1 P each way before the switch, then the body once.
*Newcomer*: the head, and the body of FedAvg, or else the first one.
*Differs from the paper in*: it starts from the initial model by default (fedavg: 0), weights by n_k (their
code: weighting: uniform), and does not keep the model with the best test accuracy.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedflow.errors import BadInput
from fedflow.local.client import Client, Update
from fedflow.methods.averaging._averaging import Averaging
from fedflow.methods.method import Cohort, Conditions, Initial, Message, Next, Round, ServerState
from fedflow.methods.protocols import Phased, Published
from fedflow.methods.registry import register
from fedflow.metrics.cost import exchanged_bytes
from fedflow.models.flat import FlatModel, Part
from fedflow.settings import option


@dataclass(frozen=True)
class State(ServerState):
    head: Tensor
    body: Tensor | None = None  # of FedAvg, if it runs first
    informed: Tensor | None = None  # bool [N], the clients that have it


@register("lg_fedavg", "LG-FedAvg")
class LGFedAvg(Phased, Published, Averaging[State]):
    serves = "personal"

    shared: list[str] | None = option(
        None, "names of the shared parameters; null = the architecture's upper layers"
    )
    fedavg: float = option(
        0.0, "share of the rounds, the first ones, that are FedAvg", ge=0, lt=1, source="Sub-FedAvg"
    )

    def switch(self, rounds: int) -> int:
        """The last round of FedAvg; 0 if there is none."""
        return round(self.fedavg * rounds)

    def check(self, run: Conditions) -> None:
        rounds = run.rounds
        if self.fedavg and not 0 < self.switch(rounds) < rounds:
            accepted = f"0, or a share that leaves a round of each phase in {rounds} rounds"
            raise BadInput("method.fedavg", self.fedavg, accepted)

    def phase(self, now: Round) -> str:
        return "fedavg" if now.t <= self.switch(now.rounds) else ""

    def head(self, model: FlatModel) -> Part:
        return model.part(*(model.shared_patterns if self.shared is None else self.shared))

    def client_state(self, model: FlatModel, initial: Tensor) -> dict[str, Tensor]:
        return {"body": self.head(model).outside(initial)}

    def setup(self, model: FlatModel, initial: Initial) -> State:
        head = self.head(model)
        return State(head.of(initial(0)), head.outside(initial(0)) if self.fedavg else None)

    def broadcast(self, now: Round, server: State, client: int) -> Message:
        informed = server.informed is not None and client < now.clients and bool(server.informed[client])
        missing = {} if server.body is None or informed else {"body": server.body}
        return {"head": server.head, **missing}

    def local(self, client: Client) -> Update:
        head, weight = self.head(client.model), self.weight(client)
        w = client.fit(start=self.model_for(client))
        if client.phase == "fedavg":
            return client.update(head=head.of(w), body=head.outside(w), weight=weight)
        return client.update(head=head.of(w), weight=weight, keep={"body": head.outside(w)})

    def aggregate(self, now: Round, server: State, cohort: Cohort) -> Next[State]:
        body, informed = server.body, server.informed
        if now.t <= self.switch(now.rounds):
            body = cohort.mean("body")
        elif body is not None:
            informed = torch.zeros(now.clients, dtype=torch.bool) if informed is None else informed.clone()
            informed[cohort.ids] = True
        return State(cohort.mean("head"), body, informed), {}

    def model_for(self, client: Client) -> Tensor:
        received = client.received
        return self.head(client.model).join(received["head"], received.get("body", client.kept["body"]))

    def published_bytes(self, model: FlatModel, rounds: int, cohort: int) -> float:
        whole, shared = int(model.outside_norms.sum()), int(self.head(model).of(model.outside_norms).sum())
        first, rest = (cohort * n for n in (self.switch(rounds), rounds - self.switch(rounds)))
        return exchanged_bytes(first, whole, whole) + exchanged_bytes(rest, shared, shared)
