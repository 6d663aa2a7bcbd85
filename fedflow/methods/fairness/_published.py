"""The Normal response of AAggFF in the authors' code."""

import numpy as np


def as_published(cdf: str, u: np.ndarray) -> np.ndarray:
    """Responses of the authors' code, from u [m] of `respond`: (1 + erfc) / 2 in place of (1 + erf) / 2."""
    return 1.5 - u if cdf == "normal" else u
