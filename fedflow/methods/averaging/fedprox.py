"""FedProx: FedAvg with a proximal term that keeps clients near the global model.

Source: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous
Networks", MLSys 2020, arXiv 1812.06127, Algorithm 2.

Client: minimize F_k(w) + mu/2 ||w - w_t||^2 by SGD from w_t. Server: as FedAvg.
*Reduces to* FedAvg when mu = 0.
*State*: as FedAvg. *Traffic*: 1 P down, 1 P up. *Newcomer*: the global model.
*Stragglers*: in the paper, a share of each cohort trains fewer epochs; FedProx keeps these updates
(`training.stragglers`), FedAvg drops them (`training.drop_stragglers`).
*Differs from the paper in*: the cohort is uniform and the average is weighted by n_k, as in the authors' code
(the paper: `run.sampling: proportional` and weighting: uniform). SuPerFed's code has norms in place of
squared norms (`fedprox_as_published`).
"""

from fedflow.local.client import Client, Update
from fedflow.local.optimizer import Pull
from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.methods.method import M
from fedflow.methods.registry import register
from fedflow.settings import option


@register("fedprox", "FedProx")
class FedProx(FedAvg[M]):
    mu: float = option(
        0.01, "weight of the proximal term", symbol="mu", ge=0, grid=(1e-3, 0.01, 0.1, 1), source="section 5"
    )

    def local(self, client: Client) -> Update:
        w = client.received["model"]
        pull = Pull(self.mu, w) if self.mu else None
        return client.update(model=client.fit(start=w, pull=pull), weight=self.weight(client))
