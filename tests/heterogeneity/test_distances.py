"""Distances of distributions: worked numbers, SciPy's answers, and what a distance must satisfy."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon
from scipy.stats import wasserstein_distance
from support import refused

from fedflow.heterogeneity import distances

X = np.array([[1.0, 0], [0, 1], [2, 1], [3, 5]])
Y = np.array([[1.0, 2], [0, 0], [2, 1], [0, 1]])
P, Q = np.array([0.5, 0.5, 0, 0]), np.array([0, 0.5, 0.5, 0])
ONES, EYE = np.ones(20), np.eye(20)

counts = st.lists(st.integers(0, 50), min_size=5, max_size=5).filter(any).map(np.array)
seeds = st.integers(0, 10**6)


def gaussian(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(3, 3))
    return rng.normal(size=3), root @ root.T + 0.1 * np.eye(3)


def test_two_of_four_labels_that_share_one():
    assert distances.total_variation(P, Q) == 0.5
    assert distances.kl(P, Q) == np.inf
    assert distances.js(P, Q) == pytest.approx(0.5 * math.log(2))


@given(counts, counts)
def test_distances_of_histograms_are_symmetric_bounded_and_those_of_scipy(a, b):
    p, q = a / a.sum(), b / b.sum()
    bounds = {distances.total_variation: 1, distances.js: math.log(2)}
    for distance, bound in bounds.items():
        assert distance(p, p) == 0 <= distance(p, q) <= bound + 1e-12
        assert distance(p, q) == pytest.approx(distance(q, p))
    assert distances.kl(p, p) == 0 and distances.kl(p, q) >= -1e-12
    assert distances.js(p, q) == pytest.approx(jensenshannon(p, q) ** 2, abs=1e-9)


@pytest.mark.parametrize(
    ("other", "expected_bhattacharyya", "expected_kl"),
    [
        ((2 * ONES, EYE), 2.5, 10),
        ((3 * ONES, EYE), 10, 40),
        ((ONES, 2 * EYE), 0.5889, 1.9315),
        ((ONES, 5 * EYE), 2.9389, 8.0944),
    ],
)
def test_the_gaussians_of_table_3_16(other, expected_bhattacharyya, expected_kl):
    assert distances.bhattacharyya(ONES, EYE, *other) == pytest.approx(expected_bhattacharyya, abs=1e-4)
    assert distances.gaussian_kl(ONES, EYE, *other) == pytest.approx(expected_kl, abs=1e-4)


@given(seeds, seeds)
def test_distances_of_gaussians_are_non_negative_and_survive_a_change_of_coordinates(a, b):
    (mean, cov), (other_mean, other_cov) = gaussian(a), gaussian(b)
    turn = np.random.default_rng(a + b).normal(size=(3, 3)) + 3 * np.eye(3)
    for distance in (distances.bhattacharyya, distances.gaussian_kl):
        found = distance(mean, cov, other_mean, other_cov)
        assert found >= -1e-9 and distance(mean, cov, mean, cov) == pytest.approx(0, abs=1e-9)
        turned = (turn @ mean, turn @ cov @ turn.T, turn @ other_mean, turn @ other_cov @ turn.T)
        assert distance(*turned) == pytest.approx(found, rel=1e-6, abs=1e-6)
    forth = distances.bhattacharyya(mean, cov, other_mean, other_cov)
    assert forth == pytest.approx(distances.bhattacharyya(other_mean, other_cov, mean, cov))


def test_pairs_broadcast():
    means, covs = (np.stack(part) for part in zip(*map(gaussian, range(4))))
    for distance in (distances.bhattacharyya, distances.gaussian_kl):
        pairs = distance(means[:, None], covs[:, None], means[None], covs[None])
        assert pairs[1, 3] == pytest.approx(distance(means[1], covs[1], means[3], covs[3]))


def test_the_worked_mmd():
    assert distances.mmd([X, Y], 1.0) ** 2 == pytest.approx(
        np.array([[0, 0.167340], [0.167340, 0]]), abs=1e-6
    )


def test_the_default_width_of_mmd_is_the_median_distance_of_all_samples():
    assert distances.median_distance(np.array([[0.0], [1], [3]])) == 2  # of 1, 2 and 3
    width = distances.median_distance(np.concatenate([X, Y]))
    assert (distances.mmd([X, Y]) == distances.mmd([X, Y], width)).all()
    with refused(r"width: 0\.0 is not accepted"):
        distances.mmd([np.ones((3, 2)), np.ones((2, 2))])


@given(seeds, st.lists(st.integers(1, 6), min_size=2, max_size=5))
def test_mmd_is_a_distance_and_that_of_each_pair(seed, sizes):
    rng = np.random.default_rng(seed)
    samples = [rng.normal(size=(n, 3)) for n in sizes]
    found = distances.mmd(samples, 1.5)
    assert (found == found.T).all() and not found.diagonal().any() and found.max() <= math.sqrt(2)
    assert found[0, 1] == pytest.approx(distances.mmd(samples[:2], 1.5)[0, 1])
    assert distances.mmd([x + 7 for x in samples], 1.5) == pytest.approx(found, abs=1e-6)
    if len(sizes) > 2:
        assert found[0, 2] <= found[0, 1] + found[1, 2] + 1e-9


@given(seeds, st.integers(1, 20))
def test_sliced_wasserstein_is_that_of_scipy_for_samples_of_equal_number(seed, n):
    rng = np.random.default_rng(seed)
    samples, directions = rng.normal(size=(3, n, 4)), rng.normal(size=(4, 2))
    found = distances.sliced_wasserstein(samples, directions, levels=n)
    for i, j in ((0, 1), (0, 2), (2, 1)):
        seen = zip((samples[i] @ directions).T, (samples[j] @ directions).T)
        assert found[i, j] == pytest.approx(np.mean([wasserstein_distance(a, b) for a, b in seen]))
    shifted = distances.sliced_wasserstein([samples[0], samples[0] + [1, 0, 0, 0]], np.eye(4), levels=n)
    assert shifted[0, 1] == pytest.approx(1 / 4)  # one of four features moved by 1


def test_sliced_wasserstein_of_unequal_numbers_is_close_to_that_of_scipy():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(130, 1)), rng.normal(1, 2, size=(71, 1))
    found = distances.sliced_wasserstein([a, b], np.eye(1))[0, 1]
    assert found == pytest.approx(wasserstein_distance(a[:, 0], b[:, 0]), rel=0.02)


def test_the_worked_cka():
    assert distances.linear_cka(X, Y) == pytest.approx(0.192375, abs=1e-6)
    assert math.isnan(distances.linear_cka(X, np.ones((4, 2))))


@given(seeds, st.integers(1, 4), st.integers(1, 4), st.floats(0.1, 10))
def test_cka_is_symmetric_bounded_and_forgets_scale_shift_and_rotation(seed, f, g, scale):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(8, f)), rng.normal(size=(8, g))
    found = distances.linear_cka(x, y)
    assert 0 <= found <= 1 + 1e-12 and found == pytest.approx(distances.linear_cka(y, x))
    assert distances.linear_cka(x, x) == pytest.approx(1)
    rotation = np.linalg.qr(rng.normal(size=(f, f)))[0]
    assert distances.linear_cka(scale * x @ rotation + rng.normal(size=f), y) == pytest.approx(found)


@pytest.mark.parametrize(
    ("gradients", "diversity"),
    [
        ([[1, 2], [1, 2], [1, 2]], 1),
        ([[1, 0], [0, 1]], 2),
        ([[1, 0], [-0.5, 0]], 10),
        ([[1, 0], [-1, 0]], np.inf),
    ],
)
def test_worked_gradient_diversity(gradients, diversity):
    assert distances.gradient_diversity(np.array(gradients)) == pytest.approx(diversity)


@given(seeds, st.integers(1, 6))
def test_gradient_diversity_is_at_least_1_and_counts_weights_as_copies(seed, clients):
    rng = np.random.default_rng(seed)
    gradients, copies = rng.normal(size=(clients, 4)), rng.integers(1, 4, clients)
    found = distances.gradient_diversity(gradients, copies)
    assert found >= 1 - 1e-12
    assert found == pytest.approx(distances.gradient_diversity(np.repeat(gradients, copies, axis=0)))


def test_worked_gradient_spread():
    """Gradients at w = 0 of (w - c_k)^2 / 2, c = (0, 2 | 10, 14)."""
    gradients, clusters = -np.array([[0.0], [2], [10], [14]]), np.array([0, 0, 1, 1])
    assert distances.gradient_spread(gradients) == 32.75
    assert distances.gradient_spread(gradients, clusters=clusters) == 30.25


@given(seeds, st.integers(1, 6))
def test_gradient_spread_of_clusters_and_within_them_add_up(seed, clients):
    rng = np.random.default_rng(seed)
    gradients, weights = rng.normal(size=(clients, 3)), rng.uniform(0.1, 1, clients)
    clusters = rng.integers(0, 3, clients)
    within = sum(
        weights[clusters == z].sum()
        * distances.gradient_spread(gradients[clusters == z], weights[clusters == z])
        for z in set(clusters.tolist())
    )
    total = distances.gradient_spread(gradients, weights)
    between = distances.gradient_spread(gradients, weights, clusters)
    assert between + within / weights.sum() == pytest.approx(total)


def test_worked_weight_divergence():
    assert distances.weight_divergence(np.array([3.0, 4.2]), np.array([3.0, 4])) == pytest.approx(0.04)
    assert distances.weight_divergence(np.ones(3), np.ones(3)) == 0
