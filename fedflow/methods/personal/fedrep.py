"""FedRep: the body of the network is shared, its head stays with the client; the head trains first.

Source: Collins, Hassani, Mokhtari, Shakkottai, "Exploiting Shared Representations for Personalized
Federated Learning", ICML 2021, arXiv 2102.07078, Algorithm 1.

Client: tau_h epochs of SGD on its head, the received body fixed; then tau_b epochs on the body, the new head
fixed; sends the body. Server: averages bodies as FedPer.
The recorded training loss is the mean over the body's epochs.
*Reduces to* FedAvg on the body, under one fixed head, when tau_h = 0; FedPer trains both parts at once.
*State*: server body; client head. *Traffic*: P_body down, P_body up. *Newcomer*: the body and the first head.
*Ambiguous*: the division of local epochs: here E for the head and one more for the body (the authors' code
gives the body the last of its E epochs). A fixed part keeps its buffers too. The authors train only heads in
the last round, with every method; here, `run.fine_tune` compares methods this way.
"""

import torch
from torch import Tensor

from fedflow.local.client import Client, Update
from fedflow.local.local_training import LocalTraining
from fedflow.local.samples import Batch
from fedflow.methods.personal.fedper import FedPer
from fedflow.methods.registry import register
from fedflow.settings import option


@register("fedrep", "FedRep")
class FedRep(FedPer):
    head_epochs: int | None = option(
        None, "local epochs of the head; null = `training.epochs`", symbol="tau_h", ge=0, source="section 5"
    )
    body_epochs: int = option(
        1, "local epochs of the body, after the head's", symbol="tau_b", ge=1, source="authors' code"
    )

    def streams(self, training: LocalTraining) -> dict[str, int]:
        head = training.epochs if self.head_epochs is None else self.head_epochs
        return {"batches": self.body_epochs} | ({"head": head} if head else {})

    def local(self, client: Client) -> Update:
        head, w = self.head(client.model), self.model_for(client)

        def train(part: Tensor, stream: str) -> Tensor:
            """``w`` after SGD on the entries in ``part`` [D] alone."""

            def loss(v: Tensor, batch: Batch) -> Tensor:
                return client.loss(torch.where(part, v, w), batch)

            return torch.where(part, client.fit(loss, start=w, stream=stream), w)

        if self.head_epochs != 0:
            w = train(head.mask, "head")
        w = client.trained = train(~head.mask, "batches")
        return client.update(body=head.outside(w), weight=self.weight(client), keep={"head": head.of(w)})
