"""PCA+kM+HC: FLT with principal components of the pixels instead of an auto-encoder.

Source: the baseline of Jamali-Rad, Abdizadeh, Singh, "Federated Learning with Taskonomy for Non-IID Data",
IEEE Transactions on Neural Networks and Learning Systems 2022, arXiv 2103.15947, section 4, after k-FED
(Dennis, Li, Smith, ICML 2021, arXiv 2103.00697); code github.com/hjraad/FLT.

Before the first round, every client projects its samples, pixels 0..1, on their p leading principal
components, and sends the k means of these scores [k, p]. Server: from there on as FLT, with the distances of
these means. With basis: shared, the components come from the server's public images.
*Reduces to* FedAvg when all are related (large gamma), to Local when no two are, except that clients are
served by cluster.
*State*: server the distinct models, the graph, signatures, A; clients none.
*Traffic*: 1 P down, 1 P up. Before the first round also k p numbers up, and with basis: shared, F (p + 1)
down for F pixels.
*Newcomer*: as with FLT.
*Differs from the paper in*: gamma, which is in units of the inputs: the authors' 1.2 is for 28 x 28 pixels in
0..1 (for CIFAR theirs are in -1..1, so it is 0.6 here), and relates all clients if images are 8 x 8. By
default it is two thirds of the median distance, which leaves some clients unrelated in an IID federation too.
*Ambiguous*: every client has its own components, so scores of two clients are in different spaces; this is
what the authors' code does. Planted groups are found with basis: shared (on digits and MNIST), but hardly
with the clients' own components, whatever gamma is. Despite its name, it does not cut a tree, except for
FEMNIST, where C = 3 (case: clusters, clusters: 3).
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedflow.data import Examples
from fedflow.errors import BadInput
from fedflow.heterogeneity import signature
from fedflow.local.client import Client
from fedflow.local.encoder import pixels
from fedflow.methods.clustered._related import Related, RelatedState
from fedflow.methods.method import Initial, Message, Round
from fedflow.methods.protocols import Pretrained, ServerData
from fedflow.methods.registry import register
from fedflow.models.flat import FlatModel
from fedflow.settings import option


@dataclass(frozen=True, kw_only=True)
class State(RelatedState):
    basis: Tensor | None = None  # [p + 1, F], of the public images, their mean last, or None if not shared


@register("pca_km_hc", "PCA+kM+HC")
class PCAKMHC(Pretrained, Related[State]):
    gamma: float | None = option(
        None, "largest distance of relatives; null = 1 (umap), else 2/3 of the median", symbol="gamma", gt=0
    )
    p: int = option(128, "principal components", symbol="p", ge=1, source="authors' code: 128")
    basis: str = option(
        "per_client", "components of each client's data, or of the server's", choices=("per_client", "shared")
    )
    public: str | None = option(
        None, "images for basis: shared, of a dataset under `data`; null = what the partition sets aside"
    )

    def server_data(self) -> ServerData:
        return ServerData(self.public)

    def needs_data(self) -> str:
        if self.basis == "per_client":
            return ""
        return "method.public to a dataset, or method.basis to per_client"

    def setup(self, model: FlatModel, initial: Initial) -> State:
        first = initial(0)
        return State(models=first[None], initial=first)

    def pretrain_server(self, server: State, public: Examples, seed: int) -> State:
        return server if self.basis == "per_client" else replace(server, basis=components(public.x, self.p))

    def onboarding_broadcast(self, now: Round, phase: int, server: State, client: int) -> Message:
        if self.basis == "per_client":
            return {}
        assert server.basis is not None, "checked at the start"
        return {"basis": server.basis}

    def points(self, client: Client) -> Tensor:
        x, _ = client.data(raw=True)
        basis = components(x, self.p) if self.basis == "per_client" else client.received["basis"]
        x = pixels(x).flatten(1)
        if x.shape[1] != basis.shape[1]:
            raise BadInput("method.public", self.public, f"inputs of {x.shape[1]} numbers, as the clients'")
        return (x - basis[-1]) @ basis[:-1].T

    def threshold(self, matrix: np.ndarray) -> float:
        median = np.median(matrix[np.triu_indices(len(matrix), 1)]) if len(matrix) > 1 else 0.0
        relative = self.gamma is None and self.reducer != "umap" and median > 0
        return float(median) * 2 / 3 if relative else super().threshold(matrix)


def components(x: Tensor, p: int) -> Tensor:
    """The ``p`` leading principal components of ``x`` [n, ...] and their mean, the last row [p + 1, F].

    Components beyond the rank of the data are zero. Signs as in `fedflow.heterogeneity.signature`.
    """
    x = pixels(x).flatten(1)
    mean = x.mean(0)
    rows = torch.from_numpy(signature((x - mean).cpu().numpy(), p).T.astype(np.float32)).to(x)
    return torch.cat([rows, rows.new_zeros(p - len(rows), len(mean)), mean[None]])
