"""Super clusters of classes: planted ones, and those of the real images."""

import numpy as np
import pytest
from support import refused
from test_hierarchy import CIFAR10

from fedflow.data import data_root, source
from fedflow.heterogeneity import class_proximity, class_super_clusters

ROOT = data_root()


@pytest.fixture
def planted() -> tuple[np.ndarray, np.ndarray]:
    """Five classes around two directions of R^8: 0, 2 and 4 around the first, 1 and 3 around the second."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(5), 40)
    class_means = np.eye(8)[[0, 1, 0, 1, 0]] + 0.05 * rng.normal(size=(5, 8))
    return class_means[y] + 0.05 * rng.normal(size=(200, 8)), y


def test_planted_super_clusters_are_found(planted):
    x, y = planted
    assert class_super_clusters(x, y, p=1) == [[0, 2, 4], [1, 3]]
    assert class_super_clusters(x, y, p=1, number=1) == [[0, 1, 2, 3, 4]]
    assert class_super_clusters(x, y, p=1, threshold=0) == [[0], [1], [2], [3], [4]]


def test_smaller_thresholds_give_more_super_clusters(planted):
    counts = [len(class_super_clusters(*planted, p=1, threshold=beta)) for beta in (0, 5, 40, 90)]
    assert counts == sorted(counts, reverse=True) and counts[0] == 5 and counts[-1] == 1


def test_bad_input_is_named(planted):
    x, y = planted
    with refused("number: 2 is not accepted; expected null, because a threshold is given"):
        class_super_clusters(x, y, threshold=10, number=2)
    with refused("y: 'no sample of class 3' is not accepted"):
        class_super_clusters(x[y != 3], y[y != 3])


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / "cifar10.tar").is_file(), reason="no cifar10.tar in the data root")
def test_cifar10_classes_are_vehicles_and_animals():
    raw = source("cifar10").load(ROOT)
    # JPEG pixels: 0.05 degrees from the released matrix
    assert class_proximity(raw.x_train, raw.y_train) == pytest.approx(CIFAR10, abs=0.1)
    assert class_super_clusters(raw.x_train, raw.y_train) == [[0, 1, 8, 9], [2, 3, 4, 5, 6, 7]]


@pytest.mark.skipif(not (ROOT / "fmnist.npz").is_file(), reason="no fmnist.npz in the data root")
def test_fmnist_classes_are_as_far_apart_as_published():
    raw = source("fmnist").load(ROOT)
    angles = class_proximity(raw.x_train, raw.y_train)
    assert angles[1, [3, 8]] == pytest.approx([22.47, 51.7], abs=0.03)  # Trouser to Dress, Trouser to Bag
    assert class_super_clusters(raw.x_train, raw.y_train, number=3) == [[0, 1, 3], [2, 4, 6, 8], [5, 7, 9]]
