"""Label skew: every client holds a fixed share of the labels, and each label is divided among its owners.

Order of sampling: client i holds label i mod K and, of the others, the m - 1 with the smallest of K uniform
numbers that it draws, m = max(1, round(fraction K)), halves to even (25 % of ten labels are 2, 35 % are 4);
then, for every label in turn, its samples are permuted, cut into one chunk per owner (the first are one
sample longer) and dealt to its owners in order. Samples of a label without owner are unused, with a warning
(only possible if N < K); ``cover`` draws the labels of all clients again, at most 1,000 times, until every
label has an owner. Larger fractions are less skewed; 1 divides every class among all clients.
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
from fedflow.partition.scheme import Indices, Samples, Scheme, Split, gather, num_classes, register, runs
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
    """The labels of every client, bool [N, K]: its ``first`` [N] and ``held`` - 1 others."""
    keys = rng.random((len(first), classes))
    keys[np.arange(len(first)), first] = -1
    return smallest(keys, held)


def draw_cover(first: np.ndarray, classes: int, held: int, rng: np.random.Generator) -> np.ndarray | None:
    """`draw_labels` until every label has an owner, or None if `TRIES` draws do not suffice."""
    if len(first) * held >= classes:
        for _ in range(TRIES):
            owned = draw_labels(first, classes, held, rng)
            if owned.any(0).all():
                return owned
    return None


def smallest(keys: np.ndarray, count: int | np.ndarray) -> np.ndarray:
    """A mask of the ``count`` smallest of every row of ``keys`` [N, K]; ``count`` may be [N, 1]."""
    return keys.argsort(1).argsort(1) < count


def divide(labels: np.ndarray, owned: np.ndarray, rng: np.random.Generator, who: str = "clients") -> Indices:
    """The samples of every owner: each label is divided equally among its owners, ``owned`` [N, K].

    Raises `BadInput` of the field ``who`` if a label has more owners than samples.
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
        # A single owner gets all of them, in any order.
        owner[rng.permutation(rows) if len(owners) > 1 else rows] = runs(owners, len(rows))
    return gather(owner, len(owned))
