"""Base of AAggFF-S and AAggFF-D: weights from an online player, who sees transformed losses."""

from dataclasses import dataclass, replace
from typing import Generic, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedflow.methods.fairness._decisions import decision_loss, hindsight
from fedflow.methods.fairness._responses import CDFS, respond
from fedflow.methods.fairness._weighing import Weighing
from fedflow.methods.method import Cohort, Diagnostics, Round, ServerState
from fedflow.settings import option


@dataclass(frozen=True)
class Played(ServerState):
    """The last decision ``p`` [N]; for the regret, all ``responses`` r(s) [N, t] and the sum of l_s(p(s)).

    None before the first round; what the regret needs also once a client was missing.
    """

    p: Tensor | None = None
    responses: Tensor | None = None
    incurred: Tensor | None = None

    def array(self, name: str, *shape: int) -> np.ndarray:
        """A field as an array; zeros of this shape where it is None."""
        tensor = getattr(self, name)
        return np.zeros(shape) if tensor is None else tensor.cpu().numpy()

    def next(self, **arrays: np.ndarray | None) -> Self:
        """This state with other fields."""
        return replace(self, **{n: None if a is None else torch.as_tensor(a) for n, a in arrays.items()})


# r(t) [N], p(t+1) [N], and other fields of the state, by name.
Moved = tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]
P = TypeVar("P", bound=Played)


class AAggFF(Weighing[P], Generic[P]):
    cdf: str = option(
        "normal", "maps F_k / mean F to [0, 1]", choices=tuple(CDFS), grid=tuple(CDFS), source="tuned"
    )

    def step(self, now: Round, own: P, p: np.ndarray, ids: list[int], u: np.ndarray) -> Moved:
        """r(t) [N] and p(t+1) [N] from p(t) and the transformed losses ``u`` [m] of clients ``ids``.

        Also the new values of the state's other fields, by name.
        """
        raise NotImplementedError

    def bound(self, t: int, clients: int) -> float:
        """The theorem's bound of the regret after ``t`` rounds."""
        raise NotImplementedError

    def decide(self, now: Round, own: P, cohort: Cohort) -> tuple[np.ndarray, P, Diagnostics]:
        clients = now.clients
        p = np.full(clients, 1 / clients) if own.p is None else own.array("p")
        r, new, fields = self.step(now, own, p, cohort.ids, respond(self.cdf, cohort.scalars("loss")))
        lost = decision_loss(p, r)
        numbers = {"decision_loss": float(lost)}
        known, incurred = None, None
        if len(cohort.ids) == clients and (now.t == 1 or own.responses is not None):
            known = np.column_stack([own.array("responses", clients, 0), r])
            incurred = own.array("incurred") + lost
            regret = float(incurred - decision_loss(hindsight(known.T), known.T).sum())
            numbers |= {"regret": regret, "regret_bound": self.bound(now.t, clients)}
        return new, own.next(p=new, responses=known, incurred=incurred, **fields), numbers
