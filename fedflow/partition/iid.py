"""IID: every client gets an equal random share of all samples.

Order of sampling: one permutation of all positions, cut into N runs; with n = q N + r the first r
clients get q + 1 samples, the others q. ``sigma`` > 0 draws lognormal sizes first (see `draw_sizes`);
larger is more unequal. ``stratified`` sorts the permutation by label (stable) and lets clients take
turns instead, so that all hold the same number of each label where that divides, and nearly so where
not. Every sample is used once.
Source: "homo" of NIID-Bench; unequal sizes and exact class balance of FedDyn (Acar et al., ICLR 2021).

>>> import numpy as np
>>> parts = IID().split(Samples(np.zeros(10, dtype=int)), 4, np.random.default_rng(0)).train
>>> [len(part) for part in parts]
[3, 3, 2, 2]
"""

import numpy as np

from fedflow.partition.base import Samples, Scheme, Split, gather, register
from fedflow.partition.sizes import draw_sizes, turns
from fedflow.settings import option


@register("iid")
class IID(Scheme):
    sigma: float = option(
        0.0, "sd of the log of a client's size; 0 = equal sizes", ge=0, source="FedDyn: 0.3"
    )
    stratified: bool = option(
        False, "the same number of each label for all", source="FedDyn: true on CIFAR-100"
    )

    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> Split:
        labels = samples.labels
        sizes = draw_sizes(len(labels), clients, self.sigma, rng)
        order, owner = rng.permutation(len(labels)), np.empty(len(labels), np.int64)
        if self.stratified:
            owner[order[np.argsort(labels[order], kind="stable")]] = turns(sizes)
        else:
            owner[order] = np.repeat(np.arange(clients), sizes)
        return Split(gather(owner, clients))
