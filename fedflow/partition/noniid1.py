"""Noniid1: label skew in which most clients resemble the first client, and the others have few of its labels.

Order of sampling: m = max(1, round(fraction K)) labels (halves to even) are drawn: the base set H, which
client 0 holds. For every client u is uniform in {0, 1, 2}, x in [ceil(K / 2), K - 1] and y in
[0, floor(K / 4)]; it holds s random labels of H and m - s others, s = ceil(x m / K) for u = 0 and 1, less
ceil(0.05 m) if that is all of H and u = 0, and s = ceil(y m / K) for u = 2. Then each label is divided as in
label skew; labels without owner are unused. The planted groups are the two kinds: a third, u = 2, is group 1.
Source: "noniid1" in the code of PACFL (Vahidian et al., AAAI 2023), used for CIFAR-100.

>>> import numpy as np
>>> split = NonIID1(fraction=0.2).split(Samples(np.arange(500) % 10), 6, np.random.default_rng(0))
>>> [len(np.unique(rows % 10)) for rows in split.train]
[2, 2, 2, 2, 2, 2]
"""

import numpy as np

from fedflow.errors import BadInput
from fedflow.partition.label_skew import divide, smallest
from fedflow.partition.scheme import Samples, Scheme, Split, num_classes, register
from fedflow.settings import option


@register("noniid1")
class NonIID1(Scheme):
    fraction: float = option(0.2, "share of the labels that a client holds", symbol="rho", gt=0, le=0.5)

    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> Split:
        classes = num_classes(samples.labels)
        held = max(1, round(self.fraction * classes))
        if 2 * held > classes:  # a client may hold nothing of the base set
            raise BadInput(
                "partition.fraction", self.fraction, f"a share of at most {classes // 2} of {classes} labels"
            )
        order = rng.permutation(classes)
        shared, kind = shared_labels(held, classes, clients, rng)
        shared[0], kind[0] = held, 0
        owned = np.zeros((clients, classes), dtype=bool)
        owned[:, order[:held]] = smallest(rng.random((clients, held)), shared[:, None])
        owned[:, order[held:]] = smallest(rng.random((clients, classes - held)), held - shared[:, None])
        return Split(divide(samples.labels, owned, rng), groups=(kind == 2).astype(np.int64))


def shared_labels(
    held: int, classes: int, clients: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """For every client, the number of its ``held`` labels from the base set [N], and its u [N]."""
    kind = rng.integers(3, size=clients)
    near = rng.integers(-(-classes // 2), classes, size=clients)
    far = rng.integers(0, classes // 4, size=clients, endpoint=True)
    shared = -(-np.where(kind == 2, far, near) * held // classes)  # rounded up
    return shared - (-(-held // 20)) * ((shared == held) & (kind == 0)), kind
