"""The probability simplex {x >= 0, sum x = 1}: the nearest point, and quadratic programs over it."""

import numpy as np


def project(v: np.ndarray) -> np.ndarray:
    """The point [m] of the probability simplex that is nearest to ``v`` [m] (Duchi et al., ICML 2008)."""
    descending = np.sort(v)[::-1]
    excess = (np.cumsum(descending) - 1) / np.arange(1, len(v) + 1)
    threshold = excess[np.flatnonzero(descending > excess)[-1]]
    p: np.ndarray = np.maximum(v - threshold, 0)
    return p


def minimize(h: np.ndarray, b: np.ndarray) -> np.ndarray:
    """argmin x' h x / 2 + b' x over x [m] in the simplex; h [m, m] positive definite, b [m].

    Exact up to rounding, by active sets: the face of the simplex gains the entry that improves x the most,
    until there is none, and loses entries that would become negative.
    """

    def on_face() -> np.ndarray:
        """The minimizer whose entries are 0 unless they are ``free``, which may be negative."""
        x, face = np.zeros(len(b)), h[np.ix_(free, free)]
        plain, unit = np.linalg.solve(face, np.stack([-b[free], np.ones(free.sum())], 1)).T
        x[free] = plain + (1 - plain.sum()) / unit.sum() * unit
        return x

    free = np.ones(len(b), dtype=bool)
    x = on_face()
    while (x < 0).any():  # a feasible point to start from
        free &= x > 0
        x = on_face()
    for _ in range(100 * len(b)):
        slope = h @ x + b
        gain = np.where(free, 0, slope @ x - slope)
        if gain.max() <= 1e-13 * np.abs(slope).max():
            break
        free[gain.argmax()] = True
        while ((y := on_face()) < 0).any():
            lost = np.flatnonzero(y < 0)
            shares = x[lost] / (x[lost] - y[lost])  # of the way to y, until an entry is 0
            x = x + shares.min() * (y - x)
            gone = lost[shares == shares.min()]
            x[gone], free[gone] = 0, False
        x = y
    return x
