"""Client sizes that are fixed beforehand, and the order in which clients take turns."""

import numpy as np

from fedflow.partition.scheme import Scheme
from fedflow.settings import option


class Sized(Scheme):
    """Base of schemes that fix sizes beforehand: equal or lognormal."""

    sigma: float = option(
        0.0, "sd of the log of a client's size; 0 = equal sizes", ge=0, le=10, source="FedDyn: 0.3"
    )


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
