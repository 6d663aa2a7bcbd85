"""FLIS (DC): every round the participants whose models say the same of the server's data are averaged.

Source: Morafah, Vahidian, Wang, Lin, "FLIS: Clustered Federated Learning via Inference Similarity for Non-IID
Data Distribution", IEEE Open Journal of the Computer Society 2023, arXiv 2208.09754; Algorithms 4 and 5 of
Morafah's thesis; code github.com/MMorafah/FLIS.

Client: takes the model with the lowest loss of all that it receives (the first of equal ones),
w_k <- E epochs of SGD from it. Server: B_k, what model k says of M inputs of its own;
A_ij = sum(B_i * B_j) / (||B_i|| ||B_j||); for every participant i the mean of the w_j with A_ij >= beta, w_i
among them. So there are as many models as participants, equal ones perhaps.
*Reduces to* FedAvg when beta = 0; with beta > 1 nothing is averaged: clients choose among models of single
clients.
*State*: server the last round's models, and who made them; clients none. *Traffic*: m P down, 1 P up. In the
first round 1 P down. *Newcomer*: receives the models, takes the one with the lowest loss.
*Differs from the thesis in*: clients choose by the loss on their training samples, because the test samples
that thesis and code choose by are not known to them. With select_on: heldout they choose by samples that they
neither train nor are tested on (``selection`` of the partition; simulated time leaves out what these few
cost). With select_on: test they are served as in the thesis, but still train from the model that their
training samples choose. Newcomers choose likewise, where the thesis has them send a model first. A as in FLIS
(HC). The server's data are no test samples by default.
"""

from collections.abc import Callable
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedflow.local.client import Client, Update
from fedflow.methods.base import Cohort, Dissimilarity, Passes, Server
from fedflow.methods.clustered._flis import FLIS, similarity
from fedflow.methods.registry import register
from fedflow.models.flat import FlatModel
from fedflow.settings import option


@register("flis_dc", "FLIS (DC)")
class FLISDC(FLIS):
    serves: ClassVar[str] = "cluster"
    gathers: ClassVar[bool] = True
    stable_cluster_ids: ClassVar[bool] = False

    beta: float = option(
        0.4, "similarity from which on participants belong together", symbol="beta", ge=0,
        grid=(0.1, 0.3, 0.5, 0.7), source="authors' code; best on CIFAR-10: 0.3",
    )  # fmt: skip
    weighting: str = option(
        "samples", "weights within a cluster: n_k, or the same for all", symbol="p_k",
        choices=("samples", "uniform"), source="Algorithm 4",
    )  # fmt: skip
    select_on: str = option(
        "train", "samples by which a client chooses its model: those it trains on; those it holds out; or, "
        "for the model that it is served, its test samples, which flatters",
        choices=("train", "heldout", "test"), source="test: thesis and code",
    )  # fmt: skip

    def selects(self) -> bool:
        return self.select_on == "heldout"

    def setup(self, model: FlatModel, initial: Callable[[int], Tensor]) -> State:
        return {"models": initial(0)[None]}

    def plan(self, now: Round, server: State, sizes: np.ndarray, size: int) -> tuple[np.ndarray, State]:
        self.need_public(server)
        return super().plan(rng, sizes, size, server)

    def broadcast(self, now: Round, server: State, client: int) -> Message:
        return {"models": server.models}

    def choose(self, client: Client) -> Tensor:
        """The model with the lowest loss on training or held-out samples, scalar int64."""
        loss = client.selection_loss if self.selects() else client.full_loss
        return torch.stack([loss(w) for w in client.received["models"]]).argmin()

    def work(self, now: Round, server: State, epochs: float, steps: int) -> Passes:
        return Passes(epochs, losses=0 if self.selects() else len(server.models))

    def local(self, client: Client) -> Update:
        w = client.fit(start=client.received["models"][self.choose(client)])
        return client.update(model=w, weight=client.samples if self.weighting == "samples" else 1.0)

    def aggregate(self, now: Round, server: State, cohort: Cohort) -> tuple[State, Diagnostics]:
        said = self.inferences(cohort)
        alike = similarity(said, said)  # [m, m]
        near = (alike >= self.beta).numpy() | np.eye(len(said), dtype=bool)
        members = torch.zeros(len(said), now.clients, dtype=torch.bool)
        members[:, cohort.ids] = torch.from_numpy(near)
        models = torch.stack([cohort.mean("model", weights=cohort.weights * row) for row in near])
        return server | {"models": models, "members": members, "proximity": 1 - alike}

    def dissimilarity(self, server: Server) -> Dissimilarity:
        """Of those who took part in the last round."""
        participants = server.members.any(0).nonzero()[:, 0].tolist()
        return Dissimilarity(server.proximity.cpu().numpy(), participants, "1 − inference similarity")

    def model_for(self, client: Client) -> tuple[Tensor, Tensor | None]:
        if self.select_on == "test":
            return client.received["models"], None
        j = self.choose(client)
        return client.received["models"][j], j
