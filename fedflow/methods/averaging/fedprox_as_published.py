"""FedProx as in SuPerFed's code: the proximal term is a sum of norms, not of their squares.

Source: Hahn, Jeong, Lee, "Connecting Low-Loss Subspace for Personalized Federated Learning", KDD 2022, arXiv
2109.07628; a baseline in the authors' code, github.com/vaseline555/SuPerFed, which made the numbers of
FedProx in Tables 2.3 to 2.6 of Hahn's thesis. Use it to repeat these tables.

Client: descends F_k(w) + mu sum_i ||w_i - w_t,i||, the sum over tensors i whose names contain "weight", whose
gradient at w = w_t is taken as 0. Server: as FedAvg.
*Reduces to* FedAvg when mu = 0.
*State*: as FedAvg. *Traffic*: 1 P down, 1 P up. *Newcomer*: the global model.
*Differs from the authors' code in*: the biases, which there return to their initial values in every round, as
with `superfed` and aggregation: official. In the authors' networks, only BatchNorm layers have biases.
"""

import torch
from torch import Tensor

from fedflow.local.client import Client, Update
from fedflow.local.samples import Batch
from fedflow.methods.averaging.fedprox import FedProx
from fedflow.methods.method import M
from fedflow.methods.registry import register
from fedflow.models.flat import FlatModel


@register("fedprox_as_published", "FedProx as published")
class FedProxAsPublished(FedProx[M]):
    def local(self, client: Client) -> Update:
        anchor = client.received["model"]

        def loss(w: Tensor, batch: Batch) -> Tensor:
            return client.loss(w, batch) + self.mu * distances(client.model, w, anchor)

        w_k = client.fit(loss if self.mu else None, start=anchor)
        return client.update(model=w_k, weight=self.weight(client))


def distances(model: FlatModel, w: Tensor, center: Tensor) -> Tensor:
    """The sum over weights of the norms of ``w`` - ``center``, both [D]; its gradient at 0 is 0.

    Raises `BadInput` if no parameter has a name with "weight".
    """
    moved = torch.where(model.part("*weight*").mask, w - center, 0)
    return torch.stack([part.norm() for part in moved.split(model.sizes)]).sum()
