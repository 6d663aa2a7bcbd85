"""Label shards: samples sorted by label are cut into m N runs, and every client gets m runs at random.

Order of sampling: positions are sorted by label (stable), cut into m N shards of floor(n / (m N))
samples, the surplus at the end is dropped; the shards are permuted and client j takes the m that
follow each other from place m j. Fewer shards per client are more skewed.
Source: McMahan et al., AISTATS 2017 (m = 2), as FedZoo-Bench's "niid-randomshard".

>>> import numpy as np
>>> samples = Samples(np.repeat([0, 1], 6))
>>> parts = Shards(shards_per_client=2).split(samples, 3, np.random.default_rng(0)).train
>>> [len(part) for part in parts]
[4, 4, 4]
"""

import numpy as np

from fedflow.errors import BadInput
from fedflow.partition.base import Samples, Scheme, Split, register
from fedflow.settings import option


@register("shards")
class Shards(Scheme):
    shards_per_client: int = option(
        2, "label shards of one client", symbol="m", ge=1, source="McMahan et al.: 2"
    )

    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> Split:
        labels = samples.labels
        count = self.shards_per_client * clients
        length = len(labels) // count
        if length == 0:
            raise BadInput(
                "partition.shards_per_client",
                self.shards_per_client,
                f"at most {len(labels) // clients} for {clients} clients",
            )
        shards = np.argsort(labels, kind="stable")[: count * length].reshape(count, length)
        return Split(list(np.sort(shards[rng.permutation(count)].reshape(clients, -1), axis=1)))
