"""ACID and ALID: every client owns S consecutive classes, and all clients hold equally many samples.

Order of sampling, for training and then for test samples: client i owns the classes i, i + 1, ..,
i + S - 1 (mod K). Repeatedly, a random client with the fewest samples takes a sample of its rarest class that
is not exhausted, the first on ties. If all its classes are exhausted, it takes a sample from a random other
client with at least two samples of one of them, and that client is next. After 100 K failed tries in a row
the procedure ends, and the remaining samples are unused (like classes without owner, if N < K). With hundreds
of classes, these tries take most of the time. Finally samples are permuted and dealt class by class. A client
is tested on its own share of the test samples.

ACID ("active class induced diversity") keeps the labels. ALID ("anonymous label induced diversity",
``anonymous``) renames the classes of each client by a random permutation to 0..S-1, the same for
training and test samples. Smaller S is more diverse.
Source: PFL (Acar et al., ICML 2021), 100 clients, S in {3, 5, 7}.

>>> import numpy as np
>>> labels = np.arange(40) % 4
>>> split = Acid(classes_per_client=2).split(Samples(labels, labels[:8]), 4, np.random.default_rng(0))
>>> [np.bincount(labels[part], minlength=4).tolist() for part in split.train]
[[5, 5, 0, 0], [0, 5, 5, 0], [0, 0, 5, 5], [5, 0, 0, 5]]
"""

from dataclasses import replace

import numpy as np

from fedflow.errors import BadInput
from fedflow.partition.scheme import Samples, Scheme, Split, by_counts, num_classes, register, renamed
from fedflow.settings import option


@register("acid")
class Acid(Scheme):
    classes_per_client: int = option(5, "classes of a client", symbol="S", ge=1, grid=(3, 5, 7))
    anonymous: bool = option(False, "rename each client's classes to 0..S-1 at random (ALID)")

    @property
    def renames(self) -> bool:
        return self.anonymous

    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> Split:
        both = samples.labels, samples.test_labels
        held, classes = self.classes_per_client, num_classes(np.concatenate(both))
        if held > classes:
            raise BadInput("partition.classes_per_client", held, f"at most {classes}, the number of classes")
        owned = (np.arange(clients)[:, None] + np.arange(held)) % classes
        train, test = (
            by_counts(labels, _counts(np.bincount(labels, minlength=classes), owned, rng), rng)
            for labels in both
        )
        split = Split(train, pools=test, own=list(np.arange(clients)[:, None]))
        if not self.renames:
            return split
        names = np.full((clients, classes), -1)
        given = rng.permuted(np.tile(np.arange(held), (clients, 1)), axis=1)
        np.put_along_axis(names, owned, given, axis=1)
        return replace(
            split,
            train_labels=renamed(samples.labels, train, names),
            test_labels=renamed(samples.test_labels, test, names),
        )


def _counts(stock: np.ndarray, owned: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Samples by client and class [N, K], of ``stock`` [K]; ``owned`` [N, S] are the clients' classes."""
    clients, classes = len(owned), len(stock)
    owners = np.bincount(owned.ravel(), minlength=classes)
    # Until a class runs out, S samples of a client are one of each of its classes, whichever client is first.
    even = int((stock[owners > 0] // owners[owners > 0]).min())
    left = np.where(owners > 0, stock - even * owners, 0)
    counts = np.zeros((clients, classes), np.int64)
    np.put_along_axis(counts, owned, even, axis=1)
    while True:
        for k in rng.permutation(clients):
            if not left.any() or not _serve(k, counts, owned, left, rng):
                return counts


def _serve(k: int, counts: np.ndarray, owned: np.ndarray, left: np.ndarray, rng: np.random.Generator) -> bool:
    """Give client k one more sample; False if there is none."""
    clients, classes = counts.shape
    for _ in range(100 * classes):
        mine = owned[k]
        if left[mine].any():
            have = np.where(left[mine] > 0, counts[k, mine], np.inf)
            c = mine[have.argmin()]
            counts[k, c] += 1
            left[c] -= 1
            return True
        c = mine[rng.integers(len(mine))]
        first = (c - rng.integers(len(mine))) % classes  # clients first, first + K, .. own c
        giver = first + classes * rng.integers(-(-clients // classes))
        if giver < clients and giver != k and counts[giver, c] > 1:
            counts[k, c] += 1
            counts[giver, c] -= 1
            k = giver
    return False
