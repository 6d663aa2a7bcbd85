"""NoSide: FedHeN without its side objective; simple clients train the first part of a network, others all.

Source: Acar, thesis, Chapter 4, Algorithm 9; a baseline of FedHeN.

Client: a simple one minimizes F_k(w_s), a complex one F_k(w_c), by the last exit only. Server: as FedHeN.
*Reduces to* uniform FedAvg on the simple network without complex clients, on the whole network without
simple ones; HeteroFL makes networks narrower instead of less deep.
*Invariant*: [w_c]_M = w_s, because the server keeps only w_c.
*State*: server w_c; clients none. *Traffic*: 1 P_level down, 1 P_level up. *Newcomer*: the network of its
level; newcomers are dealt to the levels in turns.
*Differs from the paper in*: complex clients return the head of the first exit, which they do not train,
unchanged: weight decay does not shrink it.
*Ambiguous*: read literally, Algorithm 9 averages that head over all clients, so complex clients pull it to
its last value; head_average: simple_only averages it over the clients that train it.
"""

from torch import Tensor

from fedflow.local.client import Client, Update
from fedflow.methods.registry import register
from fedflow.methods.subnetworks._levels import Levels, SimpleAndComplex, Whole
from fedflow.models.exits import EXIT
from fedflow.models.flat import FlatModel
from fedflow.settings import option


@register("noside", "NoSide")
class NoSide(SimpleAndComplex[Whole], Levels):
    complex_exits = "last"

    head_average: str = option(
        "literal", "the exit's head is averaged over all, or its trainers", choices=("literal", "simple_only")
    )

    def local(self, client: Client) -> Update:
        received = client.received["model"]
        w = client.fit(start=received)
        if client.level == "complex":
            exit = client.model.part(EXIT)
            w = client.trained = exit.join(exit.of(received), exit.outside(w))
        return self.sent(client, w)

    def counts(self, model: FlatModel, level: str) -> Tensor | float:
        if level == "complex" and self.head_average == "simple_only":
            return ~model.part(EXIT).mask
        return 1.0
