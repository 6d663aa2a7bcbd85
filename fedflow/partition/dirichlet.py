"""Dirichlet: the samples of every label are divided in proportions drawn from Dir(alpha).

Order of sampling: for every label in turn its samples are permuted and p ~ Dir(alpha, .., alpha) [N] is
drawn; clients that already hold n / N samples or more get p = 0 (``balance``); p is renormalised, the
cuts are floor(cumsum(p) n_c). All of it is repeated until the smallest client has ``min_size`` samples,
at most 1,000 times. Every sample is used once. Smaller alpha is *more* skewed (0.1: about 4 of 10 labels).
Source: Yurochkin et al., ICML 2019, with the balance step and minimum of NIID-Bench (Li et al., ICDE 2022).

>>> import numpy as np
>>> cut(np.arange(7), np.array([0.5, 0.3, 0.2]))
[array([0, 1, 2]), array([3, 4]), array([5, 6])]
"""

import numpy as np

from fedflow.errors import BadInput
from fedflow.partition.base import Indices, Samples, Scheme, Split, collect, num_classes, register
from fedflow.settings import option

TRIES = 1000


@register("dirichlet")
class Dirichlet(Scheme):
    alpha: float = option(
        0.1, "concentration; smaller is more skewed", symbol="alpha", gt=0, grid=(0.05, 0.1, 0.5, 1, 100)
    )
    min_size: int = option(
        10, "smallest number of samples of a client", ge=0, source="10 in PACFL and FLIS, 15 in FL-SC-NIID"
    )
    balance: bool = option(
        True, "give no more to clients that hold their equal share already", source="NIID-Bench"
    )

    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> Split:
        labels = samples.labels
        if self.min_size * clients > len(labels):
            raise BadInput(
                "partition.min_size", self.min_size, f"at most {len(labels) // clients} for {clients} clients"
            )
        for _ in range(TRIES):
            parts = self._once(labels, clients, rng)
            if min(map(len, parts)) >= self.min_size:
                return Split(parts)
        raise BadInput(
            "partition.min_size", self.min_size,
            f"less for {clients} clients and alpha {self.alpha:g} (none of {TRIES} draws reached it), "
            "or a larger alpha",
        )  # fmt: skip

    def _once(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> Indices:
        parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
        sizes = np.zeros(clients)
        for c in range(num_classes(labels)):
            samples = rng.permutation(np.flatnonzero(labels == c))
            p = rng.dirichlet(np.full(clients, self.alpha))
            if self.balance:
                p = p * (sizes < len(labels) / clients)
            if p.sum() == 0:  # all that are not full drew nothing: share it among them
                p = (sizes < len(labels) / clients).astype(float)
            for k, chunk in enumerate(cut(samples, p / p.sum())):
                parts[k].append(chunk)
                sizes[k] += len(chunk)
        return collect(parts)


def cut(samples: np.ndarray, p: np.ndarray) -> list[np.ndarray]:
    """Runs of ``samples`` [n] in proportions ``p`` [N]: cuts at floor(cumsum(p) n)."""
    # The sum of 0.7 and 0.1 falls just short of 0.8: without the little extra, 10 samples are cut at 7.
    return np.split(samples, (np.cumsum(p)[:-1] * len(samples) + 1e-9).astype(int))
