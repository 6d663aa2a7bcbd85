"""Sign flip: attackers send the negative of their update.

Source: Li et al., "RSA: Byzantine-Robust Stochastic Aggregation Methods for Distributed Learning from
Heterogeneous Datasets", AAAI 2019.
"""

from collections.abc import Mapping

from torch import Tensor

from fedflow.settings import option
from fedflow.simulation.updates.attack import Attack
from fedflow.simulation.updates.step import Outgoing, register


@register("sign_flip", "Sign flip")
class SignFlip(Attack):
    """Attackers send -``scale`` times their update."""

    scale: float = option(1.0, "factor on the flipped update", gt=0, grid=(1, 4))

    def forged(self, sent: Outgoing) -> Mapping[str, Tensor]:
        return sent.moved({name: -self.scale * d for name, d in sent.differences().items()})
