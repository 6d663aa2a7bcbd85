"""AAggFF-D: a server that learns the weights of many clients, of which few take part, by exponentiated steps.

Source: Hahn, Kim, Lee, "Pursuing Overall Welfare in Federated Learning through Sequential Decision
Making", ICML 2024, arXiv 2405.20821; Algorithm 3.2 of Hahn's thesis, whose sections are cited here.

Client: as the host; also sends F_k, its loss at w_t over all its training data.
Server: m of K clients report (S), and C = m/K. In S, r_k = C CDF(F_k / mean F), with the mean rbar; the
doubly robust response is rbar + (r_k - rbar) / C in S, and rbar elsewhere (from here on, r). The gradient
of l_t(p) = -log(1 + <p, r>), linearized at r = rbar, is
g_t = -r / (1 + rbar) + rbar <p(t), r - rbar> / (1 + rbar)^2. p(1) is uniform, and p(t+1) in proportion to
exp(-sqrt(log K) / (L sqrt(t + 1)) sum_{s<=t} g_s), with L = 2 + C.
Then the server step of the host with weights p(t+1), scaled to sum to 1 over S.
*Reduces to* the host with uniform weights as L -> infinity.
*State*: as the host; the server also keeps p and sum g [K], and r [K, t] for the regret.
*Traffic*: 1 P down, 1 P and one scalar up. *Newcomer*: the global model.
*Regret*: with full participation, sum_t l_t(p(t)) minus the sum for the best fixed p, recorded until a client
is missing, and the bound 2 L sqrt(t log K) of Theorem 3.2, which is proved for the exact gradient.
*Identity*: p_k depends only on the sum of (u_k - ubar) / (1 + C ubar) over the rounds of client k, with
u = CDF(F_k / mean F) and ubar its mean over S: where clients take part once or twice, p stays near uniform.
Over cohorts, r is biased, because rbar is a mean over the same S: its distance from the mean over all
clients is too small by the factor 1 - (K - m) / (m (K - 1)).
*Differs from the authors' code* (`aaggff_d_as_published`) *in*: r in S (there without "rbar +"), p(1) (there
C for all), C (there the given rate), and the Normal function (there erfc in place of erf, so that it falls
with the loss).
*Ambiguous*: cohorts of different sizes (`run.sampling: bernoulli`, failed clients): C and L change by round.
Clients drawn in proportion to n_k are treated as if drawn uniformly.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fedflow.methods.fairness._aaggff import AAggFF, Moved, Played
from fedflow.methods.fairness._decisions import exponentiated
from fedflow.methods.method import Round
from fedflow.methods.registry import register
from fedflow.settings import option


@dataclass(frozen=True)
class State(Played):
    """Also sum_s g_s [K]."""

    total: Tensor | None = None


@register("aaggff_d", "AAggFF-D")
class AAggFFD(AAggFF[State]):
    largest: str = option(
        "share", "largest response: C, or 1/K as in AAggFF-S", choices=("share", "1/K"), source="section 5.2"
    )
    lipschitz: float | None = option(
        None, "constant L; null = c + 2 c / C, c the largest response", symbol="L", gt=0, source="Lemma 3.5"
    )

    def first(self) -> State:
        return State()

    def range(self, clients: int, reporting: int) -> tuple[float, float]:
        """Largest response, and L."""
        share = reporting / clients
        largest = share if self.largest == "share" else 1 / clients
        return largest, largest + 2 * largest / share if self.lipschitz is None else self.lipschitz

    def step(self, now: Round, player: State, p: np.ndarray, ids: list[int], u: np.ndarray) -> Moved:
        k = now.clients
        largest, lipschitz = self.range(k, len(ids))
        mean = largest * u.mean()
        r = np.full(k, mean)
        r[ids] += (largest * u - mean) * k / len(ids)
        g = -r / (1 + mean) + mean * (p @ (r - mean)) / (1 + mean) ** 2
        total = player.array("total", k) + g
        new = exponentiated(np.ones(k), -total, np.sqrt(np.log(k) / (now.t + 1)) / lipschitz)
        return r, new, {"total": total}

    def bound(self, t: int, clients: int) -> float:
        return float(2 * self.range(clients, clients)[1] * np.sqrt(t * np.log(clients)))
