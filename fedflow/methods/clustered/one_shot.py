"""One-shot clustering: clients train alone, their models are clustered once, and every cluster runs FedAvg.

Source: the baseline of Ghosh, Hong, Yin, Ramchandran, "Robust Federated Learning in a Heterogeneous
Environment", 2019, arXiv 1906.06629, Algorithm 1, as in Ghosh, Chung, Yin, Ramchandran, "An Efficient
Framework for Clustered Federated Learning", NeurIPS 2020, arXiv 2006.04088.

Before the first round, client k sends its minimizer of F_k, trained five times E epochs from the common
initial model (otherwise hidden units come in any order, and distances are meaningless). Server: k-means of
the models, the best of ten k-means++ starts. Then as FedAvg within every cluster, from the common initial
model.
*Reduces to* FedAvg when k = 1, to Local with all clients when k = N.
*State*: server the clusters' models, the assignment, centers; clients none.
*Traffic*: 1 P down, 1 P up. Before the first round also 1 P down and 1 P up; with features: logistic, nothing
down and [classes, F] numbers up.
*Newcomer*: trains alone, and joins the cluster with the nearest center.
*Ambiguous*: the paper names no clustering method, and no order of batches: the five trainings repeat one.
``features: logistic`` is the authors' code for FEMNIST: logistic regressions of one class against the rest on
the pixels; coefficients [classes, F] of classes that a client lacks are zero.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedflow.heterogeneity.centers import k_means
from fedflow.local.client import Client, Update
from fedflow.local.labels import labels
from fedflow.methods.clustered._assigned import Assigned, AssignedState
from fedflow.methods.method import Cohort, Conditions, Initial, Message, Round
from fedflow.methods.protocols import Dissimilarity, Onboarding
from fedflow.methods.registry import register
from fedflow.models.flat import FlatModel
from fedflow.settings import option


@dataclass(frozen=True, kw_only=True)
class State(AssignedState):
    initial: Tensor  # [D], the common initial model
    centers: Tensor | None = None  # [k, F]; None before the onboarding
    proximity: Tensor | None = None  # [N, N], distances of the features; None before the onboarding


@register("one_shot", "One-shot")
class OneShot(Onboarding, Assigned[State]):
    trainings: ClassVar[int] = 5  # of E epochs each

    clusters: int = option(2, "number of clusters", symbol="k", ge=1, grid=(2, 3, 4), source="section 6")
    features: str = option(
        "model", "what is clustered: models, or logistic regressions", choices=("model", "logistic")
    )

    def check(self, run: Conditions) -> None:
        run.need_clients("method.clusters", self.clusters)

    def setup(self, model: FlatModel, initial: Initial) -> State:
        first = initial(0)
        return State(models=first.repeat(self.clusters, 1), initial=first)

    def onboarding_broadcast(self, now: Round, phase: int, server: State, client: int) -> Message:
        return {"model": server.initial} if self.features == "model" else {}

    def onboarding_local(self, phase: int, client: Client) -> Update:
        if self.features == "logistic":
            return client.update(features=logistic(client))
        w = client.received["model"]
        for _ in range(self.trainings):
            w = client.fit(start=w)
        return client.update(features=w[: client.model.parameters])

    def onboarding_aggregate(self, now: Round, phase: int, server: State, cohort: Cohort) -> State:
        features = cohort.stack("features")
        if cohort.newcomers:
            assert server.assignment is not None and server.centers is not None
            nearest = torch.cdist(features, server.centers).argmin(1).cpu()
            before = server.assignment[: now.clients].cpu()
            return replace(server, assignment=torch.cat([before, nearest]))
        assignment, centers = k_means(features, self.clusters, now.rng)
        proximity = torch.cdist(features, features)
        return replace(server, assignment=assignment, centers=centers, proximity=proximity)

    def dissimilarity(self, server: State) -> Dissimilarity:
        assert server.proximity is not None
        matrix = server.proximity.cpu().numpy()
        unit = {"model": "distance of models", "logistic": "distance of coefficients"}
        return Dissimilarity(matrix, range(len(matrix)), unit[self.features])


def logistic(client: Client) -> Tensor:
    """Coefficients [C * F] of logistic regressions of each of the client's classes against its others.

    With two classes, one row is minus the other; with a single class, all rows are zero.
    """
    from sklearn.linear_model import LogisticRegression  # takes seconds to import

    x = client.data(raw=True)[0].flatten(1).cpu().numpy()
    x = x / np.float32(255) if x.dtype == np.uint8 else x
    y, classes = labels(client)
    coefficients = np.zeros((classes, x.shape[1]))
    present = np.unique(y.cpu().numpy())
    for label in present if len(present) > 1 else ():
        coefficients[label] = LogisticRegression().fit(x, y.cpu().numpy() == label).coef_[0]
    return torch.from_numpy(coefficients.ravel()).to(client.model.dtype)
