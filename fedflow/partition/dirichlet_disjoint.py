"""Dirichlet client by client: each draws its label shares and takes unused samples accordingly.

Order of sampling: for client k in turn q ~ Dir(alpha / K, .., alpha / K) [K]; counts of labels are
multinomial with floor(n / N) trials and q, limited to the remaining samples of a label; missing samples are
drawn again from q over the remaining labels. q is kept in logarithms: at alpha 0.01 most shares are below
the smallest float, and they matter once the main label of a client is exhausted. A client must hold two
labels with six samples each; otherwise it draws again, at most 1,000 times, after which (or at once if it is
impossible) the last draw is accepted. Finally samples are permuted and dealt label by label. At most N - 1
samples are unused. Smaller alpha is more skewed: two labels, rarely three, at 0.01. Repeated draws take most
of the time: at 0.01 about 40 draws for a client of 100 samples, and over 500 for a client of 12. Each starts
where the last one left the generator; after 50,000 draws they are made 50 at a time, of which the first that
is accepted counts.

``official`` follows the authors' code, which makes no partition: q ~ Dir(alpha u) with u uniform in [0, 1]^K;
floor(n / N) labels are drawn from q, again if all are equal; labels drawn fewer than six times are dropped;
the first samples of each label are taken and *the others* removed from the list; a client draws until the
number drawn, not the number received, is floor(n / N). So clients share samples, a client may hold a sample
several times, and few samples are used.
Source: Hsu et al., 2019, as FedEvg divides data (alpha 0.01 and 1); AAggFF (TinyImageNet, 0.01) has the
same code.

>>> import numpy as np
>>> samples = Samples(np.arange(600) % 3)
>>> parts = DirichletDisjoint(alpha=1.0).split(samples, 4, np.random.default_rng(0)).train
>>> [len(part) for part in parts]
[150, 150, 150, 150]
"""

import numpy as np

from fedflow.errors import BadInput
from fedflow.partition.dirichlet import TRIES
from fedflow.partition.scheme import Indices, Samples, Scheme, Split, by_counts, num_classes, register
from fedflow.settings import option

MIN_CLASSES, MIN_PER_CLASS = 2, 6  # labels that a client holds, and samples of each
ALONE, TOGETHER = 50_000, 50  # draws that are made one by one, then at once


@register("dirichlet_disjoint")
class DirichletDisjoint(Scheme):
    alpha: float = option(0.01, "concentration; smaller is more skewed", symbol="alpha", gt=0, grid=(0.01, 1))
    official: bool = option(False, "as in the authors' code: clients share samples")

    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> Split:
        labels, size = samples.labels, len(samples.labels) // clients
        if self.official:
            return Split(self._official(labels, clients, size, rng))
        left = np.bincount(labels, minlength=num_classes(labels))
        counts, drawn = np.zeros((clients, len(left)), np.int64), 0
        for k in range(clients):
            enough = (left >= MIN_PER_CLASS).sum() >= MIN_CLASSES
            possible = enough and size >= MIN_CLASSES * MIN_PER_CLASS
            tries = TRIES if possible else 1
            while tries > 0:
                draws = TOGETHER if possible and drawn >= ALONE else 1
                tried = self._counts(left, size, rng, draws)
                accepted = (tried >= MIN_PER_CLASS).sum(-1) >= MIN_CLASSES
                counts[k] = tried[accepted.argmax() if accepted.any() else -1] if draws > 1 else tried
                drawn, tries = drawn + draws, 0 if accepted.any() else tries - draws
            left -= counts[k]
        return Split(by_counts(labels, counts, rng))

    def _counts(self, left: np.ndarray, size: int, rng: np.random.Generator, draws: int) -> np.ndarray:
        """``size`` of the ``left`` [K] samples for one client, by label [K]; [draws, K] if drawn together."""
        log_q = log_dirichlet(self.alpha / len(left), (draws, len(left)) if draws > 1 else (len(left),), rng)
        counts = np.zeros(log_q.shape, np.int64)
        while (missing := size - counts.sum(-1)).any():
            done = (missing == 0)[..., None]  # of which no label may be left
            there = np.where((counts < left) | done, log_q, -np.inf)
            p = np.exp(there - there.max(-1, keepdims=True))
            counts += np.minimum(rng.multinomial(missing, p / p.sum(-1, keepdims=True)), left - counts)
        return counts

    def _official(self, labels: np.ndarray, clients: int, size: int, rng: np.random.Generator) -> Indices:
        heads = [np.flatnonzero(labels == c) for c in range(num_classes(labels))]
        parts = []
        for _ in range(clients):
            got, drawn, tries = [], 0, 0
            while drawn < size:
                if (tries := tries + 1) > TRIES:
                    raise BadInput(
                        "partition.clients", clients, f"fewer for {len(labels)} samples, or a larger alpha"
                    )
                counts = rng.multinomial(size, rng.dirichlet(self.alpha * rng.random(len(heads))))
                if (counts > 0).sum() < 2:
                    continue
                counts[counts < MIN_PER_CLASS] = 0
                for c in np.flatnonzero(counts):
                    heads[c] = heads[c][: counts[c]]
                    got.append(heads[c])
                drawn += counts.sum()
            parts.append(np.sort(np.concatenate(got)))
        return parts


def log_dirichlet(alpha: float, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """log q of q ~ Dir(alpha, .., alpha), up to a constant: the last axis of ``shape``.

    A gamma variate of shape alpha is one of shape alpha + 1 times u^(1 / alpha), u uniform (Marsaglia, Tsang
    2000). Below 0.1 NumPy breaks sticks, and the rest of a stick is often rounded to 0; below 1e-300 the
    quotient overflows.
    """
    if alpha >= 0.1:
        return np.log(rng.dirichlet(np.full(shape[-1], alpha), shape[:-1]))
    return np.log(rng.standard_gamma(alpha + 1, shape)) - rng.standard_exponential(shape) / max(alpha, 1e-300)
