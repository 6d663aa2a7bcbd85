"""AAggFF-D as in the authors' code: responses and the first decision differ from the paper.

Source: Hahn, Kim, Lee, "Pursuing Overall Welfare in Federated Learning through Sequential Decision Making",
ICML 2024, arXiv 2405.20821; the authors' code, github.com/vaseline555/AAggFF, which made Table 3.7 of Hahn's
thesis and the TinyImageNet half of Table 3.10. Use it to repeat Table 3.7.

As `aaggff_d`, except: the doubly robust response of a client in S is (r_k - rbar) / C, without "rbar +"; p(1)
is C for every client, as the code has its given rate; and the Normal response has erfc in place of erf, so it
falls with the loss, from 3/2 to 1/2.
*Reduces to* the host with uniform weights as L -> infinity. *State*: as AAggFF-D.
*Traffic*: 1 P down, 1 P and one scalar up. *Newcomer*: the global model. The bound on the regret does not
hold.
"""

import numpy as np

from fedflow.methods.fairness._aaggff import Moved
from fedflow.methods.fairness._decisions import exponentiated
from fedflow.methods.fairness._published import as_published
from fedflow.methods.fairness.aaggff_d import AAggFFD, State
from fedflow.methods.method import Cohort, Diagnostics, Round
from fedflow.methods.registry import register


@register("aaggff_d_as_published", "AAggFF-D as published")
class AAggFFDAsPublished(AAggFFD):
    def decide(self, now: Round, player: State, cohort: Cohort) -> tuple[np.ndarray, State, Diagnostics]:
        if player.p is None:
            player = player.next(p=np.full(now.clients, len(cohort.ids) / now.clients))
        return super().decide(now, player, cohort)

    def step(self, now: Round, player: State, p: np.ndarray, ids: list[int], u: np.ndarray) -> Moved:
        k, u = now.clients, as_published(self.cdf, u)
        largest, lipschitz = self.range(k, len(ids))
        mean = largest * u.mean()
        r = np.full(k, mean)
        r[ids] = (largest * u - mean) * k / len(ids)
        at_mean = 1 + mean * p.sum()  # p(1) sums to m
        g = -r / at_mean + mean * (p @ (r - mean)) / at_mean**2
        total = player.array("total", k) + g
        new = exponentiated(np.ones(k), -total, np.sqrt(np.log(k) / (now.t + 1)) / lipschitz)
        return r, new, {"total": total}
