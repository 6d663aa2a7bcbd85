"""Dirichlet: the samples of every label are divided in proportions drawn from Dir(alpha).

Order of sampling: for every label in turn its samples are permuted and p ~ Dir(alpha, .., alpha) [N] is
drawn; clients that already hold n / N samples or more get p = 0 (``balance``); p is renormalised, the
cuts are floor(cumsum(p) n_c). All of it is repeated until the smallest client has ``min_size`` samples,
at most 1,000 times. Every sample is used once. Smaller alpha is *more* skewed (0.1: about 4 of 10 labels).
Source: Yurochkin et al., ICML 2019, with the balance step and minimum of NIID-Bench (Li et al., ICDE 2022).

>>> import numpy as np
>>> portions(7, np.array([0.5, 0.3, 0.2])).tolist()
[3, 2, 2]
"""

import numpy as np

from fedflow.errors import BadInput
from fedflow.partition.base import Samples, Scheme, Split, gather, register
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
            owner = self._owner(labels, clients, rng)
            if np.bincount(owner, minlength=clients).min() >= self.min_size:
                return Split(gather(owner, clients))
        raise BadInput(
            "partition.min_size", self.min_size,
            f"less for {clients} clients and alpha {self.alpha:g} (none of {TRIES} draws reached it), "
            "or a larger alpha",
        )  # fmt: skip

    def _owner(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        """One draw: the client of every sample [n]."""
        owner, sizes = np.empty(len(labels), np.int64), np.zeros(clients)
        for c in np.unique(labels):
            samples = rng.permutation(np.flatnonzero(labels == c))
            p = rng.dirichlet(np.full(clients, self.alpha))
            if self.balance:
                p = p * (sizes < len(labels) / clients)
            if p.sum() == 0:  # all that are not full drew nothing: share it among them
                p = (sizes < len(labels) / clients).astype(float)
            own = portions(len(samples), p / p.sum())
            owner[samples] = np.repeat(np.arange(clients), own)
            sizes += own
        return owner


def portions(count: int, p: np.ndarray) -> np.ndarray:
    """How ``count`` samples are cut in proportions ``p`` [N]: at floor(cumsum(p) count)."""
    # The sum of 0.7 and 0.1 falls just short of 0.8: without the little extra, 10 samples are cut at 7.
    cuts = (np.cumsum(p)[:-1] * count + 1e-9).astype(int)
    return np.diff(cuts, prepend=0, append=count)
