"""Noniid1: how many labels of the first client the others hold."""

import numpy as np
import pytest
from dealing import deal, label_counts
from hypothesis import assume, given
from hypothesis import strategies as st
from support import refused

from fedflow.partition import Samples
from fedflow.partition.noniid1 import NonIID1, shared_labels

CIFAR100 = np.repeat(np.arange(100), 500)


def test_two_thirds_share_half_of_the_base_set_and_one_third_a_quarter_at_most():
    split = NonIID1().split(Samples(CIFAR100), 300, np.random.default_rng(0))
    held = label_counts(CIFAR100, split.train) > 0
    shared = (held & held[0]).sum(1)
    assert (held.sum(1) == 20).all() and split.groups[0] == 0 and shared[0] == 20
    assert shared[split.groups == 0].min() >= 10 and shared[split.groups == 1].max() <= 5
    assert split.groups.mean() == pytest.approx(1 / 3, abs=0.08)  # three times its sd
    assert sum(map(len, split.train)) == 50_000


def test_shares_of_the_base_set_are_rounded_up():
    """m = 20, K = 100: x in 50..99 gives ceil(x / 5) = 10..20, y in 0..25 gives 0..5."""
    shared, kind = shared_labels(20, 100, 20_000, np.random.default_rng(0))
    assert np.unique(shared[kind == 0]).tolist() == list(range(10, 20))  # all 20 become 19
    assert np.unique(shared[kind == 1]).tolist() == list(range(10, 21))
    assert np.unique(shared[kind == 2]).tolist() == list(range(6))
    assert np.bincount(kind) / 20_000 == pytest.approx([1 / 3] * 3, abs=0.015)
    # x = 96..99 of 50 values gives 20 labels; y = 0 of 26 values gives none
    assert (shared[kind == 1] == 20).mean() == pytest.approx(4 / 50, abs=0.015)
    assert (shared[kind == 2] == 0).mean() == pytest.approx(1 / 26, abs=0.015)


@given(st.integers(2, 12), st.integers(1, 30), st.floats(0.01, 0.5), st.integers(0, 2**32))
def test_labels_are_divided_equally_over_their_owners(classes, clients, fraction, seed):
    labels = np.arange(40 * classes) % classes
    assume(2 * max(1, round(fraction * classes)) <= classes)
    parts = deal(NonIID1(fraction=fraction), labels, clients, seed)
    counts = label_counts(labels, parts)
    held = counts > 0
    assert (held.sum(1) == max(1, round(fraction * classes))).all()
    for c in np.flatnonzero(held.any(0)):
        assert counts[:, c].sum() == 40 and np.ptp(counts[held[:, c], c]) <= 1


@pytest.mark.parametrize(
    ("labels", "clients", "fraction", "message"),
    [
        (np.zeros(9, int), 2, 0.2, r"partition.fraction: 0.2 .* at most 0 of 1 labels"),
        (np.arange(15) % 3, 2, 0.5, r"partition.fraction: 0.5 .* at most 1 of 3 labels"),
        (np.arange(30) % 10, 30, 0.6, r"partition.fraction: 0.6 .* > 0 and <= 0.5"),
        (np.arange(30) % 10, 30, 0.5, r"partition.clients: 30 .* fewer: \d+ clients share 3 samples"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(labels, clients, fraction, message):
    with refused(message):
        deal(NonIID1(fraction=fraction), labels, clients)
