"""Hedge (Algorithm 10): experts weighted by their past losses, where no validation set exists."""

import numpy as np


def hedge(losses: np.ndarray, gamma: float = 0.1, peek: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Paid losses [T] and weights [T + 1, n] of n experts with ``losses`` [T, n].

    Weights start equal; round t pays <p_t, l_t>, then p_{t+1} is proportional to p_t gamma^l_t. With ``peek``
    it pays <p_{t+1}, l_t>, as in the authors' code.
    """
    powers = np.vstack([np.zeros(losses.shape[1]), np.cumsum(losses, axis=0)])
    weights = gamma ** (powers - powers.min(1, keepdims=True))  # relative to the best: not 0/0
    weights /= weights.sum(1, keepdims=True)
    return ((weights[1:] if peek else weights[:-1]) * losses).sum(1), weights
