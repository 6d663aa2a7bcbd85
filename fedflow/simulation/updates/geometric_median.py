"""The geometric median, RFA: the point with the smallest sum of weighted distances to the clients' vectors.

Source: Pillutla et al., "Robust Aggregation for Federated Learning", IEEE Transactions on Signal Processing
2022, Algorithm 2 (smoothed Weiszfeld).
"""

import torch
from torch import Tensor

from fedflow.settings import option
from fedflow.simulation.updates.rules import Rule, averaged, distances
from fedflow.simulation.updates.step import Incoming, register


@register("geometric_median", "Geometric median")
class GeometricMedian(Rule):
    """z = sum beta_i w_i / sum beta_i, beta_i = alpha_i / max(nu, ||z - w_i||), from the weighted mean on.

    alpha_i are the weights of the mean. z is a mean of the vectors in every iteration, so that iterations
    only need the distances between vectors.
    """

    iterations: int = option(3, "iterations", symbol="R", ge=1, source="Pillutla et al. 2022, section V")
    smoothing: float = option(1e-6, "smallest distance", symbol="nu", gt=0, source="Pillutla et al. 2022")

    def robust(self, got: Incoming, vectors: Tensor) -> Tensor:
        squares = distances(vectors)
        weights = torch.from_numpy(got.weights).to(squares)
        alpha = beta = weights / weights.sum()
        for _ in range(self.iterations):
            far = squares @ beta
            beta = alpha / (far - beta @ far / 2).clamp(min=self.smoothing**2).sqrt()
            beta = beta / beta.sum()
        return averaged(vectors, beta)
