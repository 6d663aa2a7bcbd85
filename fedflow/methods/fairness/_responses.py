"""Responses of AAggFF: losses, divided by their mean and mapped to [0, 1] by a distribution function."""

from collections.abc import Callable

import numpy as np
import scipy


def frechet(x: np.ndarray) -> np.ndarray:
    """exp(-1 / x), and 0 at 0."""
    y: np.ndarray = np.exp(-np.divide(1, x, out=np.full_like(x, np.inf), where=x > 0))
    return y


# Cumulative distribution functions of scale 1, for x [m] = 1 at the mean loss.
CDFS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "weibull": lambda x: -np.expm1(-(x**2)),  # shape 2
    "exponential": lambda x: -np.expm1(-x),
    "frechet": frechet,  # shape 1
    "normal": lambda x: scipy.special.ndtr(x - 1),
    "gumbel": lambda x: np.exp(-np.exp(1 - x)),
    "logistic": lambda x: scipy.special.expit(x - 1),
}


def respond(cdf: str, losses: np.ndarray) -> np.ndarray:
    """u [m] in [0, 1]: the function at F_k / mean F, for ``losses`` F [m] >= 0; at 1 if all of them are 0."""
    mean = losses.mean()
    return CDFS[cdf](losses / mean if mean > 0 else np.ones_like(losses))
