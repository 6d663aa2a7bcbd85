"""Local (SOLO): every client trains its own copy of the initial model and sends nothing.

The lower bound that every personalized method must beat. Source: folklore; SOLO of the clustered-FL theses.

Client: v_k <- E epochs of SGD from v_k. Server: no step.
*Reduces to* SGD on all data when there is a single client.
*State*: client v_k. *Traffic*: none. *Newcomer*: trains alone from the common initial model.
*Epoch budget*: a client trains only in rounds whose cohort it belongs to, E epochs each time, so that
every method of a comparison does the same local work.
"""

from torch import Tensor

from fedflow.local.client import Client, Update
from fedflow.methods.method import Cohort, Initial, Message, Method, Next, Round, ServerState
from fedflow.methods.protocols import Published
from fedflow.methods.registry import register
from fedflow.models.flat import FlatModel


@register("local", "Local")
class LocalOnly(Published, Method[ServerState]):
    serves = "personal"

    def client_state(self, model: FlatModel, initial: Tensor) -> dict[str, Tensor]:
        return {"model": initial}

    def setup(self, model: FlatModel, initial: Initial) -> ServerState:
        return ServerState()

    def broadcast(self, now: Round, server: ServerState, client: int) -> Message:
        return {}

    def local(self, client: Client) -> Update:
        return client.update(keep={"model": client.fit(start=client.kept["model"])})

    def aggregate(self, now: Round, server: ServerState, cohort: Cohort) -> Next[ServerState]:
        return server, {}

    def model_for(self, client: Client) -> Tensor:
        return client.kept["model"]

    def published_bytes(self, model: FlatModel, rounds: int, cohort: int) -> float:
        return 0.0
