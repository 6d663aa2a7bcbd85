"""Distances between distributions of labels and inputs, between fitted Gaussians, and between gradients.

Functions of two histograms or two Gaussians broadcast over leading axes, so ``p[:, None], p[None]`` gives
all pairs; functions of samples take one array [n_k, F] per client and return all pairs [N, N] at once.
`fedflow partitions compare` does not use functions of gradients and models, `gaussian_kl` and `linear_cka`.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import scipy

from fedflow.errors import BadInput

# Histograms [..., K] that sum to 1


def total_variation(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Half the summed difference, in [0, 1]: the earth mover's distance of labels at equal distances.

    No distance here takes labels as numbers in order (ordered 1-D Wasserstein).
    """
    return 0.5 * np.abs(p - q).sum(-1)


def kl(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Kullback-Leibler divergence KL(p||q) in nats, >= 0; infinite if q lacks a label of p."""
    return scipy.special.rel_entr(p, q).sum(-1)


def js(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Jensen-Shannon divergence in nats, in [0, ln 2]."""
    middle = (p + q) / 2
    return (kl(p, middle) + kl(q, middle)) / 2


# Gaussians with means [..., k] and covariances [..., k, k]


def gaussian_kl(
    mean: np.ndarray, cov: np.ndarray, other_mean: np.ndarray, other_cov: np.ndarray
) -> np.ndarray:
    """KL(N||N') in nats: (tr S'^-1 S + d^T S'^-1 d - k + ln det S'/det S) / 2."""
    between = np.linalg.solve(other_cov, cov)
    return 0.5 * (
        np.trace(between, axis1=-2, axis2=-1)
        + _mahalanobis(other_mean - mean, other_cov)
        - mean.shape[-1]
        + _log_det(other_cov)
        - _log_det(cov)
    )


def bhattacharyya(
    mean: np.ndarray, cov: np.ndarray, other_mean: np.ndarray, other_cov: np.ndarray
) -> np.ndarray:
    """d^T S^-1 d / 8 + ln(det S / sqrt(det S_1 det S_2)) / 2 with S the mean of the covariances; >= 0."""
    middle = (cov + other_cov) / 2
    spread = _log_det(middle) - (_log_det(cov) + _log_det(other_cov)) / 2
    return _mahalanobis(mean - other_mean, middle) / 8 + spread / 2


def _mahalanobis(d: np.ndarray, cov: np.ndarray) -> np.ndarray:
    return np.einsum("...i,...i->...", d, np.linalg.solve(cov, d[..., None])[..., 0])


def _log_det(cov: np.ndarray) -> np.ndarray:
    return np.linalg.slogdet(cov)[1]


# Samples [n_k, F] of every client

EQUAL = 1e-6  # of the largest distance: below it, samples differ by rounding only


def sliced_wasserstein(
    samples: Iterable[np.ndarray], directions: np.ndarray, levels: int = 100
) -> np.ndarray:
    """W1 (earth mover's distance) [N, N] of samples projected on each of ``directions`` [F, L], averaged.

    A lower bound of the exact distance in F dimensions. With the identity as directions, it averages over
    single features. Quantile functions are compared at ``levels`` midpoints: exact for clients of ``levels``
    samples each.
    """
    middles = (np.arange(levels) + 0.5) / levels
    seen = [np.sort(x @ directions, axis=0)[(middles * len(x)).astype(int)].ravel() for x in samples]
    sums = scipy.spatial.distance.pdist(np.stack(seen), "cityblock")
    return scipy.spatial.distance.squareform(sums) / seen[0].size


def median_distance(x: np.ndarray) -> float:
    """The median Euclidean distance between two of the samples ``x`` [n, F]: the usual kernel width.

    If most pairs are equal, as binary features may be, of the other pairs.
    """
    distances = scipy.spatial.distance.pdist(x)
    apart = distances[distances > EQUAL * distances.max(initial=0)]
    return float(np.median(apart if 0 < 2 * len(apart) < len(distances) else distances))


def mmd(samples: Sequence[np.ndarray], width: float | None = None) -> np.ndarray:
    """Maximum mean discrepancy [N, N] with the kernel exp(-|x - y|^2 / (2 width^2)), in [0, sqrt 2].

    The biased estimate: never negative, and positive for samples of equal distributions. ``width`` defaults
    to the `median_distance` of all samples together.
    """
    from sklearn.metrics.pairwise import rbf_kernel  # takes seconds to import

    if width is None:
        width = median_distance(np.concatenate(samples))
    if not width > 0:
        raise BadInput("width", width, "a number > 0 (are all samples equal?)")
    clients = len(samples)
    means = np.empty((clients, clients))  # of the kernel
    starts = np.cumsum([0, *map(len, samples)])
    everyone = np.concatenate(samples)
    for i, x in enumerate(samples):
        kernel = rbf_kernel(x, everyone[starts[i] :], 0.5 / width**2)
        sums = np.add.reduceat(kernel.sum(0, dtype=np.float64), starts[i:-1] - starts[i])
        means[i, i:] = means[i:, i] = sums / len(x) / np.diff(starts[i:])
    within = means.diagonal()
    return np.sqrt(np.maximum(within[:, None] + within - 2 * means, 0))


def linear_cka(x: np.ndarray, y: np.ndarray) -> float:
    """Linear centered kernel alignment of ``x`` [n, F] and ``y`` [n, G], rows paired, in [0, 1]: 1 = equal.

    |Y^T X|^2 / (|X^T X| |Y^T Y|) in Frobenius norms, columns centered (Kornblith et al. 2019). Invariant
    to shifts, scaling and rotation of the columns of either. nan if either is constant.
    """
    x, y = x - x.mean(0), y - y.mean(0)
    across, norm_x, norm_y = (np.linalg.norm(product) for product in (y.T @ x, x.T @ x, y.T @ y))
    return float(across**2 / (norm_x * norm_y)) if norm_x * norm_y > 0 else float("nan")


# Gradients


def gradient_diversity(gradients: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Disagreement of the ``gradients`` [C, P]: 1 if all are equal, infinite if they cancel out.

    sum_k w_k |g_k|^2 / |sum_k w_k g_k|^2, weights [C] normalized to sum 1 and equal by default, which
    is C sum |g_k|^2 / |sum g_k|^2 (Yin et al. 2018; Haddadpour and Mahdavi 2019).
    """
    w = np.ones(len(gradients)) if weights is None else np.asarray(weights, np.float64)
    w = w / w.sum()
    total = np.square(w @ gradients).sum()
    return float(w @ np.square(gradients).sum(1) / total) if total > 0 else float("inf")


def gradient_spread(
    gradients: np.ndarray, weights: np.ndarray | None = None, clusters: np.ndarray | None = None
) -> float:
    """Spread of the ``gradients`` [C, P] around their mean, sum_k p_k |g_k - g|^2: H_device.

    With ``clusters`` [C], the mean gradients of clusters replace them: H_cluster, never larger (FedCluster,
    Chen et al. 2020). ``weights`` [C] are normalized to sum 1 and equal by default.
    """
    w = np.ones(len(gradients)) if weights is None else np.asarray(weights, np.float64)
    groups = np.arange(len(gradients)) if clusters is None else np.unique(clusters, return_inverse=True)[1]
    belongs = w / w.sum() * (groups == np.arange(groups.max() + 1)[:, None])  # [K, C]
    mass = belongs.sum(1)
    centered = belongs @ gradients / mass[:, None] - belongs.sum(0) @ gradients
    return float(mass @ np.square(centered).sum(1))


def weight_divergence(model: np.ndarray, central: np.ndarray) -> float:
    """Distance |w - w'| / |w'| of a federated ``model`` [P] to a ``central`` one trained from the same start.

    Small if clients have similar data (Zhao et al., "Federated Learning with Non-IID Data", 2018, arXiv
    1806.00582, section 3.1).
    """
    return float(np.linalg.norm(model - central) / np.linalg.norm(central))
