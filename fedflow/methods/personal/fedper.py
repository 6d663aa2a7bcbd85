"""FedPer: the body of the network is shared, its head stays with the client.

Source: Arivazhagan, Aggarwal, Singh, Choudhary, "Federated Learning with Personalization Layers",
2019, arXiv 1912.00818, Algorithms 1 and 2.

Client: SGD on body and head together, from the received body and its own head; sends the body.
Server: averages bodies with weights p_k, n_k or uniform.
*Reduces to* FedAvg with an empty head, to Local with an empty body.
*State*: server body; client head. *Traffic*: P_body down, P_body up. *Newcomer*: the body and the first head.
*Differs from the paper in*: the average is weighted by n_k (as in the paper when sizes differ).
"""

from dataclasses import dataclass

from torch import Tensor

from fedflow.local.client import Client, Update
from fedflow.methods.averaging._averaging import Averaging
from fedflow.methods.method import Cohort, Initial, Message, Next, Round, ServerState
from fedflow.methods.registry import register
from fedflow.models.flat import FlatModel, Part
from fedflow.settings import option


@dataclass(frozen=True)
class State(ServerState):
    body: Tensor


@register("fedper", "FedPer")
class FedPer(Averaging[State]):
    serves = "personal"

    private: list[str] | None = option(
        None, "names of the private parameters; null = the architecture's classifier", source="K_P"
    )

    def head(self, model: FlatModel) -> Part:
        return model.part(*(model.head_patterns if self.private is None else self.private))

    def client_state(self, model: FlatModel, initial: Tensor) -> dict[str, Tensor]:
        return {"head": self.head(model).of(initial)}

    def setup(self, model: FlatModel, initial: Initial) -> State:
        return State(self.head(model).outside(initial(0)))

    def broadcast(self, now: Round, server: State, client: int) -> Message:
        return {"body": server.body}

    def local(self, client: Client) -> Update:
        head = self.head(client.model)
        w = client.fit(start=self.model_for(client))
        return client.update(body=head.outside(w), weight=self.weight(client), keep={"head": head.of(w)})

    def aggregate(self, now: Round, server: State, cohort: Cohort) -> Next[State]:
        return State(cohort.mean("body")), {}

    def model_for(self, client: Client) -> Tensor:
        return self.head(client.model).join(client.kept["head"], client.received["body"])
