"""Weights as decisions of an online player, whose loss in round t is l_t(p) = -log(1 + <p, r(t)>)."""

import numpy as np

from fedflow.methods.fairness._simplex import minimize


def exponentiated(last: np.ndarray, response: np.ndarray, rate: float) -> np.ndarray:
    """The decision in proportion to last * exp(rate * response), all [m].

    It minimizes -<p, response> + KL(p || last) / rate over the simplex.
    """
    powers = rate * response
    p: np.ndarray = last * np.exp(powers - powers.max())
    p /= p.sum()
    return p


def decision_loss(p: np.ndarray, r: np.ndarray) -> np.ndarray:
    """l_t(p) of a decision [m] for responses [m], or [t] for responses [t, m]."""
    loss: np.ndarray = -np.log1p(r @ p)
    return loss


def hindsight(r: np.ndarray) -> np.ndarray:
    """The fixed decision [m] whose total loss on the responses [t, m] is the lowest.

    Newton's method on the simplex, until the duality gap is at rounding errors.
    """
    clients = r.shape[1]
    p = np.full(clients, 1 / clients)
    for _ in range(100):
        scaled = r / (1 + r @ p)[:, None]
        slope = scaled.sum(0)
        if slope.max() - slope @ p <= 1e-13 * len(r):
            break
        h = scaled.T @ scaled
        h += 1e-10 * np.trace(h) * np.eye(clients)  # it may be singular; affects the last digits of a step
        way, most = minimize(h, -slope - h @ p) - p, decision_loss(p, r).sum() + 1e-15 * len(r)
        steps = (p + way / 2**halved for halved in range(20))
        p = next((q for q in steps if decision_loss(q, r).sum() <= most), p)
    return p
