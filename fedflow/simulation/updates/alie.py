"""ALIE, "a little is enough": attackers hide within the spread of the honest updates.

Source: Baruch et al., "A Little Is Enough: Circumventing Defenses For Distributed Learning", NeurIPS 2019,
Algorithm 1, with the sign of the authors' code.
"""

from statistics import NormalDist

from torch import Tensor

from fedflow.settings import option
from fedflow.simulation.updates.attack import Collusion
from fedflow.simulation.updates.step import register


@register("alie", "ALIE")
class ALIE(Collusion):
    """Every attacker sends mu - z sigma, mean and standard deviation of updates, coordinate by coordinate.

    With n clients, f of them attackers, z has Phi(z) = (n - f - s) / (n - f), s = floor(n / 2 + 1) - f: then
    s honest clients are expected farther from the mean, which gives the attackers a majority. z is at least
    0, and at most `LARGEST` where attackers have the majority already.
    """

    z: float | None = option(None, "deviations from the mean; null = from n and f", symbol="z", ge=0)
    knows: str = option(
        "honest",
        "the updates that give mu and sigma: of all honest clients, or of the attackers before the attack",
        choices=("honest", "attackers"),
        source="Blades: honest; Baruch et al.: attackers",
    )

    def forge(self, attackers: Tensor, honest: Tensor) -> Tensor:
        seen = honest if self.knows == "honest" else attackers
        z = deviations(len(attackers) + len(honest), len(attackers)) if self.z is None else self.z
        return seen.mean(0) - z * seen.std(0, correction=0)


LARGEST = 3.0  # of z


def deviations(n: int, f: int) -> float:
    """z for ``n`` clients with ``f`` attackers."""
    quantile = (n - f - (n // 2 + 1 - f)) / (n - f)
    if quantile <= 0.5:
        return 0.0
    return min(LARGEST, NormalDist().inv_cdf(quantile)) if quantile < 1 else LARGEST
