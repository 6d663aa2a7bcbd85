"""Label shards: samples sorted by label are cut into runs, and every client gets m runs.

Order of sampling: rows are sorted by label (stable) and cut into shards of ``length`` samples, by
default floor(n / (m N)), which makes m N of them; an incomplete last one is dropped. ``order: random``
permutes the shards and gives client j the m consecutive ones from place m j; ``in_order`` gives shard j to
client j mod N, so that few combinations of labels occur (five pairs with m = 2 and ten labels of equal size).
Other shards are unused. Fewer shards per client are more skewed.
Source: McMahan et al., AISTATS 2017 (m = 2), as FedZoo-Bench's "niid-randomshard"; ``length`` 250 (125 on
CIFAR-100) in Sub-FedAvg (Vahidian et al., 2021); ``in_order`` in the code of SuPerFed (KDD 2022).

>>> import numpy as np
>>> samples = Samples(np.repeat([0, 1], 6))
>>> parts = Shards(shards_per_client=2).split(samples, 3, np.random.default_rng(0)).train
>>> [len(part) for part in parts]
[4, 4, 4]
"""

import numpy as np

from fedflow.errors import BadInput
from fedflow.partition.scheme import Samples, Scheme, Split, register
from fedflow.settings import option


@register("shards")
class Shards(Scheme):
    shards_per_client: int = option(
        2, "label shards of a client", symbol="m", ge=1, source="McMahan et al.: 2"
    )
    length: int | None = option(
        None, "samples of a shard; null = all samples are dealt", ge=1, source="Sub-FedAvg: 250"
    )
    order: str = option("random", "how shards are dealt", choices=("random", "in_order"))

    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> Split:
        samples.need_one_label()
        labels, dealt = samples.labels, self.shards_per_client * clients
        fits = len(labels) // dealt
        length = fits if self.length is None else self.length
        if length > fits:
            raise BadInput("partition.length", length, f"at most {fits} for {dealt} shards")
        if length == 0:
            raise BadInput(
                "partition.shards_per_client",
                self.shards_per_client,
                f"at most {len(labels) // clients} for {clients} clients",
            )
        count = dealt if self.length is None else len(labels) // length
        shards = np.argsort(labels, kind="stable")[: count * length].reshape(count, length)
        if self.order == "random":
            chosen = rng.permutation(count)[:dealt].reshape(clients, -1)
        else:
            chosen = np.arange(dealt).reshape(-1, clients).T
        return Split(list(np.sort(shards[chosen].reshape(clients, -1), axis=1)))
