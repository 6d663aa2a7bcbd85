"""IID: every client gets an equal random share of all samples.

Order of sampling: one permutation of all rows, cut into N runs; with n = q N + r the first r clients get
q + 1 samples, the others q. With ``sigma``, sizes are lognormal (drawn first, see `draw_sizes`).
``stratified`` sorts the permutation by label (stable) and deals it in turns instead, so that all clients hold
the same number of each label, up to rounding. Every sample is used once.
Source: "homo" of NIID-Bench; unequal sizes and exact class balance of FedDyn (Acar et al., ICLR 2021).

>>> import numpy as np
>>> parts = IID().split(Samples(np.zeros(10, dtype=int)), 4, np.random.default_rng(0)).train
>>> [len(part) for part in parts]
[3, 3, 2, 2]
"""

import numpy as np

from fedflow.partition.scheme import Samples, Split, gather, register
from fedflow.partition.sizes import Sized, draw_sizes, turns
from fedflow.settings import option


@register("iid")
class IID(Sized):
    stratified: bool = option(
        False, "the same number of each label for all clients", source="FedDyn: true on CIFAR-100"
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
