"""PACFL: clients send principal directions of their data; clients at small angles share a model.

Source: Vahidian, Morafah, Wang, Kungurtsev, Chen, Shah, Lin, "Efficient Distribution Similarity
Identification in Clustered Federated Learning via Principal Angles between Client Data Subspaces", AAAI 2023,
arXiv 2209.10526; Algorithms 7 to 9 of Morafah's thesis; code github.com/MMorafah/PACFL.

Before the first round, every client sends U_p [F, q], the p leading left singular vectors of its data (or of
each label's data), not centered. Server: A [N, N], the angles between them in degrees; hierarchical
clustering that merges up to the height beta; every cluster starts from the same initial model. Then client:
w_k <- E epochs of SGD from its cluster's model; server: the mean over each cluster's members in the cohort.
*Reduces to* FedAvg with one cluster (large beta); with N clusters each client of a cohort trains alone.
*State*: server the clusters' models, the assignment, U_p, A; clients none. *Traffic*: 1 P down, 1 P up.
Before the first round also F q up.
*Newcomer*: sends U_p and joins the closest cluster within beta, or forms a new one that starts from the
initial model; with assign: rehc, all clients are clustered again, which can move others (the paper says it
cannot).
*Ambiguous*: how beta is chosen, which the paper does not say: by default it is the middle of the largest gap
between two merges (`fedflow.heterogeneity.sweep` counts the clusters for other values). The authors' code has
signature: per_class, p: 3, proximity: entry_min, and for mixed datasets whole and normalized. The meaning of
average linkage: wpgma here, as in that code; linkage: upgma weighs clusters by their sizes.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedflow.errors import BadInput
from fedflow.heterogeneity import MODES, cut_into, extend, largest_gap, proximity, signature
from fedflow.local.client import Client, Update
from fedflow.methods.clustered._hierarchical import Hierarchical, HierarchicalState
from fedflow.methods.method import Cohort, Conditions, Initial, Round
from fedflow.methods.registry import register
from fedflow.models.flat import FlatModel
from fedflow.settings import option


@dataclass(frozen=True, kw_only=True)
class State(HierarchicalState):
    signatures: Tensor | None = None  # [N, q, F], padded; None before the onboarding
    columns: Tensor | None = None  # [N], the q of each client; None before the onboarding


@register("pacfl", "PACFL")
class PACFL(Hierarchical[State]):
    unit = "angle, degrees"

    beta: float | None = option(
        None, "merge up to this angle in degrees; null = the largest gap", symbol="beta", ge=0
    )
    clusters: int | None = option(
        None, "number of clusters, instead of beta", symbol="Z", ge=1, grid=(2, 3, 4)
    )
    p: int = option(
        3, "singular vectors", symbol="p", ge=1, grid=(3, 4, 5), source="Tables 3.8, 3.9, 3.11; Table 3.10: 5"
    )
    signature: str = option(
        "whole", "singular vectors of a client's data, or of each label's", choices=("whole", "per_class")
    )
    input: str = option(
        "raw", "pixels 0..255, or as the network reads them", choices=("raw", "normalized"), source="code"
    )
    proximity: str = option(
        "principal_min", "angle between two signatures", choices=tuple(MODES), source="equation 3.1"
    )

    def validate(self) -> None:
        if self.clusters is not None and self.beta is not None:
            raise BadInput("method.clusters", self.clusters, "null where beta is given")

    def setup(self, model: FlatModel, initial: Initial) -> State:
        first = initial(0)
        return State(models=first[None], initial=first)

    def onboarding_local(self, phase: int, client: Client) -> Update:
        x, y = client.data(raw=self.input == "raw")
        labels = y.cpu().numpy() if self.signature == "per_class" else None
        if labels is not None and (y.ndim != 1 or y.is_floating_point()):
            raise BadInput("method.signature", self.signature, "whole, as samples do not have one label each")
        u = signature(x.cpu().numpy(), self.p, labels)
        return client.update(signature=torch.from_numpy(u.T.copy()).to(client.model.dtype))

    def measure(self, now: Round, server: State, cohort: Cohort) -> State:
        sent = [u.cpu() for u in cohort.vectors("signature")]
        if not cohort.newcomers:
            return replace(
                server,
                signatures=pad_sequence(sent, batch_first=True),
                columns=torch.tensor([len(u) for u in sent]),
                proximity=torch.from_numpy(proximity(transposed(sent), mode=self.proximity)),
            )
        assert server.signatures is not None and server.columns is not None
        earlier = [u[:q] for u, q in zip(server.signatures.cpu(), server.columns)]
        before = server.matrix[: now.clients, : now.clients]
        extended = extend(before, transposed(earlier), transposed(sent), self.proximity)
        return replace(server, proximity=torch.from_numpy(extended))

    def height(self, tree: np.ndarray) -> float:
        if self.clusters is not None:
            return np.inf
        if self.beta is not None:
            return self.beta
        return largest_gap(tree) if len(tree) else 0.0

    def check(self, run: Conditions) -> None:
        run.need_clients("method.clusters", self.clusters)
        if self.clusters is None and self.beta is None and run.clients == 2:
            raise BadInput("method.beta", None, "a number where there are 2 clients: they leave no gap")

    def cut(self, tree: np.ndarray, height: float) -> np.ndarray:
        if self.clusters is None:
            return super().cut(tree, height)
        return cut_into(tree, self.clusters)


def transposed(signatures: list[Tensor]) -> list[np.ndarray]:
    """Signatures [F, q_k] from their rows [q_k, F]."""
    return [u.numpy().T for u in signatures]
