"""Centered clipping: updates are clipped around their clipped mean.

Source: Karimireddy et al., "Learning from History for Byzantine Robust Optimization", ICML 2021, Algorithm 2.
"""

from collections.abc import Mapping, Sequence

from torch import Tensor

from fedflow.settings import option
from fedflow.simulation.updates.step import register
from fedflow.simulation.updates.together import Differences, Meeting, norm


@register("centered_clipping", "Centered clipping")
class CenteredClipping(Meeting):
    """v <- v + mean_i (u_i - v) min(1, tau / ||u_i - v||), from v = 0, the model that clients received.

    The last of these means is the server's own: clients send v + (u_i - v) min(1, tau / ||u_i - v||). All
    means have the weights of the clients, and are over a cluster where there are several. The norm of a
    client is over all vectors that it sends. With one iteration, it is `Clip`. An update that is not clipped
    in the last iteration does not change by a bit. The paper's workers send momentum, and v starts at the
    last aggregate.
    """

    radius: float = option(doc="largest distance from the center", symbol="tau", gt=0)
    iterations: int = option(3, "iterations", symbol="L", ge=1, source="Karimireddy et al. 2021: 1")

    def change_group(self, differences: Differences, members: Sequence[int]) -> None:
        center: dict[str, Tensor] = {}
        total = sum(differences.got.weights[i] for i in members)
        for last in [False] * (self.iterations - 1) + [True]:
            before = dict(center)
            for i in members:
                away = {name: d - before.get(name, 0) for name, d in differences.of(i).items()}
                factor = min(1.0, self.radius / max(norm(away), 1e-300))
                clipped = {name: factor * d for name, d in away.items()}
                if not last:
                    add(center, clipped, differences.got.weights[i] / total)
                elif factor < 1:
                    differences.move(i, {name: d + before.get(name, 0) for name, d in clipped.items()})


def add(center: dict[str, Tensor], clipped: Mapping[str, Tensor], weight: float) -> None:
    """Add ``weight`` times these differences to the ``center``, in float64."""
    for name, difference in clipped.items():
        center[name] = center.get(name, 0) + weight * difference.double()
