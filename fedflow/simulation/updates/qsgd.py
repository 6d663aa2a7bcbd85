"""QSGD: stochastic quantization.

Source: Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding", NeurIPS
2017.
"""

from math import ceil, sqrt

from torch import Tensor
from torch.nn.functional import pad

from fedflow.local.wire import Size
from fedflow.settings import option
from fedflow.simulation.updates._compression import Code, Compression, Draw
from fedflow.simulation.updates.step import register


@register("qsgd", "QSGD quantization")
class QSGD(Compression):
    """Entry u_i becomes sign(u_i) ||u|| l / s: l is s |u_i| / ||u||, rounded down or up at random.

    So E C(u) = u, and E ||C(u) - u||^2 = (||u|| / s)^2 sum_i p_i (1 - p_i) with the chances p_i of rounding
    up, at most omega ||u||^2, omega = min(n / s^2, sqrt(n) / s). With ``feedback``, C(u) is divided by
    1 + omega, so that it is a contraction. The norm is over a ``bucket`` of n entries, or the vector.

    The code has a fixed length: ceil(log2(2 s + 1)) bits an entry, and every norm; the paper's Elias code,
    which is shorter for few levels, is not counted. A vector for which it is not shorter is sent unchanged.
    """

    levels: int = option(doc="levels of an absolute value, without 0", symbol="s", ge=1)
    bucket: int | None = option(None, "entries with a common norm; null = the vector", symbol="d", ge=1)

    def code(self, u: Tensor, crosses: Tensor, draw: Draw) -> Code:
        n, s = u.shape[1], self.levels
        if not self._shorter(n, u.element_size()):
            return Code(u)
        size = min(self.bucket or n, n)
        parts = pad(u.double(), (0, -n % size)).unflatten(1, (-1, size))  # [C, buckets, size]
        norm = parts.norm(dim=2, keepdim=True).to(u.dtype).double()  # as it crosses
        exact = (s * parts.abs() / norm).nan_to_num().clamp(max=s)
        level = exact.floor()
        level += draw(lambda rng: rng.random(parts.shape[1:]), parts) < exact - level
        factor = 1 + min(size / s**2, sqrt(size) / s) if self.feedback else 1.0
        decoded = parts.sign() * level * norm / (s * factor)
        return Code(decoded.flatten(1)[:, :n].to(u.dtype))

    def coded(self, size: Size, n: int, width: int) -> Size:
        if not self._shorter(n, width):
            return size
        return size._replace(bits=self._bits, more=size.more + width * self._norms(n))

    @property
    def _bits(self) -> int:
        return (2 * self.levels).bit_length()

    def _norms(self, n: int) -> int:
        return ceil(n / (self.bucket or n))

    def _shorter(self, n: int, width: int) -> bool:
        return ceil(n * self._bits / 8) + width * self._norms(n) < n * width
