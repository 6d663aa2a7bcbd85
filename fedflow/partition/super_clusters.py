"""Super clusters: similar classes form super clusters, and every client holds labels of only one of them.

Order of sampling: the S super clusters of s_z classes are given, or discovered from the inputs by the
principal angles between classes; a ``control`` replaces them by random classes. Clients are numbered super
cluster by super cluster (the planted groups), and ``within`` divides its samples among them:
"labels", SC-NIID(m): client j holds the class at place j mod s_z and m_z - 1 others as in label skew, all
drawn again, at most 1,000 times, until every class has an owner; then each label is divided as there.
"shards": as in the scheme shards. "dirichlet", SC-Dir(alpha): as in the scheme dirichlet.
``allocation``: "damped" gives ceil(w_z N) clients, w_z proportional to 1 + s_z / K, and removes one from a
random super cluster until N remain; "proportional" follows the samples. Classes in no list are unused.
``control``: "matched_random" draws disjoint sets of classes of the same sizes, which is fair; "repo" draws
each set independently as the authors' code does, so that samples may be given twice, or not at all. The plain
controls C-NIID and C-Dir, as the text defines them, are the schemes label_skew and dirichlet.
Source: Morafah et al., "Rethinking Data Heterogeneity in Federated Learning" (FL-SC-NIID), sections 5.2
and 5.3, Table 5.7; its code for the allocation and m_z.

>>> scheme = SuperClusters(clusters=[[0, 2], [1, 3]], labels_per_client=1)
>>> split = scheme.split(Samples(np.arange(8) % 4), 4, np.random.default_rng(0))
>>> [np.unique(rows % 4).tolist() for rows in split.train], split.groups.tolist()
([[0], [2], [1], [3]], [0, 0, 1, 1])
"""

import math

import numpy as np

from fedflow.errors import BadInput
from fedflow.heterogeneity.classes import class_super_clusters
from fedflow.partition.dirichlet import Dirichlet
from fedflow.partition.label_skew import TRIES, divide, draw_cover
from fedflow.partition.scheme import Indices, Samples, Scheme, Split, num_classes, register
from fedflow.partition.shards import Shards
from fedflow.settings import option

SMALL = ((0, 83, 53, 82), (1, 54, 43, 51, 70, 92, 62), (23, 69, 30, 95, 67, 73), (47, 96, 59, 52))
PUBLISHED: dict[str, tuple[tuple[int, ...], ...]] = {  # Table 5.7; FMNIST from the code
    "cifar10": ((0, 1, 8, 9), (2, 3, 4, 5, 6, 7)),  # vehicles, animals
    "stl10": ((2, 8, 9), (0, 1, 7, 3, 4, 5, 6)),
    "fmnist": ((0, 3, 1), (2, 4, 6, 8), (5, 9, 7)),
    "cifar100": (*SMALL, tuple(c for c in range(100) if not any(c in classes for classes in SMALL))),
}
USED = {  # options by the value of `within` that uses them
    "labels": ("labels_per_client", "fraction"),
    "shards": ("shards_per_client",),
    "dirichlet": ("alpha", "min_size"),
}


