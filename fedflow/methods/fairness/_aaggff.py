"""Base of AAggFF-S and AAggFF-D: weights from an online player, who sees transformed losses."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, Self, TypeVar

import numpy as np
import scipy
import torch
from torch import Tensor

from fedflow.methods.fairness._decisions import decision_loss, hindsight
from fedflow.methods.fairness._weighing import Weighing
from fedflow.methods.method import Cohort, Diagnostics, Round, ServerState
from fedflow.settings import option


def frechet(x: np.ndarray) -> np.ndarray:
    """exp(-1 / x), and 0 at 0."""
    y: np.ndarray = np.exp(-np.divide(1, x, out=np.full_like(x, np.inf), where=x > 0))
    return y


# Cumulative distribution functions of scale 1, for x [m] = 1 at the mean loss.
CDFS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "weibull": lambda x: -np.expm1(-(x**2)),  # shape 2
    "exponential": lambda x: -np.expm1(-x),
    "frechet": frechet,  # shape 1
    "normal": lambda x: scipy.special.ndtr(x - 1),
    "gumbel": lambda x: np.exp(-np.exp(1 - x)),
    "logistic": lambda x: scipy.special.expit(x - 1),
}


def respond(cdf: str, losses: np.ndarray) -> np.ndarray:
    """u [m] in [0, 1]: the function at F_k / mean F, for ``losses`` F [m] >= 0; at 1 if all of them are 0."""
    mean = losses.mean()
    return CDFS[cdf](losses / mean if mean > 0 else np.ones_like(losses))


@dataclass(frozen=True)
class Played(ServerState):
    """The last decision ``p`` [N]; for the regret, all ``responses`` r(s) [N, t] and the sum of l_s(p(s)).

    All are None before the first round; the fields of the regret also after a round with a client missing.
    """

    p: Tensor | None = None
    responses: Tensor | None = None
    incurred: Tensor | None = None

    def array(self, name: str, *shape: int) -> np.ndarray:
        """A field as an array, or zeros of this shape if it is None."""
        tensor = getattr(self, name)
        return np.zeros(shape) if tensor is None else tensor.cpu().numpy()

    def next(self, **arrays: np.ndarray | None) -> Self:
        """This state with some fields replaced."""
        return replace(self, **{n: None if a is None else torch.as_tensor(a) for n, a in arrays.items()})


# r(t) [N], p(t+1) [N], and other fields of the state, by name.
Moved = tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]
P = TypeVar("P", bound=Played)


class AAggFF(Weighing[P], Generic[P]):
    cdf: str = option(
        "normal", "maps F_k / mean F to [0, 1]", choices=tuple(CDFS), grid=tuple(CDFS), source="tuned"
    )

    def step(self, now: Round, player: P, p: np.ndarray, ids: list[int], u: np.ndarray) -> Moved:
        """r(t) [N] and p(t+1) [N] from p(t) and the transformed losses ``u`` [m] of clients ``ids``.

        Also the new values of the player's other fields, by name.
        """
        raise NotImplementedError

    def bound(self, t: int, clients: int) -> float:
        """The theorem's bound on the regret after ``t`` rounds."""
        raise NotImplementedError

    def decide(self, now: Round, player: P, cohort: Cohort) -> tuple[np.ndarray, P, Diagnostics]:
        clients = now.clients
        p = np.full(clients, 1 / clients) if player.p is None else player.array("p")
        r, after, fields = self.step(now, player, p, cohort.ids, respond(self.cdf, cohort.scalars("loss")))
        loss = decision_loss(p, r)
        numbers = {"decision_loss": float(loss)}
        responses, incurred = None, None
        if len(cohort.ids) == clients and (now.t == 1 or player.responses is not None):
            responses = np.column_stack([player.array("responses", clients, 0), r])
            incurred = player.array("incurred") + loss
            regret = float(incurred - decision_loss(hindsight(responses.T), responses.T).sum())
            numbers |= {"regret": regret, "regret_bound": self.bound(now.t, clients)}
        return after, player.next(p=after, responses=responses, incurred=incurred, **fields), numbers
