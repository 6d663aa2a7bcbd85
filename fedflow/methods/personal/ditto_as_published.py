"""Ditto as in SuPerFed's code: personal models are pulled by norms, not by their squares.

Source: Hahn, Jeong, Lee, "Connecting Low-Loss Subspace for Personalized Federated Learning", KDD 2022, arXiv
2109.07628; a baseline in the authors' code, github.com/vaseline555/SuPerFed, which made the numbers of Ditto
in Tables 2.3 to 2.6 of Hahn's thesis. Use it to repeat these tables.

As `ditto`, except that v_k descends F_k(v) + lambda sum_i ||v_i - w_i||, the sum over tensors i whose names
contain "weight". Its gradient at v = w_t, where the norm has none, is the one of F_k.
*Reduces to* Local personal models when lambda = 0; its global part is always FedAvg. *State*: as Ditto.
*Traffic*: 1 P down, 1 P up. *Newcomer*: v = w_t.
*Differs from the authors' code in*: the biases, as described for `fedprox_as_published`.
"""

from torch import Tensor

from fedflow.local.client import Client, Update
from fedflow.local.samples import Batch
from fedflow.methods.averaging.fedprox_as_published import distances
from fedflow.methods.personal.ditto import Ditto
from fedflow.methods.registry import register
from fedflow.settings import option


@register("ditto_as_published", "Ditto as published")
class DittoAsPublished(Ditto):
    personal_epochs: int | None = option(
        5,
        "local epochs of the personal model; null = as the global one",
        ge=1,
        source="authors' code: --tau 5",
    )

    def local(self, client: Client) -> Update:
        w = client.received["model"]

        def loss(v: Tensor, batch: Batch) -> Tensor:
            return client.loss(v, batch) + self.lam * distances(client.model, v, w)

        w_k = client.fit(start=w)
        v_k = client.fit(loss, start=client.kept["personal"], stream="personal", lr=self.personal_lr)
        client.trained = self.trained_model(v_k, w_k)
        return client.update(model=w_k, weight=self.weight(client), keep={"personal": v_k})
