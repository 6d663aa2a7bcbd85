"""k-means and k-medoids: the best of all clusterings of few points, whatever their order."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedflow.heterogeneity.centers import k_means, k_medoids

POINTS = torch.tensor([[5.0, 5], [0, 0], [1, 0], [4, 4], [0, 1]], dtype=torch.float64)


def test_k_means_of_two_clouds():
    assignment, means = k_means(POINTS, 2, np.random.default_rng(0))
    assert assignment.tolist() == [1, 0, 0, 1, 0]
    torch.testing.assert_close(means, torch.tensor([[1 / 3, 1 / 3], [4.5, 4.5]], dtype=torch.float64))


def test_k_means_does_not_depend_on_the_order_of_the_points():
    order = [4, 2, 0, 1, 3]
    (here, means), (there, same) = (k_means(p, 3, np.random.default_rng(0)) for p in (POINTS, POINTS[order]))
    assert there.tolist() == here[order].tolist()
    torch.testing.assert_close(same, means)


def test_k_medoids_of_two_clouds():
    x = np.array([0.0, 1, 2, 10, 11, 12])
    assignment, medoids = k_medoids(np.abs(np.subtract.outer(x, x)), 2)
    first = assignment[0]
    assert assignment.tolist() == [first] * 3 + [1 - first] * 3 and sorted(medoids) == [1, 4]


@given(st.integers(0, 10**6), st.integers(1, 4))
def test_no_exchange_of_one_medoid_is_better(seed, number):
    x = np.random.default_rng(seed).normal(size=(9, 2))
    d = np.linalg.norm(x[:, None] - x, axis=-1)
    assignment, medoids = k_medoids(d, number)
    cost = d[np.arange(9), medoids[assignment]].sum()
    assert cost == pytest.approx(d[:, medoids].min(1).sum())
    assert len(set(medoids)) == number and assignment[medoids].tolist() == list(range(number))
    for out in medoids:
        for item in set(range(9)) - set(medoids):
            assert d[:, [m for m in medoids if m != out] + [item]].min(1).sum() >= cost - 1e-9


def test_k_medoids_of_distinct_groups_is_the_best_of_all():
    x = np.array([0, 0.4, 5, 5.6, 9, 9.1])
    d = np.square(x[:, None] - x)
    best = min(combinations(range(6), 3), key=lambda m: d[:, m].min(1).sum())
    assert d[:, k_medoids(d, 3)[1]].min(1).sum() == d[:, best].min(1).sum()
