"""Inner-product manipulation: attackers turn the mean update against the honest one.

Source: Xie et al., "Fall of Empires: Breaking Byzantine-Tolerant SGD by Inner Product Manipulation", UAI
2020.
"""

from torch import Tensor

from fedflow.settings import option
from fedflow.simulation.updates.attack import Collusion
from fedflow.simulation.updates.step import register


@register("inner_product", "Inner-product manipulation")
class InnerProduct(Collusion):
    """Every attacker sends -``scale`` times the mean update of the honest clients, with equal weights."""

    scale: float = option(0.1, "factor on the mean", symbol="epsilon", gt=0, grid=(0.1, 1, 10))

    def forge(self, attackers: Tensor, honest: Tensor) -> Tensor:
        return -self.scale * honest.mean(0)
