"""Label skew: every client holds a fixed share of the labels and divides each equally with its owners.

Order of sampling: client i holds label i mod K and, of the others, the m - 1 with the smallest of K uniform
numbers that it draws, m = max(1, round(fraction K)), halves to the even number (25 % of ten labels are 2,
35 % are 4); then, for every label in turn, its samples are permuted, cut into as many chunks as it has owners
(the first get one sample more) and handed out by increasing client. Samples of a label that nobody owns stay
unused, with a warning (only possible when N < K); ``cover`` draws the labels of all clients again, at most
1,000 times, until every label has an owner. Larger fractions are less skewed; 1 splits every class over all
clients.
Source: Li, Diao, Chen, He, "Federated Learning on Non-IID Data Silos", ICDE 2022 (#C = m); ``cover``:
FedZoo-Bench.

>>> import numpy as np
>>> samples = Samples(np.repeat([0, 1, 2, 3], 6))
>>> parts = LabelSkew(fraction=0.5).split(samples, 4, np.random.default_rng(0)).train
>>> sorted(np.concatenate(parts).tolist()) == list(range(24))
True
"""

import warnings

import numpy as np

from fedflow.errors import BadInput
from fedflow.partition.base import Indices, Samples, Scheme, Split, gather, num_classes, register, runs
from fedflow.settings import option

TRIES = 1000


@register("label_skew")
class LabelSkew(Scheme):
    fraction: float = option(
        0.2, "share of the labels that a client holds", symbol="rho", gt=0, le=1, grid=(0.2, 0.3)
    )
    cover: bool = option(False, "draw again until every label has an owner", source="FedZoo-Bench: true")

    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> Split:
        classes = num_classes(samples.labels)
        held = max(1, round(self.fraction * classes))
        first = np.arange(clients) % classes
        owned = (draw_cover if self.cover else draw_labels)(first, classes, held, rng)
        if owned is None:
            accepted = (
                f"false: none of {TRIES} draws of {held} labels for each of {clients} clients gives all"
            )
            raise BadInput("partition.cover", True, f"{accepted} {classes} labels an owner")
        orphans = np.flatnonzero(~owned.any(0))
        if unused := np.isin(samples.labels, orphans).sum():
            warnings.warn(
                f"label_skew: {len(orphans)} of {classes} labels without owner among {clients} clients: "
                f"{unused} samples are unused (cover: true draws again until every label has one)",
                stacklevel=2,
            )
        return Split(divide(samples.labels, owned, rng))


def draw_labels(first: np.ndarray, classes: int, held: int, rng: np.random.Generator) -> np.ndarray:
    """Which of 0..K-1 every client holds, bool [N, K]: its ``first`` [N] and ``held`` - 1 others."""
    keys = rng.random((len(first), classes))
    keys[np.arange(len(first)), first] = -1
    return smallest(keys, held)


def draw_cover(first: np.ndarray, classes: int, held: int, rng: np.random.Generator) -> np.ndarray | None:
    """`draw_labels`, again until every label has an owner; None if `TRIES` draws were not enough."""
    if len(first) * held >= classes:
        for _ in range(TRIES):
            owned = draw_labels(first, classes, held, rng)
            if owned.any(0).all():
                return owned
    return None


def smallest(keys: np.ndarray, count: int | np.ndarray) -> np.ndarray:
    """Marks the ``count`` smallest of every row of ``keys`` [N, K]; one number, or one per row [N, 1]."""
    return keys.argsort(1).argsort(1) < count


def divide(labels: np.ndarray, owned: np.ndarray, rng: np.random.Generator, who: str = "clients") -> Indices:
    """The samples of every owner, where ``owned`` [N, K] says who owns a label; each label is cut equally.

    ``who`` is the field to blame, with `BadInput`, where a label has more owners than samples.
    """
    owner = np.full(len(labels), -1)
    for c in np.flatnonzero(owned.any(0)):
        rows, owners = np.flatnonzero(labels == c), np.flatnonzero(owned[:, c])
        if len(owners) > max(1, len(rows)):
            raise BadInput(
                f"partition.{who}",
                len(owned),
                f"fewer: {len(owners)} {who} share {len(rows)} samples of label {c}",
            )
        # A single owner gets all of them in whatever order.
        owner[rng.permutation(rows) if len(owners) > 1 else rows] = runs(owners, len(rows))
    return gather(owner, len(owned))
