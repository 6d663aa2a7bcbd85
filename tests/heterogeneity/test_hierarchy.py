"""Merging clusters: the released CIFAR-10 matrix, small trees worked by hand, and what always holds."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import squareform
from support import refused

from fedflow.heterogeneity import LINKAGES, clusters, cut, cut_into, largest_gap, merge, sweep

# Angles between the classes of CIFAR-10 in degrees (raw pixels, p = 3), as the released demo prints them.
TRIANGLE = """
    6.83 6.55 8.65 9.29 10.48 10.78 7.56 6.66 8.99
    7.86 9.14 9.83 11.18 9.64 8.23 6.89 5.73
    4.14 3.69 6.36 5.41 3.66 10.46 11.28
    3.34 3.79 3.85 4.82 12.44 13.05
    4.50 3.38 4.65 13.03 13.64
    5.64 7.43 13.48 15.29
    5.40 13.82 13.33
    11.47 10.67
    7.44
"""
CIFAR10 = squareform([float(number) for number in TRIANGLE.split()])
VEHICLES_AND_ANIMALS = [0, 0, 1, 1, 1, 1, 1, 1, 0, 0]
FOUR = np.array([[0, 1, 2, 10], [1, 0, 2, 10], [2, 2, 0, 4], [10, 10, 4, 0]])


def line(*points: float) -> np.ndarray:
    return np.abs(np.subtract.outer(points, points))


@pytest.mark.parametrize(
    ("linkage", "heights"),
    [
        ("wpgma", [3.34, 3.615, 3.66, 4.865, 5.73, 5.894, 6.66, 7.5375, 11.497]),
        ("upgma", [3.34, 3.615, 3.66, 4.643, 5.2375, 5.73, 6.66, 7.5375, 10.881]),
        ("complete", [3.34, 3.66, 3.85, 5.41, 5.73, 6.66, 7.43, 8.99, 15.29]),
        ("single", [3.34, 3.38, 3.66, 3.69, 3.79, 5.73, 6.55, 6.66, 6.83]),
    ],
)
def test_cifar10_classes_merge_at_the_worked_heights(linkage, heights):
    assert merge(CIFAR10, linkage)[:, 2] == pytest.approx(heights, abs=1e-3)


@pytest.mark.parametrize(
    ("linkage", "low", "high"),
    [("wpgma", 7.5376, 11.496), ("upgma", 7.5376, 10.880), ("complete", 8.9901, 15.289)],
)
def test_cifar10_falls_into_vehicles_and_animals(linkage, low, high):
    for beta in (low, 10, high):
        assert clusters(CIFAR10, beta, linkage).tolist() == VEHICLES_AND_ANIMALS


def test_single_linkage_never_finds_vehicles_and_animals():
    tree = merge(CIFAR10, "single")
    assert cut(tree, 10).max() == 0
    assert cut(tree, 6.3).tolist() == [0, 1, 2, 2, 2, 2, 2, 2, 3, 1]
    assert all(cut(tree, beta).tolist() != VEHICLES_AND_ANIMALS for beta in tree[:, 2])


def test_wpgma_is_the_average_of_the_released_demo():
    tree = merge(CIFAR10)
    assert cut(tree, 6.3).tolist() == [0, 1, 2, 2, 2, 2, 2, 2, 3, 1]
    assert cut(tree, 7).tolist() == [0, 1, 2, 2, 2, 2, 2, 2, 0, 1]
    assert sweep(tree, [6.3, 7, 11.17, 12.28]).tolist() == [4, 3, 2, 1]


def test_the_largest_gap_gives_two_clusters_of_cifar10_classes():
    beta = largest_gap(merge(CIFAR10))
    assert beta == pytest.approx((7.5375 + 11.497) / 2, abs=1e-3)
    assert clusters(CIFAR10, beta).tolist() == VEHICLES_AND_ANIMALS


@pytest.mark.parametrize(("linkage", "heights"), [("wpgma", [1, 2, 7]), ("upgma", [1, 2, 8])])
def test_averages_weigh_rows_or_members(linkage, heights):
    assert merge(FOUR, linkage)[:, 2].tolist() == heights


@pytest.mark.parametrize("linkage", LINKAGES)
def test_a_newcomer_joins_at_the_worked_threshold(linkage):
    angles = np.array([[0, 10, 80], [10, 0, 70], [80, 70, 0]])
    assert clusters(angles, 20, linkage).tolist() == [0, 0, 1]
    joined = {"single": 70, "wpgma": 75, "upgma": 75, "complete": 80}[linkage]
    assert clusters(angles, joined, linkage).tolist() == [0, 0, 0]  # a merge at beta is made
    assert clusters(angles, joined - 1e-9, linkage).tolist() == [0, 0, 1]


def test_a_newcomer_can_move_old_members():
    assert clusters(line(0, 1, 2, 10, 11), 5, "single").tolist() == [0, 0, 0, 1, 1]
    assert clusters(line(0, 1, 2, 10, 11, 6), 5, "single").tolist() == [0] * 6
    for linkage in ("complete", "upgma", "wpgma"):
        assert clusters(line(0, 1, 2, 10, 11, 6), 5, linkage).tolist() == [0, 0, 0, 1, 1, 1]
    assert clusters(line(0, 10, 5), 6, "single").tolist() == [0, 0, 0]
    for linkage in ("complete", "upgma"):
        assert clusters(line(0, 10, 5), 6, linkage).tolist() == [0, 1, 0]


@given(
    seed=st.integers(0, 10**6),
    items=st.integers(1, 12),
    linkage=st.sampled_from(sorted(LINKAGES)),
    betas=st.lists(st.floats(0, 100), min_size=2, max_size=6),
)
def test_clusters_are_numbered_nested_and_fewer_as_beta_grows(seed, items, linkage, betas):
    points = np.random.default_rng(seed).integers(0, 100, (items, 2))  # whole numbers: ties occur
    distances = np.sqrt(np.square(points[:, None] - points).sum(-1))
    tree, betas = merge(distances, linkage), sorted(betas)
    cuts = [cut(tree, beta) for beta in betas]
    assert sweep(tree, betas).tolist() == [labels.max() + 1 for labels in cuts]
    for labels, coarser in pairwise(cuts):
        assert len({*zip(labels.tolist(), coarser.tolist())}) == labels.max() + 1
    for labels in cuts:
        assert list(dict.fromkeys(labels.tolist())) == list(range(labels.max() + 1))
    assert cut(tree, -1).tolist() == list(range(items)) and cut(tree, distances.max()).max() == 0
    for number in range(1, items + 1):
        assert cut_into(tree, number).max() + 1 == number


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: merge(FOUR, "average"), "linkage: 'average' is not accepted; expected one of complete, sin"),
        (lambda: merge(FOUR[:2]), r"dissimilarity: \(2, 4\) is not accepted"),
        (lambda: merge(np.array([[0, np.inf], [np.inf, 0]])), "expected finite numbers"),
        (lambda: largest_gap(merge(line(0, 1))), "items: 2 is not accepted; expected at least 3"),
        (lambda: cut_into(merge(FOUR), 5), "number: 5 is not accepted; expected a whole number from 1 to 4"),
    ],
)
def test_bad_input_is_named(call, message):
    with refused(message):
        call()
