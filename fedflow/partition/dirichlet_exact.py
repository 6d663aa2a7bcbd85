"""Dirichlet with exact sizes: every client draws its samples one by one from its own label prior.

Order of sampling: sizes are fixed (equal, or as in `iid` with ``sigma`` or ``sizes``) and client k draws
p_k ~ Dir(alpha, .., alpha) [K]. Then, until all are full: a client that is not full is chosen
uniformly and takes a sample of a label drawn from p_k; an exhausted label is drawn again (that is a draw
from p_k over the remaining labels; uniform if p_k has no mass there). Clients are chosen by clocks that tick
after Exp(1) times until their clients are full: all of these are equally likely to tick next. Every sample is
used once, unless given sizes sum to less. Smaller alpha is more skewed.
Source: FedDyn (Acar et al., ICLR 2021), alpha 0.6 and 0.3.

>>> import numpy as np
>>> samples = Samples(np.arange(60) % 3)
>>> parts = DirichletExact(alpha=0.3).split(samples, 4, np.random.default_rng(0)).train
>>> [len(part) for part in parts]
[15, 15, 15, 15]
"""

import numpy as np

from fedflow.partition.scheme import Samples, Split, by_counts, num_classes, register
from fedflow.partition.sizes import Sized
from fedflow.settings import option

BLOCK = 1 << 16  # draws at a time, which bounds memory


@register("dirichlet_exact")
class DirichletExact(Sized):
    alpha: float = option(
        0.3, "concentration of a client's label prior; smaller is more skewed", gt=0, grid=(0.6, 0.3)
    )

    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> Split:
        labels, classes = samples.labels, num_classes(samples.labels)
        sizes = self.draw(len(labels), clients, rng)
        prior = rng.dirichlet(np.full(classes, self.alpha), clients)
        client = _picked(sizes, rng)
        label = _drawn(prior, client, np.bincount(labels), rng)
        counts = np.bincount(client * classes + label, minlength=clients * classes)
        return Split(by_counts(labels, counts.reshape(clients, classes), rng))


def _picked(sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The client of every draw, in order [n]."""
    client, waits = np.repeat(np.arange(len(sizes)), sizes), rng.exponential(size=sizes.sum())
    time = np.cumsum(waits)
    start = np.concatenate([[0], time])[np.cumsum(sizes) - sizes]
    return client[np.argsort(time - start[client])]


def _drawn(prior: np.ndarray, client: np.ndarray, stock: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The label of every draw [n], given ``stock`` [K] samples of each label."""
    left = stock > 0
    label = _draw(prior, client, left, rng)
    while True:
        demand = np.bincount(label, minlength=len(stock))
        if not (short := np.flatnonzero(demand > stock)).size:
            return label
        order = np.argsort(label, kind="stable")  # by label, then in the order of draws
        first = np.cumsum(demand) - demand
        c = short[order[first[short] + stock[short]].argmin()]  # exhausted before the others
        left[c] = False
        late = order[first[c] + stock[c] : first[c] + demand[c]]
        label[late] = _draw(prior, client[late], left, rng)


def _draw(prior: np.ndarray, client: np.ndarray, left: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One label for each of ``client`` [m], among those that are ``left`` [K]."""
    label = np.empty(len(client), np.min_scalar_type(len(left)))  # short integers are sorted faster
    for at in range(0, len(client), BLOCK):
        mass = prior[client[at : at + BLOCK]] * left
        mass[mass.sum(1) == 0] = left
        cumulative = mass.cumsum(1)
        cumulative /= cumulative[:, -1:]
        label[at : at + BLOCK] = (rng.random((len(mass), 1)) >= cumulative).sum(1)
    return label
