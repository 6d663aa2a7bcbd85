"""FedSplit: operator splitting, which converges to the optimum even though clients take many local steps.

Source: Pathak, Wainwright, "FedSplit: An algorithmic framework for fast federated optimization", NeurIPS
2020, arXiv 2005.05238, Algorithm 1. Objective: sum_k f_k(x), convex; f_k = (n_k / mean n) F_k, or F_k.

Client: u <- argmin f_k(u) + 1/(2s) ||u - (2 x - z_k)||^2, approximately, by E epochs of SGD from x;
z_k <- z_k + 2 gamma (u - x); sends the difference. Server: x <- mean of z_k over all N clients, absent ones
included; or, with server: active, clients send z_k, and x is the mean over the cohort. Initially z_k = x; in
the limit z_k = x - s grad f_k(x).
*Reduces to* uniform FedProx with mu = 1/s in its first round, with weighting: uniform, gamma = 1/2, and all
clients in the cohort or server: active.
*Invariant*: x is the mean of all z_k, or of the cohort's.
*State*: server x; client z_k, with reg > 0 also the first model. *Traffic*: 1 P down, 1 P up.
*Newcomer*: the global model, z_k = x.
*Differs from the paper in*: partial participation, with the two server rules that FedDyn's authors compare
("FedSplit All", and "FedSplit Act", which does not stay at the optimum); and gamma < 1 for losses that are
not convex (gamma = 1/2 is Douglas-Rachford, 1 Peaceman-Rachford). The argmin is exact in the limit of many
full gradient steps (`batch_size: 0`); if F_k is l-strongly convex and L-smooth, the best step is
2 / (l + L + 2/s), which multiplies the distance of u to the argmin by (L - l) / (L + l + 2/s). With
s = 1 / sqrt(l L), every round multiplies the distance of x to the optimum by 1 - 2 / (sqrt(L/l) + 1).
"""

from torch import Tensor

from fedflow.local.client import Client, Update
from fedflow.local.optimizer import Pull
from fedflow.methods.method import Cohort, GlobalModel, Method, Next, Round
from fedflow.methods.registry import register
from fedflow.models.flat import FlatModel
from fedflow.settings import option


@register("fedsplit", "FedSplit")
class FedSplit(Method[GlobalModel]):
    s: float = option(
        10.0, "step size of the proximal operator", symbol="s", gt=0, grid=(0.1, 1, 10, 100), source="code"
    )
    relax: float = option(
        1.0, "length of the reflections; 1/2 for networks", symbol="gamma", gt=0, le=1, grid=(0.5, 1)
    )
    reg: float = option(
        0.0, "pull to the initial model, if not strongly convex", symbol="lambda", ge=0, source="Theorem 2"
    )
    weighting: str = option(
        "samples", "the objective's client weights: n_k or equal", choices=("samples", "uniform")
    )
    server: str = option(
        "all", "x is the mean of z_k over all clients, or the cohort", choices=("all", "active")
    )

    def client_state(self, model: FlatModel, initial: Tensor) -> dict[str, Tensor]:
        return {"z": initial} | ({"first": initial} if self.reg else {})

    def local(self, client: Client) -> Update:
        x, z = client.received["model"], client.kept["z"]
        reflected = 2 * x - z
        pull = Pull(1 / self.s, reflected)
        if self.reg:  # both penalties as one
            weight = self.reg + 1 / self.s
            pull = Pull(weight, (self.reg * client.kept["first"] + reflected / self.s) / weight)

        def weighted(loss: Tensor) -> Tensor:
            return client.samples / client.mean_samples * loss

        cost = weighted if self.weighting == "samples" else None
        moved = client.fit(start=x, pull=pull, cost=cost) - x
        dz = client.model.with_buffers(2 * self.relax * moved, moved)
        z = z + dz
        if self.server == "active":
            return client.update(z=client.model.with_buffers(z, x + moved), weight=1.0, keep={"z": z})
        return client.update(dz=dz, weight=1.0, keep={"z": z})

    def aggregate(self, now: Round, server: GlobalModel, cohort: Cohort) -> Next[GlobalModel]:
        if self.server == "active":
            return GlobalModel(cohort.mean("z")), {}
        x, dz = server.model, cohort.mean("dz")
        share = len(cohort.ids) / now.clients
        return GlobalModel(now.model.with_buffers(x + share * dz, x + dz)), {}
