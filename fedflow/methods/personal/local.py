"""Local (SOLO): every client trains its own copy of the initial model and sends nothing.

The lower bound that every personalized method must beat. Source: folklore; SOLO of the clustered-FL theses.

Client: v_k <- E epochs of SGD from v_k. Server: no step.
*Reduces to* SGD on all data when there is a single client.
*State*: client v_k. *Traffic*: none. *Newcomer*: trains alone from the common initial model.
*Epoch budget*: a client trains only in rounds whose cohort it belongs to, E epochs each time, so that
every method of a comparison does the same local work; ``everyone`` trains all clients in every round.
"""

import numpy as np
from torch import Tensor

from fedflow.local.client import Client, Update
from fedflow.methods.method import Cohort, Initial, Message, Method, Next, Round, ServerState
from fedflow.methods.protocols import SAMPLERS, Published, Sampling
from fedflow.methods.registry import register
from fedflow.models.flat import FlatModel
from fedflow.settings import option


@register("local", "Local")
class LocalOnly(Published, Sampling, Method[ServerState]):
    serves = "personal"

    everyone: bool = option(False, "train all clients in every round, whatever the participation rate")

    def client_state(self, model: FlatModel, initial: Tensor) -> dict[str, Tensor]:
        return {"model": initial}

    def setup(self, model: FlatModel, initial: Initial) -> ServerState:
        return ServerState()

    def plan(
        self, now: Round, server: ServerState, chances: np.ndarray, size: int
    ) -> tuple[np.ndarray, ServerState]:
        if self.everyone:
            return np.arange(len(chances)), server
        return super().plan(now, server, chances, size)

    def samplers(self) -> tuple[str, ...]:
        return SAMPLERS[:1] if self.everyone else SAMPLERS

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
