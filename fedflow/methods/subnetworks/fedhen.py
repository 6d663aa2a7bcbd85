"""FedHeN: simple clients train the first part of a network, complex clients both the whole and that part.

Source: Acar, Saligrama, "FedHeN: Federated Learning in Heterogeneous Networks", 2022, arXiv 2207.03031; Acar,
thesis, Chapter 4, Algorithms 4 and 5.

M are the entries of the simple network w_s within the complex one w_c: the first layers and an early exit.
Client: a simple one minimizes F_k(w_s), a complex one F_k(w_c) and the side objective F_k([w_c]_M), their
sum on the same batches. Server: entries of M become the mean over all clients of the cohort, the others the
mean over its complex clients; entries that no client holds stay.
*Reduces to* uniform FedAvg: without complex clients on the simple network, without simple ones on the
network with both exits; to NoSide without the side objective.
*Invariant*: [w_c]_M = w_s, because the server keeps only w_c.
*State*: server w_c; clients none. *Traffic*: 1 P_level down, 1 P_level up. *Newcomer*: the network of its
level; newcomers are dealt to the levels in turns.
*Ambiguous*: clients count equally in all means (Algorithm 4), although Eq. 4.1 counts simple and complex
clients separately. Clipping limits the sum of both gradients. The pooling of the exit and the norms are
options of the network. The authors report means over the models of all simple and of all complex clients
(run.reports: [all]), not w_s and w_c.
"""

from fedflow.methods.registry import register
from fedflow.methods.subnetworks._levels import Levels, SimpleAndComplex, Whole


@register("fedhen", "FedHeN")
class FedHeN(SimpleAndComplex[Whole], Levels):
    complex_exits = "both"
