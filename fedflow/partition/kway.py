"""Kway: every client is a task with k classes, named 0..k-1, and all classes are used equally often.

Order of sampling: client by client, the k classes that have been used least are taken, ties at random; the
order in which they are taken names them. The training samples of each of the K classes are permuted, and cut
into as many pieces of equal size as there are clients with that class; so are the test samples. The rest of
a division is unused. A client is tested on its own pieces. N k must be a multiple of K; with ``clients:
null`` no class is used twice, which gives K / k disjoint tasks.
Source: MOML (Acar et al., online meta-learning): 5-way CIFAR-100 with 200 tasks of 250 and 50 images, and
with 20 disjoint ones; 3- and 4-way, whose numbers of tasks are not given; miniImageNet with 100 tasks.

>>> import numpy as np
>>> labels = np.arange(48) % 6
>>> made = KWay(ways=3).split(Samples(labels, labels[:12]), 4, np.random.default_rng(0))
>>> [np.bincount(labels[part], minlength=6).tolist() for part in made.train]
[[0, 4, 4, 4, 0, 0], [4, 0, 0, 0, 4, 4], [0, 4, 0, 4, 0, 4], [4, 0, 4, 0, 4, 0]]
"""

import numpy as np

from fedflow.errors import BadInput
from fedflow.partition.scheme import Samples, Scheme, Split, by_counts, num_classes, register, renamed
from fedflow.settings import option


@register("kway")
class KWay(Scheme):
    ways: int = option(5, "classes of a client", symbol="k", ge=1, grid=(3, 4, 5))

    @property
    def renames(self) -> bool:
        return True

    def count(self, samples: Samples) -> int:
        return max(1, num_classes(samples.labels) // self.ways)

    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> Split:
        both, ways = (samples.labels, samples.test_labels), self.ways
        classes = num_classes(np.concatenate(both))
        if ways > classes:
            raise BadInput("partition.ways", ways, f"at most {classes}, the number of classes")
        times, rest = divmod(clients * ways, classes)
        if rest:
            whole = classes // np.gcd(classes, ways)
            accepted = f"a multiple of {whole}: {ways} of {classes} classes each, all classes equally often"
            raise BadInput("partition.clients", clients, accepted)
        stock = [np.bincount(labels, minlength=classes) for labels in both]
        if (fewest := min(counts.min() for counts in stock)) < times:
            most = fewest * classes // ways
            accepted = f"at most {most}: each class is in {times} tasks, and one has {fewest} samples"
            raise BadInput("partition.clients", clients, accepted)
        names = _drawn(ways, np.full(classes, times), clients, rng)
        train, test = (
            by_counts(labels, (names >= 0) * (counts // times), rng) for labels, counts in zip(both, stock)
        )
        return Split(
            train,
            pools=test,
            own=list(np.arange(clients)[:, None]),
            train_labels=renamed(samples.labels, train, names),
            test_labels=renamed(samples.test_labels, test, names),
        )


def _drawn(ways: int, left: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
    """The names 0..k-1 of classes at clients [N, K], or -1; class c is to be used ``left[c]`` times."""
    names = np.full((clients, len(left)), -1)
    for k in range(clients):
        chosen = np.lexsort((rng.random(len(left)), -left))[:ways]
        names[k, chosen] = np.arange(ways)
        left[chosen] -= 1
    return names
