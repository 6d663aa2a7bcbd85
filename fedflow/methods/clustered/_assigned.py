"""Base of methods whose server assigns every client to a cluster and keeps one model per cluster.

Cluster members in the cohort train its model, as in FedAvg; without any, a cluster keeps its model.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from typing_extensions import TypeVar

from fedflow.local.client import Client
from fedflow.methods.averaging._averaging import ModelAveraging
from fedflow.methods.method import Cohort, Message, Next, Round, ServerState
from fedflow.methods.protocols import Clustered, Serving


@dataclass(frozen=True)
class AssignedState(ServerState):
    models: Tensor  # [Z, D]
    assignment: Tensor | None = None  # [N] int64, then the newcomers, or None if all are in cluster 0


A = TypeVar("A", bound=AssignedState, default=AssignedState)


class Assigned(Clustered, Serving, ModelAveraging[A]):
    """Subclasses set the assignment, in `onboarding_aggregate` or `aggregate`."""

    serves = "cluster"
    gathers = True

    def cluster(self, server: A, client: int) -> int:
        """Number of the client's cluster; 0 before it is assigned."""
        assigned = () if server.assignment is None else server.assignment
        return int(assigned[client]) if client < len(assigned) else 0

    def broadcast(self, now: Round, server: A, client: int) -> Message:
        return {"model": server.models[self.cluster(server, client)]}

    def broadcast_for_evaluation(self, now: Round, server: A, client: int) -> Message:
        number = self.cluster(server, client)
        return {"model": server.models[number], "cluster": torch.tensor(number)}

    def aggregate(self, now: Round, server: A, cohort: Cohort) -> Next[A]:
        models = server.models.clone()
        clusters = np.array([self.cluster(server, k) for k in cohort.ids])
        trained = np.unique(clusters)
        for z in trained:
            mean = cohort.mean("model", weights=cohort.weights * (clusters == z))
            models[z] = self.stepped(now, models[z], mean)
        return replace(server, models=models), {"trained_clusters": len(trained)}

    def model_for(self, client: Client) -> tuple[Tensor, Tensor]:
        return client.received["model"], client.received["cluster"]
