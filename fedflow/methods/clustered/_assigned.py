"""Methods in which the server assigns every client to a cluster, and every cluster has a model.

Server state: ``models`` [Z, D] and ``assignment`` [N] (int64; newcomers behind, once they were met).
A cluster is trained by those of its members that take part in a round, as FedAvg trains its model; one
without participants keeps its model.
"""

from collections.abc import Callable
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedflow.local.client import Client
from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.methods.base import Cohort, Server
from fedflow.models.flat import FlatModel


class Assigned(FedAvg):
    """Base of these methods: they say who belongs where, in `onboarding_aggregate` or `aggregate`."""

    serves: ClassVar[str] = "cluster"
    gathers: ClassVar[bool] = True

    def setup(self, model: FlatModel, initial: Callable[[int], Tensor]) -> State:
        """One cluster of everybody; without an ``assignment`` all belong to it."""
        return {"models": initial(0)[None]}

    def cluster(self, server: Server, client: int) -> int:
        """The number of the client's cluster."""
        return int(server.assignment[client]) if "assignment" in server else 0

    def broadcast(self, now: Round, server: State, client: int) -> Message:
        return {"model": server.models[self.cluster(server, client)]}

    def broadcast_for_evaluation(self, now: Round, server: State, client: int) -> Message:
        number = self.cluster(server, client)
        return {"model": server.models[number], "cluster": torch.tensor(number)}

    def aggregate(self, now: Round, server: State, cohort: Cohort) -> tuple[State, Diagnostics]:
        models = server.models.clone()
        clusters = np.array([self.cluster(server, k) for k in cohort.ids])
        for z in np.unique(clusters):
            mean = cohort.mean("model", weights=cohort.weights * (clusters == z))
            step = self.server_lr * (models[z] - mean)
            models[z] = mean if self.server_lr == 1 else now.model.with_buffers(models[z] - step, mean)
        return server | {"models": models}

    def model_for(self, client: Client) -> tuple[Tensor, Tensor]:
        return client.received["model"], client.received["cluster"]
