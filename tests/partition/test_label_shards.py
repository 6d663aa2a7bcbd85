"""Label shards of a fixed length, and dealt in order."""

import numpy as np
import pytest
from dealing import deal, disjoint, equal, part_sizes
from hypothesis import given
from hypothesis import strategies as st
from support import refused

from fedflow.partition.shards import Shards


@pytest.mark.parametrize(
    ("classes", "each", "length", "shards"),
    [(10, 5000, 250, 200), (10, 6000, 250, 240), (100, 500, 125, 400)],  # CIFAR-10, MNIST (about), CIFAR-100
)
def test_sub_fedavg_deals_two_shards_of_a_fixed_length(classes, each, length, shards):
    labels = np.repeat(np.arange(classes), each)
    parts = deal(Shards(length=length), labels)
    assert set(part_sizes(parts)) == {2 * length}
    assert {len(np.unique(labels[rows])) for rows in parts} == {1, 2}
    assert disjoint(parts) and len(labels) // length == shards


@pytest.mark.parametrize("clients", [50, 100, 500])
@pytest.mark.parametrize("each", [5000, 6000])  # CIFAR-10, MNIST (about)
def test_shards_dealt_in_order_make_exactly_five_pairs_of_classes(clients, each):
    """SuPerFed's code; the classic deal makes nearly all pairs."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), each))
    parts = deal(Shards(order="in_order"), labels, clients)
    pairs = [tuple(np.unique(labels[rows]).tolist()) for rows in parts]
    assert {pair: pairs.count(pair) for pair in sorted(pairs)} == {(c, c + 5): clients // 5 for c in range(5)}
    assert {len(rows) for rows in parts} == {10 * each // clients}
    drawn = deal(Shards(), labels, clients)
    assert len({tuple(np.unique(labels[rows]).tolist()) for rows in drawn}) > 20


def test_client_j_gets_the_shards_j_and_j_plus_n():
    parts = deal(Shards(order="in_order", length=2), np.arange(20), 4)
    assert [rows.tolist() for rows in parts] == [[0, 1, 8, 9], [2, 3, 10, 11], [4, 5, 12, 13], [6, 7, 14, 15]]


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=80),
    clients=st.integers(1, 6),
    each=st.integers(1, 3),
    length=st.integers(1, 5),
    order=st.sampled_from(["random", "in_order"]),
    seed=st.integers(0, 99),
)
def test_shards_are_runs_of_the_sorted_samples(labels, clients, each, length, order, seed):
    labels = np.array(labels)
    scheme = Shards(shards_per_client=each, length=length, order=order)
    if clients * each * length > len(labels):
        with refused(r"partition.length: \d .* at most \d for \d+ shards"):
            deal(scheme, labels, clients, seed)
        return
    parts = deal(scheme, labels, clients, seed)
    assert equal(parts, deal(scheme, labels, clients, seed))
    place = np.argsort(np.argsort(labels, kind="stable"))
    for rows in parts:
        assert (np.diff(rows) > 0).all() and len(rows) == each * length
        assert np.bincount(place[rows] // length).tolist().count(length) == each  # each shard whole
    assert disjoint(parts)


def test_too_long_shards_name_the_length_that_would_do():
    with refused(r"partition.length: 400 .* at most 250 for 200 shards"):
        deal(Shards(length=400), np.arange(50_000) % 10)
