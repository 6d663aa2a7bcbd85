"""Structured: groups of consecutive classes, in which few clients hold most of the samples.

Order of sampling: the K classes are cut into runs of ``labels_per_group``, in order, the last may be
shorter; client k belongs to the planted group k * groups // N. For every group in turn, its D samples are
permuted and dealt to its M clients in chunks of floor(alpha + exp(beta i^delta)), i = 1..M, where beta is
such that these sizes before rounding sum to D; the first client takes the remainder. Every sample is used
once. A client is tested on all test samples of the labels of its group, including labels it does not hold.
Source: FLT (Jamali-Rad et al., 2021), Algorithm 4, scenario 4 "Structured Non-IID FEMNIST": 47 classes of
EMNIST, 2,400 or 600 clients; delta 2 and alpha floor(D / (2 M)) as in its code.

>>> chunk_sizes(1000, 10).tolist()
[56, 51, 51, 52, 54, 57, 66, 89, 156, 368]
"""

from typing import ClassVar

import numpy as np
import scipy

from fedflow.errors import BadInput
from fedflow.partition.scheme import Samples, Scheme, Split, gather, num_classes, register
from fedflow.settings import option


@register("structured")
class Structured(Scheme):
    padded: ClassVar[bool] = False

    labels_per_group: int = option(5, "labels of a group; the last may have fewer", ge=1, source="FLT: 5")
    alpha: int | None = option(
        None, "size that every chunk exceeds; null = floor(D / (2 M)) of a group", symbol="alpha", ge=0
    )
    delta: float = option(2.0, "larger: fewer clients hold most samples", symbol="delta", gt=0)

    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> Split:
        labels, length = samples.labels, self.labels_per_group
        classes = num_classes(labels)
        groups = -(-classes // length)
        if groups > clients:
            raise BadInput(
                "partition.clients", clients, f"at least {groups}, one for every {length} of {classes} labels"
            )
        member = np.arange(clients) * groups // clients
        owner = np.empty(len(labels), np.int64)
        for group in range(groups):
            rows, owners = np.flatnonzero(labels // length == group), np.flatnonzero(member == group)
            if len(owners) * (1 + (self.alpha or 0)) > len(rows):
                field, value = ("alpha", self.alpha) if self.alpha else ("clients", clients)
                raise BadInput(
                    f"partition.{field}",
                    value,
                    f"less: {len(owners)} clients share the {len(rows)} samples of group {group}",
                )
            sizes = chunk_sizes(len(rows), len(owners), self.alpha, self.delta)
            owner[rng.permutation(rows)] = np.repeat(owners, sizes)
        tested = [np.arange(g * length, min((g + 1) * length, classes)) for g in range(groups)]
        if self.padded and classes % length:
            tested[-1] = np.union1d(0, tested[-1])
        return Split(
            gather(owner, clients),
            groups=member,
            pools=[np.flatnonzero(samples.test_labels == c) for c in range(classes)],
            own=[tested[g] for g in member],
        )


def growth(total: int, count: int, alpha: int, delta: float) -> float:
    """beta >= 0 with sum_i (alpha + exp(beta i^delta)) = total, i = 1..count; total >= count (alpha + 1)."""
    powers = (np.arange(1, count + 1) / count) ** delta

    def surplus(scale: float) -> float:
        return count * alpha + float(np.exp(scale * powers).sum()) - total

    scale: float = scipy.optimize.brentq(surplus, 0, np.log1p(total), xtol=1e-14)
    return float(scale / count**delta)


def chunk_sizes(total: int, count: int, alpha: int | None = None, delta: float = 2.0) -> np.ndarray:
    """Samples of each of ``count`` clients [M] out of ``total`` = D."""
    alpha = total // (2 * count) if alpha is None else alpha
    powers = np.arange(1, count + 1) ** delta
    sizes: np.ndarray = np.floor(alpha + np.exp(growth(total, count, alpha, delta) * powers)).astype(np.int64)
    sizes[0] += total - sizes.sum()
    return sizes
