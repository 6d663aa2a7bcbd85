"""Dirichlet: the samples of every label are divided in proportions drawn from Dir(alpha).

Order of sampling: for every label in turn, its samples are permuted and p ~ Dir(alpha, .., alpha) [N] is
drawn; clients that already hold n / N samples or more get p = 0 (balance step); p is renormalized, and the
samples are cut at floor(cumsum(p) n_c). All of this is repeated until the smallest client has ``min_size``
samples: at most 1,000 times, or 20 times if each of these leaves at least 20 clients too small. Every sample
is used once. Smaller alpha is *more* skewed (0.1: about 4 of 10 labels).
Source: Yurochkin et al., ICML 2019, with the balance step and minimum of NIID-Bench (Li et al., ICDE 2022).
SuPerFed's code drops clients with at most 10 samples; with its alphas (1 and more) there are none.

>>> import numpy as np
>>> portions(7, np.array([0.5, 0.3, 0.2])).tolist()
[3, 2, 2]
"""

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from fedflow.errors import BadInput
from fedflow.partition.scheme import Samples, Scheme, Split, gather, num_classes, register
from fedflow.settings import option

TRIES = 1000
LOOK, FAR = 20, 20  # give up after LOOK draws if each left FAR clients too small

Drawn = TypeVar("Drawn")


@register("dirichlet")
class Dirichlet(Scheme):
    alpha: float = option(
        0.1, "concentration; smaller is more skewed", symbol="alpha", gt=0, grid=(0.05, 0.1, 0.5, 1, 100)
    )
    min_size: int = option(
        10, "smallest number of samples of a client", ge=0, source="10 in PACFL and FLIS, 15 in FL-SC-NIID"
    )

    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> Split:
        labels = samples.labels
        num_classes(labels)  # refuses other targets
        rows = [np.flatnonzero(labels == c) for c in np.unique(labels)]

        def draw() -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
            """Sizes [N]; for every label, its samples in random order and the number for each client [N]."""
            dealt, sizes = [], np.zeros(clients)
            for of_label in rows:
                order = rng.permutation(of_label)
                small = sizes < len(labels) / clients
                p = rng.dirichlet(np.full(clients, self.alpha)) * small
                if p.sum() == 0:  # all small clients drew 0
                    p = small.astype(float)
                dealt.append((order, portions(len(of_label), p / p.sum())))
                sizes += dealt[-1][1]
            return sizes, dealt

        owner = np.empty(len(labels), np.int64)
        for order, counts in until_large_enough(draw, len(labels), clients, self.min_size, self.alpha):
            owner[order] = np.repeat(np.arange(clients), counts)
        return Split(gather(owner, clients))


def until_large_enough(
    draw: Callable[[], tuple[np.ndarray, Drawn]], total: int, clients: int, min_size: int, alpha: float
) -> Drawn:
    """The second result of ``draw``, repeated until all sizes [N], its first, are at least ``min_size``.

    Raises `BadInput` after `TRIES` draws, or after `LOOK` if each left at least `FAR` clients too small: the
    chance of a draw without any is then about exp(-FAR).
    """
    if min_size * clients > total:
        raise BadInput("partition.min_size", min_size, f"at most {total // clients} for {clients} clients")
    fewest = clients
    for tries in range(1, TRIES + 1):
        sizes, drawn = draw()
        small = int((sizes < min_size).sum())
        if small == 0:
            return drawn
        fewest = min(fewest, small)
        if tries == LOOK and fewest >= FAR:
            break
    raise BadInput(
        "partition.min_size",
        min_size,
        f"less for {clients} clients and alpha {alpha:g}, or a larger alpha: in each of {tries} draws "
        f"{'a client' if fewest == 1 else f'{fewest} clients'} or more had fewer samples",
    )


def portions(count: int, p: np.ndarray) -> np.ndarray:
    """Sizes [N] of ``count`` samples cut in proportions ``p`` [N]: at floor(cumsum(p) count)."""
    # 0.7 + 0.1 is slightly below 0.8: without the small addition, 10 samples would be cut at 7.
    cuts = (np.cumsum(p)[:-1] * count + 1e-9).astype(int)
    return np.diff(cuts, prepend=0, append=count)
