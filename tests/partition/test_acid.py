"""ACID and ALID: the derived counts, pairs and names."""

from itertools import combinations

import numpy as np
import pytest
from dealing import deal, disjoint, label_counts, part_sizes
from hypothesis import given
from hypothesis import strategies as st
from support import refused

from fedflow.partition import PartitionParams, Samples, make_partition
from fedflow.partition.acid import Acid

PER_CLASS = {3: ({166, 167}, {33, 34}), 5: ({100}, {20}), 7: ({71, 72}, {14, 15})}
DISJOINT_PAIRS = {(10, 3): 2500, (10, 5): 500, (10, 7): 0, (100, 3): 4750, (100, 5): 4550, (100, 7): 4350}


def cifar(classes: int) -> Samples:
    """The labels of CIFAR-10 or CIFAR-100."""
    return Samples(np.arange(50_000) % classes, np.arange(10_000) % classes)


@pytest.mark.parametrize(("classes", "held"), sorted(DISJOINT_PAIRS))
def test_every_client_gets_500_and_100_samples_as_derived(classes, held):
    samples = cifar(classes)
    made = Acid(classes_per_client=held).split(samples, 100, np.random.default_rng(0))
    train = label_counts(samples.labels, made.train)
    test = label_counts(samples.test_labels, made.pools)
    assert (train.sum(1) == 500).all() and (test.sum(1) == 100).all()
    for parts, count in ((made.train, 50_000), (made.pools, 10_000)):
        assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(count))
    for counts, expected in zip((train, test), PER_CLASS[held]):
        assert set(counts[counts > 0].tolist()) == expected
        for k in range(100):
            assert set(np.flatnonzero(counts[k])) == {(k + j) % classes for j in range(held)}
    assert ((train > 0).sum(0) == 100 * held // classes).all()
    shared = sum(not (train[a] * train[b]).any() for a, b in combinations(range(100), 2))
    assert shared == DISJOINT_PAIRS[classes, held]


def test_the_examples_of_the_paper():
    samples = cifar(10)
    parts = Acid(classes_per_client=5).split(samples, 100, np.random.default_rng(0)).train
    assert set(samples.labels[parts[10]]) == {0, 1, 2, 3, 4}
    assert set(samples.labels[parts[25]]) == {5, 6, 7, 8, 9}


@pytest.mark.parametrize("held", [3, 5, 7])
def test_alid_renames_the_classes_of_a_client_alike_in_training_and_test(held):
    entry = {"dataset": "d", "scheme": "acid", "clients": 100, "classes_per_client": held, "anonymous": True}
    samples = cifar(10)
    made = make_partition(PartitionParams.parse(entry), samples)
    assert made.classes == held
    orders = set()
    for k in range(100):
        train, test = made.train(k), made.test(k)
        names = dict(zip(samples.labels[train].tolist(), made.train_labels[train].tolist()))
        assert sorted(names.values()) == list(range(held))
        assert [names[c] for c in samples.labels[train].tolist()] == made.train_labels[train].tolist()
        assert [names[c] for c in samples.test_labels[test].tolist()] == made.test_labels[test].tolist()
        orders.add(tuple(names[(k + j) % 10] for j in range(held)))
    assert len(orders) > 5  # permutations, not one for all


def test_acid_keeps_the_labels():
    made = Acid().split(cifar(10), 100, np.random.default_rng(0))
    assert made.train_labels is None and made.test_labels is None


def test_uneven_classes_are_evened_out_by_moving_samples():
    """Class 0 has 10 samples and its owners 0 and 3 need 20 more, from 1 and 2 by way of class 1 and 3."""
    labels = np.repeat(np.arange(4), [10, 90, 90, 90])
    counts = label_counts(labels, deal(Acid(classes_per_client=2), labels, 4))
    assert (counts.sum(1) == 70).all() and counts.sum() == 280
    assert not counts[[0, 1, 2, 3], [2, 3, 0, 1]].any()


@given(
    stock=st.lists(st.integers(1, 30), min_size=2, max_size=6),
    clients=st.integers(1, 8),
    held=st.integers(1, 6),
    seed=st.integers(0, 99),
)
def test_parts_are_disjoint_of_own_classes_and_of_even_size(stock, clients, held, seed):
    classes = len(stock)
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(classes), stock))
    scheme = Acid(classes_per_client=min(held, classes))
    made = scheme.split(Samples(labels, labels[::2]), clients, np.random.default_rng(seed))
    for parts, y in ((made.train, labels), (made.pools, labels[::2])):
        assert disjoint(parts) and np.ptp(part_sizes(parts)) <= 2
        for k, rows in enumerate(parts):
            assert ((y[rows] - k) % classes < scheme.classes_per_client).all()
        if scheme.classes_per_client == classes:
            assert part_sizes(parts).sum() == len(y)


def test_more_classes_than_there_are_are_refused():
    with refused(r"partition.classes_per_client: 5 .* at most 4, the number of classes"):
        deal(Acid(), np.arange(40) % 4, 4)
