"""FedSGD: a round is one gradient step on all the data of the cohort.

Source: McMahan, Moore, Ramage, Hampson, Aguera y Arcas, "Communication-Efficient Learning of Deep
Networks from Decentralized Data", AISTATS 2017, arXiv 1602.05629, section 2.

Client: g_k = gradient of F_k at w_t, over all its data; sends w_k = w_t - eta g_k, eta = training.lr.
Server: w_{t+1} = sum_k p_k w_k = w_t - eta sum_k p_k g_k. (Epochs, batch size and momentum have no effect.)
The distributed SGD of FedDyn's experiments is this method with weighting: uniform.
*Reduces to* gradient descent on sum_k p_k F_k with full participation; it is FedAvg with one full batch.
*State*: as FedAvg. *Traffic*: 1 P down, 1 P up. *Newcomer*: the global model.
*Differs from the paper in*: w_k is sent instead of g_k, which the paper calls equivalent. So the
learning rate follows the client's schedule, and running statistics of BatchNorm are averaged too.
"""

from fedflow.local.client import Client, Update
from fedflow.local.local_training import LocalTraining
from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.methods.method import GlobalModel, Passes, Round
from fedflow.methods.registry import register


@register("fedsgd", "FedSGD")
class FedSGD(FedAvg):
    def streams(self, training: LocalTraining) -> dict[str, int]:
        return {}

    def work(self, now: Round, server: GlobalModel, epochs: float, steps: int) -> Passes:
        return Passes(gradients=1)

    def local(self, client: Client) -> Update:
        return client.update(model=client.full_step(client.received["model"]), weight=self.weight(client))