@register("super_clusters")
class SuperClusters(Scheme):
    clusters: str | list[list[int]] = option(
        "discovered", f"lists of classes; {', '.join(PUBLISHED)}: as published; or discovered from the inputs"
    )
    p: int = option(3, "left singular vectors of a class, to discover clusters", symbol="p", ge=1)
    threshold: float | None = option(
        None, "degrees up to which classes merge; smaller: more clusters, more skewed", symbol="beta", ge=0
    )
    number: int | None = option(
        None, "number of clusters; null, without a threshold = by the largest gap", ge=1
    )
    control: str = option(
        "none", "random classes in place of the super clusters", choices=("none", "matched_random", "repo")
    )
    allocation: str = option(
        "damped",
        "clients of each super cluster",
        choices=("damped", "proportional"),
        source="damped: the code; proportional: the text",
    )
    within: str = option(
        "labels", "division of a super cluster's samples", choices=("labels", "shards", "dirichlet")
    )
    labels_per_client: int | str = option(
        "published",
        "labels of a client; published = 2, or a fifth of the super cluster's labels if that is more",
        symbol="m",
    )
    fraction: float | None = option(
        None,
        "share of the super cluster's labels that a client holds, instead of labels_per_client",
        symbol="rho",
        gt=0,
        le=1,
    )
    shards_per_client: int = option(2, "label shards of a client, within shards", ge=1)
    alpha: float = option(0.5, "concentration, within dirichlet; smaller: more skewed", symbol="alpha", gt=0)
    min_size: int = option(15, "smallest number of samples of a client, within dirichlet", ge=0)

    def validate(self) -> None:
        if isinstance(self.clusters, str) and self.clusters not in ("discovered", *PUBLISHED):
            raise BadInput(
                "partition.clusters",
                self.clusters,
                f"a list of lists of classes, discovered, or one of {', '.join(sorted(PUBLISHED))}",
            )
        if self.clusters != "discovered":
            self.refuse_unused("unless clusters is discovered", "p", "threshold", "number")
        for within, names in USED.items():
            if self.within != within:
                self.refuse_unused(f"unless within is {within}", *names)
        if self.number is not None and self.threshold is not None:
            raise BadInput("partition.number", self.number, "null, because a threshold is given")
        held = self.labels_per_client
        if held != "published" and not (isinstance(held, int) and held >= 1):
            raise BadInput("partition.labels_per_client", held, "a whole number >= 1 or published")
        if held != "published" and self.fraction is not None:
            raise BadInput("partition.labels_per_client", held, "published, its default, with fraction")

    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> Split:
        labels, clusters = samples.labels, self._clusters(samples, rng)
        if clients < len(clusters):
            raise BadInput("partition.clients", clients, f"at least {len(clusters)}, one per super cluster")
        if self.allocation == "damped":
            counts = settle(damped([len(c) for c in clusters], clients), clients, rng)
        else:
            counts = proportional([np.isin(labels, c).sum() for c in clusters], clients)
        train: Indices = []
        for ids, classes in zip(np.split(np.arange(clients), np.cumsum(counts)[:-1]), clusters):
            train += self._divide(labels, classes, ids, clients, rng)
        return Split(train, groups=np.repeat(np.arange(len(clusters)), counts))

    def _clusters(self, samples: Samples, rng: np.random.Generator) -> Indices:
        """The classes of every super cluster, or of its replacement in a control run."""
        classes, lists = num_classes(samples.labels), self.clusters
        if lists == "discovered":
            lists = self._discover(samples)
        elif isinstance(lists, str):
            lists = [list(cluster) for cluster in PUBLISHED[lists]]
            if sum(map(len, lists)) != classes:
                raise BadInput(
                    "partition.clusters", self.clusters, f"discovered or a list for {classes} classes"
                )
        flat = [c for cluster in lists for c in cluster]
        if not flat or not all(lists) or len({*flat} & {*range(classes)}) < len(flat):
            raise BadInput(
                "partition.clusters", lists, f"lists of classes 0..{classes - 1}, each class in one list"
            )
        clusters = [np.asarray(cluster) for cluster in lists]
        if self.control == "none":
            return clusters
        union, sizes = np.concatenate(clusters), [len(cluster) for cluster in clusters]
        if self.control == "repo":
            return [rng.permutation(union)[:size] for size in sizes]
        return np.split(rng.permutation(union), np.cumsum(sizes)[:-1])

    def _discover(self, samples: Samples) -> list[list[int]]:
        try:
            return class_super_clusters(
                samples.inputs(), samples.labels, p=self.p, threshold=self.threshold, number=self.number
            )
        except BadInput as error:
            field = error.field if hasattr(self, error.field) else "clusters"
            raise error.renamed(f"partition.{field}") from None

    def _divide(
        self, labels: np.ndarray, classes: np.ndarray, ids: np.ndarray, clients: int, rng: np.random.Generator
    ) -> Indices:
        """The samples of the clients ``ids`` of one super cluster."""
        if self.within == "labels":
            owned = np.zeros((clients, num_classes(labels)), dtype=bool)
            owned[np.ix_(ids, classes)] = self._owned(ids, len(classes), clients, rng)
            parts = divide(labels, owned, rng)
            return [parts[k] for k in ids]
        rows = np.flatnonzero(np.isin(labels, classes))
        if self.within == "shards":
            inner: Scheme = Shards(shards_per_client=self.shards_per_client)
        else:
            inner = Dirichlet(alpha=self.alpha, min_size=self.min_size)
        return [rows[part] for part in inner.split(Samples(labels[rows]), len(ids), rng).train]

    def _owned(self, ids: np.ndarray, size: int, clients: int, rng: np.random.Generator) -> np.ndarray:
        """The classes of a super cluster that its clients hold, bool [a_z, s_z]."""
        held = self._held(size)
        owned = draw_cover(ids % size, size, held, rng)
        if owned is not None:
            return owned
        raise BadInput(
            "partition.clients",
            clients,
            f"more: in all of {TRIES} draws {len(ids)} clients with {held} labels each left one of the "
            f"{size} labels of a super cluster without owner",
        )

    def _held(self, size: int) -> int:
        """m_z, the labels of a client in a super cluster of ``size`` classes."""
        if self.fraction is not None:
            return max(1, math.ceil(self.fraction * size - 1e-9))
        if isinstance(self.labels_per_client, str):
            return min(size, max(2, -(-size // 5)))
        if self.labels_per_client > size:
            raise BadInput(
                "partition.labels_per_client",
                self.labels_per_client,
                f"at most {size}, the classes of a super cluster",
            )
        return self.labels_per_client


def damped(sizes: list[int], clients: int) -> np.ndarray:
    """Clients of super clusters with ``sizes`` classes, rounded up: N in total, or a few more."""
    classes = sum(sizes)
    return -(-clients * (classes + np.array(sizes)) // (classes * (len(sizes) + 1)))


def settle(counts: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
    """``counts`` reduced by one at random places until they sum to ``clients``; each is at least one."""
    counts = counts.copy()
    while counts.sum() > clients:
        counts[rng.choice(np.flatnonzero(counts > 1))] -= 1
    return counts


def proportional(samples: list[int], clients: int) -> np.ndarray:
    """Clients of super clusters, proportional to their ``samples``, by largest remainders; at least one."""
    exact = clients * np.array(samples) / sum(samples)
    counts: np.ndarray = np.maximum(exact.astype(int), 1)
    while counts.sum() < clients:
        counts[np.argmax(exact - counts)] += 1
    while counts.sum() > clients:
        counts[np.argmax(np.where(counts > 1, counts - exact, -np.inf))] -= 1
    return counts
