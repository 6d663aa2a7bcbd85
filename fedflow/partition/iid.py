"""IID: every client gets an equal random share of all samples.

Order of sampling: one permutation of all rows, cut into N runs; with n = q N + r the first r clients get
q + 1 samples, the others q. Sizes may be unequal: lognormal with ``sigma`` (drawn first, see `draw_sizes`),
or given (``sizes``). ``stratified`` sorts the permutation by label (stable) and deals it in turns instead, so
that all clients hold the same number of each label, up to rounding. Every sample is used once, unless given
sizes sum to less.
Source: "homo" of NIID-Bench; unequal sizes and exact class balance of FedDyn (Acar et al., ICLR 2021).

>>> import numpy as np
>>> parts = IID().split(Samples(np.zeros(10, dtype=int)), 4, np.random.default_rng(0)).train
>>> [len(part) for part in parts]
[3, 3, 2, 2]
"""

import numpy as np

from fedflow.partition.scheme import Samples, Split, gather, register
from fedflow.partition.sizes import Sized, turns
from fedflow.settings import option


@register("iid")
class IID(Sized):
    stratified: bool = option(
        False, "the same number of each label for all clients", source="FedDyn: true on CIFAR-100"
    )

    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> Split:
        labels = samples.labels
        sizes = self.draw(len(labels), clients, rng)
        order, rest = rng.permutation(len(labels)), len(labels) - sizes.sum()
        owner = np.full(len(labels), -1)
        if self.stratified:
            turn = turns(np.append(sizes, rest))  # the last one has no owner
            owner[order[np.argsort(labels[order], kind="stable")]] = np.where(turn < clients, turn, -1)
        else:
            owner[order[: sizes.sum()]] = np.repeat(np.arange(clients), sizes)
        return Split(gather(owner, clients))
