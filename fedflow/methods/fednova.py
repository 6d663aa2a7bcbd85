"""FedNova: updates are divided by the client's own amount of work before they are averaged.

Source: Wang, Liu, Liang, Joshi, Poor, "Tackling the Objective Inconsistency Problem in Heterogeneous
Federated Optimization", NeurIPS 2020, arXiv 2007.07481, equations (8) and (10).

Client: tau_k steps of SGD with momentum rho from w_t; d_k = (w_t - w_k) / a_k with
a_k = [tau_k - rho (1 - rho^tau_k) / (1 - rho)] / (1 - rho), which is tau_k without momentum.
Server: w_{t+1} = w_t - tau_eff * sum_k p_k d_k, tau_eff = sum_k p_k a_k. (The paper's eta cancels.)
*Reduces to* FedAvg when all a_k are equal. *State*: as FedAvg. *Traffic*: 1 P down, 1 P and one scalar up.
*Newcomer*: the global model. *Differs from the paper in*: no server momentum.
"""

from torch import Tensor

from fedflow.local.client import Client, Update
from fedflow.methods.base import Cohort, Server, register
from fedflow.methods.fedavg import FedAvg


@register("fednova", "FedNova")
class FedNova(FedAvg):
    def local(self, client: Client) -> Update:
        w = client.received["model"]
        drift = w - client.fit(start=w)
        a = work(client.steps(), client.training.momentum)
        d = client.model.with_buffers(drift / a, drift)
        return client.update(d=d, scalars={"a": a}, weight=self.weight(client))

    def aggregate(self, server: Server, cohort: Cohort) -> Server:
        w, d = server["model"], cohort.mean("d")
        weights = cohort.weights / cohort.weights.sum()
        tau_eff = float(weights @ cohort.scalars("a"))
        return {"model": cohort.model.with_buffers(w - self.server_lr * tau_eff * d, w - d)}


def work(tau: Tensor, rho: float) -> Tensor:
    """The normaliser ||a_k||_1 of tau steps of SGD with momentum rho."""
    return tau if rho == 0 else (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)
