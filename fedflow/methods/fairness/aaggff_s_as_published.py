"""AAggFF-S as in the authors' code: program, first decision and Normal response differ from the paper.

Source: Hahn, Kim, Lee, "Pursuing Overall Welfare in Federated Learning through Sequential Decision Making",
ICML 2024, arXiv 2405.20821; the authors' code, github.com/vaseline555/AAggFF, which made Table 3.6 of Hahn's
thesis and the Heart half of Table 3.10. Use it to repeat Table 3.6; for Table 3.10, the code's FedProx has
norms that are not squared, and its server optimizers lose their moments every round, unlike our hosts.

As `aaggff_s`, except: p(t+1) minimizes sum_{s<=t} <g_s, p> + alpha/2 ||p||^2 + beta/2 p' (alpha I +
sum_{s<=t} g_s g_s') p over the simplex; p(1) is 1 for every client; and the Normal response has erfc in place
of erf, so it falls with the loss, from 3/2 to 1/2.
*Reduces to* the host with uniform weights as alpha -> infinity. *State*: as AAggFF-S.
*Traffic*: 1 P down, 1 P and one scalar up. *Newcomer*: the global model. The bound on the regret does not
hold.
"""

import numpy as np

from fedflow.methods.fairness._aaggff import Moved
from fedflow.methods.fairness._published import as_published
from fedflow.methods.fairness._simplex import minimize
from fedflow.methods.fairness.aaggff_s import AAggFFS, State
from fedflow.methods.method import Cohort, Diagnostics, Round
from fedflow.methods.registry import register


@register("aaggff_s_as_published", "AAggFF-S as published")
class AAggFFSAsPublished(AAggFFS):
    def decide(self, now: Round, player: State, cohort: Cohort) -> tuple[np.ndarray, State, Diagnostics]:
        if player.p is None:
            player = player.next(p=np.ones(now.clients))
        return super().decide(now, player, cohort)

    def step(self, now: Round, player: State, p: np.ndarray, ids: list[int], u: np.ndarray) -> Moved:
        k, beta, u = now.clients, self.curvature(now.clients), as_published(self.cdf, u)
        r = np.full(k, u.mean() / k)
        r[ids] = u / k
        g = -r / (1 + p @ r)
        outer, linear = player.array("outer", k, k) + np.outer(g, g), player.array("linear", k) + g
        new = minimize(self.alpha * (1 + beta) * np.eye(k) + beta * outer, linear)
        return r, new, {"outer": outer, "linear": linear}
