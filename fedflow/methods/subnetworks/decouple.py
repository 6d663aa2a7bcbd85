"""Decouple: FedAvg among the clients with the simple network, and FedAvg among those with the complex one.

Source: Acar, thesis, Chapter 4, Algorithm 8; a baseline of FedHeN.

Client: SGD on F_k from the model of its level. Server: w_s is the mean over the simple clients of the cohort,
w_c the mean over its complex clients; without any, it stays. The complex network has no early exit.
*Reduces to* two runs of uniform FedAvg, each with the cohorts of its level.
*State*: server w_s, w_c; clients none. *Traffic*: 1 P_level down, 1 P_level up. *Newcomer*: the model of its
level; newcomers are dealt to the levels in turns.
"""

from dataclasses import dataclass

from torch import Tensor

from fedflow.methods.method import Cohort, Initial, Message, Next, Round, ServerState
from fedflow.methods.registry import register
from fedflow.methods.subnetworks._levels import SimpleAndComplex
from fedflow.models.flat import FlatModel


@dataclass(frozen=True)
class State(ServerState):
    simple: Tensor
    complex: Tensor


@register("decouple", "Decouple")
class Decouple(SimpleAndComplex[State]):
    complex_exits = "none"

    def setup(self, model: FlatModel, initial: Initial) -> State:
        return State(**{level: initial(0)[self.positions(model, level)] for level in self.networks()})

    def broadcast(self, now: Round, server: State, client: int) -> Message:
        return {"model": getattr(server, self.level(client, now.clients))}

    def aggregate(self, now: Round, server: State, cohort: Cohort) -> Next[State]:
        after = server.tensors()
        for level, w in server.tensors().items():
            total, number = self.total(now, cohort, level, w)
            if number:
                after[level] = (total / number).to(w.dtype)
        return State(**after), {}
