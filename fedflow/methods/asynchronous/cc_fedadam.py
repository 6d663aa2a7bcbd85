"""CC-FedAdam: asynchronous clients, and Adam steps of the server on the updates that have arrived.

Source: Sun, Wu, Huang, Zhang, "Client-Centric Federated Adaptive Optimization", 2025, arXiv 2501.09946,
Algorithms 2 (server) and 3 (client).

Client: fetches x, takes K local steps to x_K, sends d_k = (x - x_K) / K. Server: after every m updates, stale
ones included, d = mean of d_k; m <- beta m + (1 - beta) d; v <- gamma v + (1 - gamma) d^2;
x <- x - eta m / (sqrt(v) + eps), entry by entry; initially m = v = 0.
*Reduces to* FedAdam with v_0 = 0 and eps -> 0 when all clients train at once, are equally fast and take
equally many steps: 1 / K cancels.
*State*: server x, m, v; clients none. *Traffic*: 1 P down, 1 P up. *Newcomer*: the global model.
*Ambiguous*: which client trains next: here a random idle one (`run.timing` sets how fast clients are).
There is no bias correction; the code of FADAS, a later method, has one.
"""

from torch import Tensor

from fedflow.methods.asynchronous._client_centric import C, ClientCentric
from fedflow.methods.registry import register
from fedflow.settings import option


@register("cc_fedadam", "CC-FedAdam")
class CCFedAdam(ClientCentric[C]):
    gamma: float = option(
        0.99, "decay of the second moment v", symbol="gamma", ge=0, lt=1, source="code of FADAS"
    )

    def second(self, server: C, square: Tensor) -> dict[str, Tensor]:
        return {"v": self.gamma * server.v + (1 - self.gamma) * square}
