"""Random-k sparsification: only random entries are sent.

Sources: Konečný et al., "Federated Learning: Strategies for Improving Communication Efficiency", 2016
(subsampling, random masks by seed); Stich et al., "Sparsified SGD with Memory", NeurIPS 2018 (feedback).
"""

from torch import Tensor

from fedflow.local.wire import Size
from fedflow.settings import option
from fedflow.simulation.updates._compression import Code, Compression, Draw
from fedflow.simulation.updates.step import register


@register("random_k", "Random-k sparsification")
class RandomK(Compression):
    """k random entries of a vector [n] are sent, k = ``share`` n, at least 1, times n / k.

    So E C(u) = u and E ||C(u) - u||^2 = (n / k - 1) ||u||^2. With ``feedback``, there is no factor, and
    E ||C(u) - u||^2 = (1 - k / n) ||u||^2. Both ends draw from a shared seed: no positions are sent.
    Of a pruned vector, the drawn entries that it keeps are sent. With share 1, nothing changes.
    """

    share: float = option(doc="share of the entries that cross", symbol="k / n", gt=0, le=1)

    def code(self, u: Tensor, crosses: Tensor, draw: Draw) -> Code:
        n = u.shape[1]
        k = max(1, round(self.share * n))
        chosen = crosses & (draw(lambda rng: rng.permutation(n), crosses.long()) < k)
        return Code((u if self.feedback else u * (n / k)).where(chosen, 0), chosen.sum(1))

    def coded(self, size: Size, n: int, width: int) -> Size:
        return size
