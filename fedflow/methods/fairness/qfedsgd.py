"""q-FedSGD: q-FedAvg whose clients send one gradient step on all their data.

Source: Li, Sanjabi, Beirami, Smith, "Fair Resource Allocation in Federated Learning", ICLR 2020,
arXiv 1905.10497, Algorithm 1.

Client: F_k and g_k, loss and gradient at w_t over all its training data; with L = 1 / eta sends
D_k = F_k^q g_k and h_k = q F_k^(q-1) ||g_k||^2 + L F_k^q. Server: w_{t+1} = w_t - sum_k D_k / sum_k h_k.
*Reduces to* uniform FedSGD when q = 0; it is q-FedAvg with one full batch.
*State*: as FedAvg. *Traffic*: 1 P down, 1 P and one scalar up. *Newcomer*: the global model.
*Differs from the paper in*: as q-FedAvg; weight decay and clipping, if set, change g_k.
"""

from torch import Tensor

from fedflow.local.client import Client
from fedflow.local.local_training import LocalTraining
from fedflow.methods.fairness.qfedavg import QFedAvg
from fedflow.methods.method import GlobalModel, Passes, Round
from fedflow.methods.registry import register


@register("qfedsgd", "q-FedSGD")
class QFedSGD(QFedAvg):
    def streams(self, training: LocalTraining) -> dict[str, int]:
        return {}

    def work(self, now: Round, server: GlobalModel, epochs: float, steps: int) -> Passes:
        return Passes(gradients=1, losses=1)

    def train(self, client: Client) -> Tensor:
        return client.full_step(client.received["model"])
