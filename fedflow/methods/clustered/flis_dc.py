"""FLIS (DC): in every round, the server averages the cohort's models that agree on its data.

Source: Morafah, Vahidian, Wang, Lin, "FLIS: Clustered Federated Learning via Inference Similarity for Non-IID
Data Distribution", IEEE Open Journal of the Computer Society 2023, arXiv 2208.09754; Algorithms 4 and 5 of
Morafah's thesis; code github.com/MMorafah/FLIS.

Client: takes the received model with the lowest loss (lowest index on ties), w_k <- E epochs of SGD from it.
Server: B_k, the predictions of model k for the server's M inputs; A_ij = sum(B_i * B_j) / (||B_i|| ||B_j||);
for every client i of the cohort, the mean of the w_j with A_ij >= beta, w_i included. So there are as many
models as clients in the cohort, and some may be equal.
*Reduces to* FedAvg when beta = 0; with beta > 1 nothing is averaged: clients choose among models of single
clients.
*State*: server the last round's models and their members; clients none. *Traffic*: m P down, 1 P up. In the
first round 1 P down. *Newcomer*: receives the models, takes the one with the lowest loss.
*Differs from the thesis in*: clients choose by the loss on their training samples, because they do not know
the test samples by which thesis and code choose. With select_on: heldout, they choose by samples that are
used neither for training nor for tests (``selection`` of the partition; simulated time leaves out the cost of
these few). With select_on: test, they are served as in the thesis, but still train from the model chosen by
their training samples. Newcomers choose in the same way, whereas in the thesis they send a model first. A is
defined as in FLIS (HC). The server's data are not test samples by default.
The recorded clustering error counts clients as together if they choose the same model, over all scored
clients; the published one compares the overlapping sets of averaged clients, over participants.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedflow.local.client import Client, Update
from fedflow.methods.averaging._averaging import weights
from fedflow.methods.clustered._flis import FLIS, similarity
from fedflow.methods.method import Cohort, Initial, Message, Next, Passes, Round, ServerState
from fedflow.methods.protocols import Clustered, Dissimilarity, Selecting
from fedflow.methods.registry import register
from fedflow.models.flat import FlatModel
from fedflow.settings import option


@dataclass(frozen=True)
class State(ServerState):
    models: Tensor  # [m, D], of the last cohort; [1, D] before the first round
    members: Tensor | None = None  # [m, N] bool, the clients in each mean; None before the first round
    proximity: Tensor | None = None  # [m, m], 1 - A of the cohort; None before the first round


@register("flis_dc", "FLIS (DC)")
class FLISDC(Clustered, Selecting, FLIS[State]):
    serves = "cluster"
    gathers = True
    stable_cluster_ids = False

    beta: float = option(
        0.4, "smallest similarity of averaged clients", symbol="beta", ge=0, grid=(0.1, 0.3, 0.5, 0.7)
    )
    weighting: str = weights("samples", "Algorithm 4")
    select_on: str = option(
        "train", "samples by which clients choose; test is optimistic", choices=("train", "heldout", "test")
    )

    def selects(self) -> str:
        return "method.select_on to train" if self.select_on == "heldout" else ""

    def setup(self, model: FlatModel, initial: Initial) -> State:
        return State(initial(0)[None])

    def broadcast(self, now: Round, server: State, client: int) -> Message:
        return {"models": server.models}

    def choose(self, client: Client) -> Tensor:
        """The model with the lowest loss on training or held-out samples, scalar int64."""
        loss = client.selection_loss if self.selects() else client.full_loss
        return torch.stack([loss(w) for w in client.received["models"]]).argmin()

    def work(self, now: Round, server: State, epochs: float, steps: int) -> Passes:
        return Passes(epochs, losses=0 if self.selects() else len(server.models))

    def local(self, client: Client) -> Update:
        j = self.choose(client)
        w = client.fit(start=client.received["models"][j])
        return client.update(model=w, group=j, weight=client.samples if self.weighting == "samples" else 1.0)

    def aggregate(self, now: Round, server: State, cohort: Cohort) -> Next[State]:
        predicted = self.inferences(now, cohort)
        similar = similarity(predicted, predicted)  # [m, m]
        near = (similar >= self.beta).numpy() | np.eye(len(predicted), dtype=bool)
        members = torch.zeros(len(predicted), now.clients, dtype=torch.bool)
        members[:, cohort.ids] = torch.from_numpy(near)
        models = torch.stack([cohort.mean("model", weights=cohort.weights * row) for row in near])
        return State(models, members, 1 - similar), {"cluster_size": near.sum(1).mean()}

    def dissimilarity(self, server: State) -> Dissimilarity | None:
        """Between the clients of the last cohort, or None if every client of all rounds failed."""
        if server.members is None or server.proximity is None:
            return None
        cohort = server.members.any(0).nonzero()[:, 0].tolist()
        return Dissimilarity(server.proximity.cpu().numpy(), cohort, "1 − inference similarity")

    def model_for(self, client: Client) -> tuple[Tensor, Tensor | None]:
        if self.select_on == "test":
            return client.received["models"], None
        j = self.choose(client)
        return client.received["models"][j], j
