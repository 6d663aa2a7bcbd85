"""Client sizes that are fixed beforehand, and the order in which clients take turns."""

import numpy as np

from fedflow.errors import BadInput
from fedflow.partition.scheme import Samples, Scheme
from fedflow.settings import option


class Sized(Scheme):
    """Base of schemes that fix sizes beforehand: equal, lognormal or given."""

    sigma: float = option(
        0.0, "sd of the log of a client's size; 0 = equal sizes", ge=0, le=10, source="FedDyn: 0.3"
    )
    sizes: list[int] | None = option(
        None, "size of each client, with the other samples unused; null = all are used", ge=1
    )

    def validate(self) -> None:
        if self.sizes is not None and self.sigma:
            raise BadInput("partition.sigma", self.sigma, "0, because sizes is given")

    def count(self, samples: Samples) -> int:
        return super().count(samples) if self.sizes is None else len(self.sizes)

    def draw(self, total: int, clients: int, rng: np.random.Generator) -> np.ndarray:
        """Sizes [N] that sum to ``total``, or to less if they are given."""
        if self.sizes is None:
            return draw_sizes(total, clients, self.sigma, rng)
        if len(self.sizes) != clients or sum(self.sizes) > total:
            accepted = f"{clients} whole numbers, one per client, that sum to at most {total}"
            raise BadInput("partition.sizes", self.sizes, accepted)
        return np.array(self.sizes)


def draw_sizes(total: int, clients: int, sigma: float, rng: np.random.Generator) -> np.ndarray:
    """Sizes [N] that sum to ``total``: equal (the first get one more), or lognormal if ``sigma`` > 0.

    Lognormal sizes ~ exp(N(log(total / N), sigma^2)) are rescaled to ``total`` and floored, and the first
    client takes the remainder. With mean 500 and sigma 0.3, sizes range from about 226 to 1,023, sd 152.
    Source: FedDyn (Acar et al., ICLR 2021), "unbalanced".
    """
    if sigma == 0:
        return total // clients + (np.arange(clients) < total % clients)
    drawn = rng.lognormal(np.log(total / clients), sigma, clients)
    sizes: np.ndarray = np.floor(drawn / drawn.sum() * total).astype(np.int64)
    sizes[0] += total - sizes.sum()
    return sizes


def turns(sizes: np.ndarray) -> np.ndarray:
    """The client of every turn [sum of sizes], with the turns of each client evenly spaced.

    >>> turns(np.array([2, 4])).tolist()
    [1, 0, 1, 1, 0, 1]
    """
    owner = np.repeat(np.arange(len(sizes)), sizes)
    nth = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return owner[np.argsort((nth + 0.5) / sizes[owner], kind="stable")]
