"""Norms that are bounded by the median norm of the clients.

Sources: Sun et al., "Can You Really Backdoor Federated Learning?", arXiv 1911.07963 (norm thresholding);
Nguyen et al., "FLAME: Taming Backdoors in Federated Learning", USENIX Security 2022 (the median as bound).
"""

from collections.abc import Sequence
from statistics import median

from fedflow.settings import option
from fedflow.simulation.updates.step import register
from fedflow.simulation.updates.together import Differences, Meeting, norm


@register("norm_bound", "Norm bound")
class NormBound(Meeting):
    """Every update u becomes u min(1, b / ||u||), where b is ``factor`` times the median of the norms.

    The median is over the clients of the round, or of a cluster. As in `Clip`, a client has one norm over all
    vectors that it sends, and vectors within the bound do not change by a bit.
    """

    factor: float = option(1.0, "bound in median norms", gt=0, source="FLAME: 1")

    def change_group(self, differences: Differences, members: Sequence[int]) -> None:
        norms = [norm(differences.of(i)) for i in members]
        bound = self.factor * median(norms)
        for i, size in zip(members, norms, strict=True):
            if size > bound:
                differences.move(i, {name: d * (bound / size) for name, d in differences.of(i).items()})
