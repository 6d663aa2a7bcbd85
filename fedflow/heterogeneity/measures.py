"""The measures of heterogeneity: each turns the data of N clients into a matrix [N, N].

Measures of inputs use a limited number of random samples per client, keyed by a seed, and pixels in [0, 1];
measures of labels use all samples.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedflow.heterogeneity import distances
from fedflow.heterogeneity.subspace import proximity, signature
from fedflow.seeding import generator

POOL = 2000  # inputs of the whole dataset that define projections and the width of the kernel
COMPONENTS = 50  # leading components of the pool, on which MMD and CKA are computed
GAUSSIAN = 10  # leading principal components that Gaussians are fitted to
RIDGE = 1e-3  # share of the pool's mean variance that is added to every variance, which may be 0
LABEL_SHARE = 1 / 200  # added to every label's share: the KL divergence of disjoint labels would be infinite
DIRECTIONS = 64  # random directions over which the earth mover's distance is averaged


class Views:
    """The data of some clients in the forms that measures need, computed once and on demand."""

    def __init__(
        self, x: np.ndarray, labels: np.ndarray, rows: list[np.ndarray], samples: int, p: int, seed: int
    ) -> None:
        self.labels, self.rows, self.p, self.seed = labels, rows, p, seed
        self._x = [x[self._some(chosen, samples, k)] for k, chosen in enumerate(rows, 1)]
        self.pool = _flat(x[self._some(np.arange(len(labels)), POOL, 0)])  # [m, F]

    def _some(self, rows: np.ndarray, count: int, client: int) -> np.ndarray:
        if len(rows) <= count:
            return rows
        rng = generator(self.seed, "heterogeneity/samples", client)
        return np.sort(rng.choice(rows, count, replace=False))

    def inputs(self) -> Iterator[np.ndarray]:
        """The inputs [n_k, F], client by client: as floats, all together would be large."""
        return map(_flat, self._x)

    @cached_property
    def principal(self) -> tuple[list[np.ndarray], np.ndarray]:
        """Inputs of every client, and of the pool, on the pool's leading principal components [n, C]."""
        mean = self.pool.mean(0)
        axes = signature(self.pool - mean, COMPONENTS)
        return [(x - mean) @ axes for x in self.inputs()], (self.pool - mean) @ axes

    @cached_property
    def signatures(self) -> list[np.ndarray]:
        """The ``p`` leading directions of every client's inputs [F, p]."""
        return [signature(x, self.p) for x in self.inputs()]


View = Callable[[Views], np.ndarray]


def _flat(x: np.ndarray) -> np.ndarray:
    """Samples as rows [n, F]; pixels in [0, 1]."""
    rows = x.reshape(len(x), -1)
    return rows / np.float32(255) if x.dtype == np.uint8 else rows


def label_counts(labels: np.ndarray, rows: list[np.ndarray]) -> np.ndarray:
    """Samples of each label at each client [N, K]."""
    classes = int(labels.max()) + 1
    return np.stack([np.bincount(labels[chosen], minlength=classes) for chosen in rows])


def _of_labels(distance: Callable[[np.ndarray, np.ndarray], np.ndarray], add: float = 0.0) -> View:
    """The mean of both directions of a distance between label shares, after ``add`` to every share."""

    def measure(views: Views) -> np.ndarray:
        counts = label_counts(views.labels, views.rows)
        shares = counts / counts.sum(1, keepdims=True) + add
        shares /= shares.sum(1, keepdims=True)
        matrix = distance(shares[:, None], shares[None])
        return (matrix + matrix.T) / 2

    return measure


def _of_signatures(mode: str) -> View:
    return lambda views: proximity(views.signatures, mode=mode)


def _feature_emd(views: Views) -> np.ndarray:
    rng = generator(views.seed, "heterogeneity/directions")
    directions = rng.normal(size=(views.pool.shape[1], DIRECTIONS)).astype(views.pool.dtype)
    return distances.sliced_wasserstein(views.inputs(), directions / np.linalg.norm(directions, axis=0))


def _mmd(views: Views) -> np.ndarray:
    samples, pool = views.principal
    return distances.mmd(samples, distances.median_distance(pool))


def _bhattacharyya(views: Views) -> np.ndarray:
    samples, pool = views.principal
    pool = pool[:, :GAUSSIAN]
    ridge = RIDGE * np.var(pool, axis=0).mean() * np.eye(pool.shape[1])
    means = np.stack([x[:, :GAUSSIAN].mean(0) for x in samples])
    covs = np.stack([np.cov(x[:, :GAUSSIAN], rowvar=False, bias=True).reshape(ridge.shape) for x in samples])
    covs = covs + ridge
    return distances.bhattacharyya(means[:, None], covs[:, None], means[None], covs[None])


def _cka(views: Views) -> np.ndarray:
    """Rows are features, which clients share; columns are samples, in any number and order.

    Centring a column subtracts the mean feature of a sample; |Y^T X|^2 = <X X^T, Y Y^T> compares the second
    moments of the clients' features. nan for a client with constant features.
    """
    axes = signature(views.pool - views.pool.mean(1, keepdims=True), COMPONENTS)
    centered = [(x - x.mean(1, keepdims=True)) @ axes for x in views.inputs()]
    moments = np.stack([(z.T @ z).ravel() for z in centered])
    lengths = np.linalg.norm(moments, axis=1)
    with np.errstate(invalid="ignore"):
        return moments @ moments.T / np.outer(lengths, lengths)


@dataclass(frozen=True)
class Measure:
    """A measure of two clients: title and function; ``similarity`` if larger is more similar."""

    title: str
    of: View
    labels: bool = False
    similarity: bool = False


MEASURES = {
    "label_tv": Measure("total variation of labels", _of_labels(distances.total_variation), labels=True),
    "label_kl": Measure("KL of labels, nats", _of_labels(distances.kl, add=LABEL_SHARE), labels=True),
    "label_js": Measure("JS of labels, nats", _of_labels(distances.js), labels=True),
    "feature_emd": Measure("EMD of inputs, sliced", _feature_emd),
    "mmd": Measure("MMD of inputs", _mmd),
    "bhattacharyya": Measure("Bhattacharyya of Gaussian fits", _bhattacharyya),
    "angle_min": Measure("smallest principal angle, degrees (Eq. 5.1)", _of_signatures("principal_min")),
    "angle_entry": Measure("smallest angle of columns, degrees (Eq. 5.1)", _of_signatures("entry_min_abs")),
    "angle_sum": Measure("sum of principal angles, degrees (Eq. 5.2)", _of_signatures("principal_sum")),
    "cka": Measure("linear CKA, 1 is most similar", _cka, similarity=True),
}
