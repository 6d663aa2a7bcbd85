"""AAggFF-S: a server that learns the weights of few clients, which all take part, by online Newton steps.

Source: Hahn, Kim, Lee, "Pursuing Overall Welfare in Federated Learning through Sequential Decision
Making", ICML 2024, arXiv 2405.20821; Algorithm 3.1 of Hahn's thesis, whose sections are cited here.
Objective: min over w, max over p in the simplex, of log(1 + sum_k p_k F_k).

Client: as the host; also sends F_k, its loss at w_t over all its training data.
Server: r_k = CDF(F_k / mean F) / K. The decision loss l_t(p) = -log(1 + <p, r>) has the gradient
g_t = -r / (1 + <p(t), r>) at p(t); p(1) is uniform, and p(t+1) minimizes over the simplex
sum_{s<=t} (<g_s, p> + beta/2 <g_s, p - p(s)>^2) + alpha/2 ||p||^2, a quadratic program, solved exactly.
Then the server step of the host with weights p(t+1): the losses of a round weight its own updates.
*Reduces to* the host with uniform weights as alpha -> infinity.
*State*: as the host; the server also keeps p [K], the program [K, K], and r [K, t].
*Traffic*: 1 P down, 1 P and one scalar up. *Newcomer*: the global model.
*Regret*: sum_t l_t(p(t)) minus the sum for the best fixed p, recorded until a client is missing. Theorem 3.1
bounds it by alpha/2 + K / (2 beta) log(1 + beta t / (alpha K^2)), by default 2 (1 + log(1 + t / (16 K))). Its
proof needs beta <= 1/2, and from K = 4 on the default K/4 breaks the lemma behind it: if K = 7 and r is
(1, 0, ..., 0) / K in the first 640 of 1,600 rounds, then (0, 1, 0, ..., 0) / K, the regret is 10.4 and the
bound 7.5.
*Differs from the authors' code* (`aaggff_s_as_published`) *in*: the program (there alpha counts twice and
<g_s, p(s)> is missing), p(1) (there all ones), and the Normal function (there erfc in place of erf, so that
it falls with the loss).
*Ambiguous*: clients that do not report, which the paper does not have. Here they get the mean response of
those that do, and p is scaled to sum to 1 over the latter.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fedflow.methods.fairness._aaggff import AAggFF, Moved, Played
from fedflow.methods.fairness._simplex import minimize
from fedflow.methods.method import Round
from fedflow.methods.registry import register
from fedflow.settings import option


@dataclass(frozen=True)
class State(Played):
    """Also sum_s g_s g_s^T [K, K], and the linear term [K] of the program."""

    outer: Tensor | None = None
    linear: Tensor | None = None


@register("aaggff_s", "AAggFF-S")
class AAggFFS(AAggFF[State]):
    alpha: float = option(4.0, "weight of ||p||^2 / 2", symbol="alpha", gt=0, source="4 K L, L = 1/K")
    beta: float | None = option(
        None, "weight of the squares; null = K/4", symbol="beta", gt=0, source="1 / (4 L), L = 1/K"
    )

    def first(self) -> State:
        return State()

    def curvature(self, clients: int) -> float:
        """beta"""
        return clients / 4 if self.beta is None else self.beta

    def step(self, now: Round, player: State, p: np.ndarray, ids: list[int], u: np.ndarray) -> Moved:
        k, beta = now.clients, self.curvature(now.clients)
        r = np.full(k, u.mean() / k)
        r[ids] = u / k
        g = -r / (1 + p @ r)
        outer = player.array("outer", k, k) + np.outer(g, g)
        linear = player.array("linear", k) + g - beta * (g @ p) * g
        new = minimize(self.alpha * np.eye(k) + beta * outer, linear)
        return r, new, {"outer": outer, "linear": linear}

    def bound(self, t: int, clients: int) -> float:
        beta = self.curvature(clients)
        return self.alpha / 2 + clients / (2 * beta) * float(np.log1p(beta * t / (self.alpha * clients**2)))
