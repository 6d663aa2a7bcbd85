"""Distances between generated and real images, from features or pixels: one row per image, in float64.

Fréchet distance (Heusel et al. 2017), precision and recall (Kynkäänniemi et al. 2019), density and coverage
(Naeem et al. 2020), nearest neighbors. No value depends on the order of the rows.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

BLOCK = 4096  # rows that all others are compared with at once


def features_of(run: Mapping[str, Any]) -> tuple[str, str]:
    """Feature space of the image metrics for these settings of `run`: suffix of the name, and description."""
    if file := run.get("inception"):
        return ", Inception", f"from Inception v3 ({file})"
    name = run.get("features")
    return ("-c", f"from {name}") if name else (", pixels", "the pixels")


class Gaussian(NamedTuple):
    """A mean [d] and a root [r, d] of a covariance, which is root^T root."""

    mean: Tensor
    root: Tensor

    @classmethod
    def of(cls, x: Tensor) -> Self:
        """The mean and the covariance, with 1 / (n - 1), of rows ``x`` [n, d], n > 1; r = min(n, d)."""
        x = x.double()
        mean = x.mean(0)
        root = (x - mean) / (len(x) - 1) ** 0.5
        return cls(mean, torch.linalg.qr(root, mode="r").R if len(x) > x.shape[1] else root)

    def distance(self, other: "Gaussian") -> float:
        """The Fréchet distance |m1 - m2|^2 + tr(S1 + S2 - 2 (S1 S2)^(1/2)).

        For S1 = A^T A and S2 = B^T B, the trace of the root of S1 S2 is the sum of the singular values of
        A B^T. This matrix has at most n x m entries for any number of features, and its singular values are
        real and finite for covariances of any rank: nothing is added to a diagonal, and no imaginary part is
        dropped.
        """
        traces = self.root.square().sum() + other.root.square().sum()
        shared = torch.linalg.svdvals(self.root @ other.root.T).sum()
        return max(0.0, float((self.mean - other.mean).square().sum() + traces - 2 * shared))


def frechet(x: Tensor, y: Tensor) -> float:
    """The Fréchet distance of Gaussians with the moments of rows ``x`` [n, d] and ``y`` [m, d]; n, m > 1."""
    return Gaussian.of(x).distance(Gaussian.of(y))


class Neighbors(NamedTuple):
    """Measures by balls around images; the radius is the distance to the k-th nearest image of the same set.

    ``precision`` is the share of fake images within the ball of some real image, ``recall`` the share of real
    images within the ball of some fake image. ``density`` is the mean number of real balls around a fake
    image, over k, and can exceed 1. ``coverage`` is the share of real images with a fake one in their ball.
    """

    precision: float
    recall: float
    density: float
    coverage: float


def neighbors(real: Tensor, fake: Tensor, k: int, around: Tensor | None = None) -> Neighbors:
    """Compare rows ``real`` [n, d] and ``fake`` [m, d] by open balls; k < n and k < m.

    ``around`` [n]: the `radii` of the real balls, if they have been computed.
    """
    fake_edges, edges = radii(fake, k), radii(real, k) if around is None else around
    inside, covered, recalled = torch.zeros(len(fake), device=fake.device), 0, 0
    for rows, ball in zip(real.split(BLOCK), edges.split(BLOCK), strict=True):
        far = _distances(rows, fake)
        within = far < ball[:, None]
        inside += within.sum(0)
        covered += int(within.any(1).sum())
        recalled += int((far < fake_edges).any(1).sum())
    precision, density = (inside > 0).double().mean(), inside.double().mean() / k
    return Neighbors(float(precision), recalled / len(real), float(density), covered / len(real))


def radii(x: Tensor, k: int) -> Tensor:
    """The distance [n] of every row of ``x`` [n, d] to its k-th neighbor among the others, k < n."""
    blocks = []
    for start in range(0, len(x), BLOCK):
        far = _distances(x[start : start + BLOCK], x)
        far.diagonal(start).fill_(torch.inf)
        blocks.append(far.kthvalue(k, dim=1).values)
    return torch.cat(blocks)


def nearest(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The row of ``y`` [m, d] nearest to every row of ``x`` [n, d], the first on ties, and its distance."""
    best = torch.full((len(x),), torch.inf, dtype=torch.float64, device=x.device)
    index = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    for start in range(0, len(y), BLOCK):
        far, row = _distances(x, y[start : start + BLOCK]).min(1)
        index, best = torch.where(far < best, row + start, index), torch.minimum(far, best)
    return index, best


def _distances(x: Tensor, y: Tensor) -> Tensor:
    """Euclidean distances [n, m] in float64."""
    return torch.cdist(x.double(), y.double())
