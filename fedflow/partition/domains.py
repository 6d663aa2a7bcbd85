"""Domains: every client holds samples of one domain, and the domains are planted groups.

Order of sampling: clients are numbered domain by domain, in the order of the column's values. In a
domain with a clients, all its samples, or S (``samples_per_client``) per client, are permuted and cut into
a runs (``draw: random``), or dealt label by label so that every client holds the same number of each label
(``balanced``: exactly S / K). A domain with too few samples of a label is drawn at random. A client is tested
on all test samples of its domain.
Source: MIX-4 of PACFL (14, 32, 26 and 28 clients of USPS, CIFAR-10, SVHN and FMNIST, 500 samples each;
USPS at random, because 14 * 50 exceeds seven of its labels); rotated MNIST of IFCA (``draw: random``).

>>> import numpy as np
>>> from fedflow.data import DataColumn
>>> samples = Samples(np.arange(12) % 2, columns={"domain": DataColumn(np.arange(12) // 6, np.arange(2))})
>>> split = Domains(clients_per_domain=[1, 2]).split(samples, 3, np.random.default_rng(0))
>>> [len(part) for part in split.train], split.groups.tolist()
([6, 3, 3], [0, 1, 1])
"""

import numpy as np

from fedflow.errors import BadInput
from fedflow.partition.scheme import Samples, Scheme, Split, gather, numbered, register
from fedflow.partition.sizes import draw_sizes, turns
from fedflow.settings import option


@register("domains")
class Domains(Scheme):
    column: str = option("domain", "column of the dataset with the domains")
    clients_per_domain: list[int] | None = option(
        None, "clients of each domain; null = equal shares", ge=1, source="MIX-4: 14, 32, 26, 28"
    )
    samples_per_client: int | None = option(
        None, "training samples of a client; null = all are used", symbol="S", ge=1, source="MIX-4: 500"
    )
    draw: str = option("balanced", "balanced = the same number of each label", choices=("balanced", "random"))

    def count(self, samples: Samples) -> int:
        return super().count(samples) if self.clients_per_domain is None else sum(self.clients_per_domain)

    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> Split:
        column = samples.column(self.column)
        values, train, test = numbered(column)
        names = [column.names[v] if column.names else str(v) for v in values]
        listed, equal = self.clients_per_domain, draw_sizes(clients, len(names), 0, rng)
        if listed is not None and (len(listed) != len(names) or sum(listed) != clients):
            raise BadInput(
                "partition.clients_per_domain",
                listed,
                f"{len(names)} whole numbers, one per domain, that sum to clients, which is {clients}",
            )
        return by_domain(
            samples.labels,
            train,
            test,
            names,
            equal if listed is None else np.array(listed),
            self.samples_per_client,
            self.draw == "balanced",
            rng,
        )


def by_domain(
    labels: np.ndarray,
    train: np.ndarray,
    test: np.ndarray,
    names: list[str],
    shares: np.ndarray,
    size: int | None,
    balanced: bool,
    rng: np.random.Generator,
) -> Split:
    """``shares[d]`` clients for domain d, with ``size`` samples each, or all samples.

    ``train`` [n] and ``test`` [t] are the domains of samples; samples of domain -1 are unused.
    """
    if shares.min() == 0:
        raise BadInput("partition.clients", int(shares.sum()), f"at least {len(names)}, one per domain")
    owner, first = np.full(len(labels), -1), 0
    for domain, (name, clients) in enumerate(zip(names, shares)):
        rows = rng.permutation(np.flatnonzero(train == domain))
        if size is not None and size * clients > len(rows):
            raise BadInput(
                "partition.samples_per_client",
                size,
                f"at most {len(rows) // clients}, for {clients} clients of {name} with {len(rows)} samples",
            )
        taken = _same_of_each(rows, labels, clients, size) if balanced else None
        sizes = draw_sizes(len(rows), clients, 0, rng) if size is None else np.full(clients, size)
        if taken is None:
            owner[rows[: sizes.sum()]] = first + np.repeat(np.arange(clients), sizes)
        else:
            owner[taken] = first + turns(sizes)
        first += clients
    return Split(
        gather(owner, first),
        groups=np.repeat(np.arange(len(names)), shares),
        pools=gather(test, len(names)),
        own=list(np.repeat(np.arange(len(names)), shares)[:, None]),
    )


def _same_of_each(rows: np.ndarray, labels: np.ndarray, clients: int, size: int | None) -> np.ndarray | None:
    """The shuffled ``rows`` that ``clients`` need, by label, or None if a label has too few."""
    by_label = rows[np.argsort(labels[rows], kind="stable")]
    if size is None:
        return by_label
    starts = np.unique(labels[by_label], return_index=True)[1]
    counts = np.diff(starts, append=len(rows))
    if size % len(counts):
        raise BadInput(
            "partition.samples_per_client",
            size,
            f"a multiple of {len(counts)}, the labels of a domain, or draw: random",
        )
    need = clients * size // len(counts)
    return by_label[(starts[:, None] + np.arange(need)).ravel()] if counts.min() >= need else None
