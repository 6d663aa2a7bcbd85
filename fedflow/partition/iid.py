"""IID: every client gets an equal random share of all samples.

Order of sampling: one permutation of all positions, cut into N runs; with n = q N + r the first r
clients get q + 1 samples, the others q. Every sample is used once. Source: "homo" of NIID-Bench.

>>> import numpy as np
>>> parts = IID().split(Samples(np.zeros(10, dtype=int)), 4, np.random.default_rng(0)).train
>>> [len(part) for part in parts]
[3, 3, 2, 2]
"""

import numpy as np

from fedflow.partition.base import Samples, Scheme, Split, register


@register("iid")
class IID(Scheme):
    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> Split:
        return Split(
            [np.sort(part) for part in np.array_split(rng.permutation(len(samples.labels)), clients)]
        )
