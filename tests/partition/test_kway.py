"""K-way tasks: the published counts, and the same names in training and test."""

import numpy as np
import pytest
from dealing import disjoint, label_counts, make
from support import refused

from fedflow.partition import Samples
from fedflow.partition.kway import KWay

FEW = np.arange(60) % 10


def tasks(per_class: int, test_per_class: int, classes: int = 100) -> Samples:
    """Labels of CIFAR-100 or miniImageNet, in an order without pattern."""
    rng = np.random.default_rng(1)
    each = (rng.permutation(np.arange(classes).repeat(count)) for count in (per_class, test_per_class))
    return Samples(*each)


@pytest.mark.parametrize(
    ("ways", "clients", "sizes", "times", "pieces"),
    [
        (5, 200, (500, 100), 10, (50, 10)),
        (4, 200, (500, 100), 8, (62, 12)),
        (3, 200, (500, 100), 6, (83, 16)),
        (5, 100, (500, 100), 5, (100, 20)),  # miniImageNet
        (5, None, (500, 100), 1, (500, 100)),  # disjoint
    ],
)
def test_every_class_is_in_equally_many_tasks_with_the_published_counts(ways, clients, sizes, times, pieces):
    samples = tasks(*sizes)
    made = make(samples, "kway", ways=ways, clients=clients)
    count = clients or 20
    parts, pools = ([rows(k) for k in range(count)] for rows in (made.train, made.test))
    assert len(made.sizes) == count and made.classes == ways and disjoint(parts) and disjoint(pools)
    for labels, rows, piece in ((samples.labels, parts, pieces[0]), (samples.test_labels, pools, pieces[1])):
        held = label_counts(labels, rows)
        assert set(held[held > 0]) == {piece}
        assert ((held > 0).sum(0) == times).all() and ((held > 0).sum(1) == ways).all()


def test_a_task_names_its_classes_alike_in_training_and_test_and_tasks_differ():
    samples = tasks(40, 10, classes=10)
    made = make(samples, "kway", ways=4, clients=10)
    named = set()
    for k in range(10):
        train, test = made.train(k), made.test(k)
        pairs = set(zip(samples.labels[train].tolist(), made.train_labels[train].tolist()))
        assert pairs == set(zip(samples.test_labels[test].tolist(), made.test_labels[test].tolist()))
        assert sorted(name for _, name in pairs) == [0, 1, 2, 3]
        named |= pairs
    assert len(named) > 15  # of 40: a class has no fixed name


@pytest.mark.parametrize(
    ("ways", "clients", "message"),
    [
        (11, 10, "partition.ways: 11 .* at most 10, the number of classes"),
        (5, 21, "partition.clients: 21 .* a multiple of 2: 5 of 10 classes each"),
        (4, 12, "partition.clients: 12 .* a multiple of 5"),
        (5, 14, "partition.clients: 14 .* at most 12: each class is in 7 tasks, and one has 6 samples"),
    ],
)
def test_tasks_that_cannot_be_made_are_refused(ways, clients, message):
    with refused(message):
        KWay(ways=ways).split(Samples(FEW, FEW), clients, np.random.default_rng(0))
