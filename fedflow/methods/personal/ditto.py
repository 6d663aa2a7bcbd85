"""Ditto: a global FedAvg model, and a personal model for every client that is pulled towards it.

Source: Li, Hu, Beirami, Smith, "Ditto: Fair and Robust Federated Learning Through Personalization",
ICML 2021, arXiv 2012.04221, Algorithm 1.

Client: w_k as FedAvg; personal v_k <- s steps of v - eta_p (grad F_k(v) + lambda (v - w_t)), w_t as received.
Server: as FedAvg.
*Reduces to* FedAvg in its global part; its personal part is Local when lambda = 0.
*State*: server w; client v_k. *Traffic*: 1 P down, 1 P up. *Newcomer*: v = w_t.
The recorded training loss belongs to the personal model.
*Rates*: eta_p defaults to the client learning rate of the round, with its decay; a given eta_p does not
decay.
*Differs from the paper in*: uniform sampling and n_k weights, as FedAvg here; the authors do the reverse
(`run.sampling: proportional` and weighting: uniform). SuPerFed's code has norms in place of squared norms
(`ditto_as_published`).
"""

from fedflow.local.client import Client, Update
from fedflow.local.local_training import LocalTraining
from fedflow.local.optimizer import Pull
from fedflow.methods.personal._personal import WithFedAvg
from fedflow.methods.registry import register
from fedflow.settings import option


@register("ditto", "Ditto")
class Ditto(WithFedAvg):
    lam: float = option(1.0, "pull to the global model", symbol="lambda", ge=0, grid=(0.05, 0.1, 0.5, 1, 2))
    personal_epochs: int | None = option(
        None, "local epochs of the personal model; null = as the global one", ge=1
    )
    personal_lr: float | None = option(
        None, "personal learning rate; null = as the global one, with its decay", symbol="eta_p", gt=0
    )

    def streams(self, training: LocalTraining) -> dict[str, int]:
        return {"batches": training.epochs, "personal": self.personal_epochs or training.epochs}

    def local(self, client: Client) -> Update:
        w = client.received["model"]
        w_k = client.fit(start=w)
        v, pull = client.kept["personal"], Pull(self.lam, w) if self.lam else None
        v_k = client.fit(start=v, stream="personal", lr=self.personal_lr, pull=pull)
        client.trained = self.trained_model(v_k, w_k)
        return client.update(model=w_k, weight=self.weight(client), keep={"personal": v_k})
