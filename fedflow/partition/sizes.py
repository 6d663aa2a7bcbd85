"""How many samples every client gets, and whose turn it is: for schemes that fix sizes beforehand."""

import numpy as np


def draw_sizes(total: int, clients: int, sigma: float, rng: np.random.Generator) -> np.ndarray:
    """Sizes [N] that sum to ``total``: equal (the first get one more), or lognormal where ``sigma`` > 0.

    Lognormal: sizes ~ exp(N(log(total / N), sigma^2)) are rescaled to ``total`` and floored, and the first
    client takes the remainder. For a mean of 500 and sigma 0.3 sizes go from about 226 to 1,023, sd 152.
    Source: FedDyn (Acar et al., ICLR 2021), "unbalanced".
    """
    if sigma == 0:
        return total // clients + (np.arange(clients) < total % clients)
    drawn = rng.lognormal(np.log(total / clients), sigma, clients)
    sizes = np.floor(drawn / drawn.sum() * total).astype(np.int64)
    sizes[0] += total - sizes.sum()
    return sizes


def turns(sizes: np.ndarray) -> np.ndarray:
    """Whose turn it is, [sum of sizes]: every client's turns are evenly spaced from first to last.

    >>> turns(np.array([2, 4])).tolist()
    [1, 0, 1, 1, 0, 1]
    """
    owner = np.repeat(np.arange(len(sizes)), sizes)
    nth = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return owner[np.argsort((nth + 0.5) / sizes[owner], kind="stable")]
