"""IFCA: the server keeps k models, every client trains the one that fits its data best.

Source: Ghosh, Chung, Yin, Ramchandran, "An Efficient Framework for Clustered Federated Learning",
NeurIPS 2020, arXiv 2006.04088, Algorithm 1.

Client: j = argmin_j F_k(theta_j) on its training data (lowest index on ties); option II trains theta_j,
option I sends the gradient at theta_j. Server: option II averages the models of each cluster (an empty
cluster keeps its model); option I: theta_j <- theta_j - gamma / D * sum of the members' gradients.
*Reduces to* uniform FedAvg (option II) or FedSGD (option I) when k = 1.
*State*: server theta_1..theta_k; clients none. *Traffic*: k P down, 1 P and the cluster number up.
*Newcomer*: receives the k models, takes the argmin. *Differs from the paper in*: D is the number of
participants by default (the paper's m; equal under full participation).
"""

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from fedflow.local.client import Client, Update
from fedflow.methods.base import Cohort, Method, Server, register
from fedflow.models.flat import FlatModel
from fedflow.settings import option


@register("ifca", "IFCA")
class IFCA(Method):
    serves: ClassVar[str] = "cluster"

    clusters: int = option(2, "number of models", symbol="k", ge=1, grid=(2, 3, 4), source="section 5")
    averaging: str = option(
        "model", "what is averaged: trained models (option II) or gradients (option I)",
        choices=("model", "gradient"), source="Algorithm 1",
    )  # fmt: skip
    weighting: str = option(
        "uniform",
        "weights within a cluster",
        choices=("uniform", "samples"),
        source="authors' code: uniform; n_k on FEMNIST",
    )
    denominator: str = option(
        "participants", "D of gradient averaging: all clients, the participants, or the cluster's members",
        symbol="D", choices=("all", "participants", "cluster"), source="Algorithm 1: all machines m",
    )  # fmt: skip
    server_lr: float = option(
        0.1, "step size of gradient averaging", symbol="gamma", gt=0, source="MNIST: 0.1"
    )

    def setup(self, model: FlatModel, initial: Callable[[int], Tensor]) -> Server:
        """k different initial models: equal ones would tie for ever and make IFCA FedAvg."""
        return {"models": torch.stack([initial(j) for j in range(self.clusters)])}

    def broadcast(self, server: Server, client: int) -> dict[str, Tensor]:
        return {"models": server["models"]}

    def choose(self, client: Client) -> Tensor:
        """The cluster whose model has the lowest training loss, scalar int64."""
        return torch.stack([client.full_loss(theta) for theta in client.received["models"]]).argmin()

    def local(self, client: Client) -> Update:
        j = self.choose(client)
        theta = client.received["models"][j]
        weight = client.samples if self.weighting == "samples" else 1.0
        if self.averaging == "model":
            model = client.fit(start=theta)
            return client.update(model=model, weight=weight, group=j, scalars={"cluster": j})
        gradient = client.full_gradient(theta)
        return client.update(gradient=gradient, weight=weight, group=j, scalars={"cluster": j})

    def aggregate(self, server: Server, cohort: Cohort) -> Server:
        models = server["models"].clone()
        sizes = {"all": cohort.clients, "participants": len(cohort.ids)}
        for j in sorted(set(cohort.groups)):
            if self.averaging == "model":
                models[j] = cohort.mean("model", group=j)
            else:
                members = cohort.groups.count(j)
                share = members / sizes.get(self.denominator, members)
                models[j] -= self.server_lr * share * cohort.mean("gradient", group=j)
        return {"models": models}

    def model_for(self, client: Client) -> tuple[Tensor, Tensor]:
        j = self.choose(client)
        return client.received["models"][j], j
