"""IID: every client gets an equal random share of all samples.

Order of sampling: one permutation of all positions, cut into N runs; with n = q N + r the first r
clients get q + 1 samples, the others q. Every sample is used once. Source: "homo" of NIID-Bench.

>>> import numpy as np
>>> parts = IID().split(np.zeros(10, dtype=int), 4, np.random.default_rng(0))
>>> [len(part) for part in parts]
[3, 3, 2, 2]
"""

import numpy as np

from fedflow.errors import BadInput
from fedflow.partition.base import Indices, Scheme, register


@register("iid")
class IID(Scheme):
    def split(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> Indices:
        if clients > len(labels):
            raise BadInput(
                "partition.clients", clients, f"at most {len(labels)}, the number of training samples"
            )
        return [np.sort(part) for part in np.array_split(rng.permutation(len(labels)), clients)]
