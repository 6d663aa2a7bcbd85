"""Label shards of a fixed length, and dealt in order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import refused

from fedflow.partition import Samples
from fedflow.partition.shards import Shards


@pytest.mark.parametrize(
    ("classes", "each", "length", "shards"),
    [(10, 5000, 250, 200), (10, 6000, 250, 240), (100, 500, 125, 400)],  # CIFAR-10, MNIST (about), CIFAR-100
)
def test_sub_fedavg_deals_two_shards_of_a_fixed_length(classes, each, length, shards):
    labels = np.repeat(np.arange(classes), each)
    parts = Shards(length=length).split(Samples(labels), 100, np.random.default_rng(0)).train
    assert {len(rows) for rows in parts} == {2 * length}
    assert {len(np.unique(labels[rows])) for rows in parts} == {1, 2}
    used = np.concatenate(parts)
    assert np.unique(used).size == used.size == 200 * length
    assert len(labels) // length == shards


def test_shards_dealt_in_order_make_exactly_five_pairs_of_classes():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 500))
    parts = Shards(order="in_order").split(Samples(labels), 100, np.random.default_rng(0)).train
    pairs = {tuple(np.unique(labels[rows]).tolist()) for rows in parts}
    assert pairs == {(0, 5), (1, 6), (2, 7), (3, 8), (4, 9)}
    assert {len(rows) for rows in parts} == {50}


def test_client_j_gets_the_shards_j_and_j_plus_n():
    parts = (
        Shards(order="in_order", length=2).split(Samples(np.arange(20)), 4, np.random.default_rng(0)).train
    )
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
            scheme.split(Samples(labels), clients, np.random.default_rng(seed))
        return
    parts, again = (
        scheme.split(Samples(labels), clients, np.random.default_rng(seed)).train for _ in range(2)
    )
    place = np.argsort(np.argsort(labels, kind="stable"))
    for rows, same in zip(parts, again):
        assert np.array_equal(rows, same) and (np.diff(rows) > 0).all() and len(rows) == each * length
        assert np.bincount(place[rows] // length).tolist().count(length) == each  # each shard whole
    assert np.unique(np.concatenate(parts)).size == clients * each * length


def test_too_long_shards_name_the_length_that_would_do():
    with refused(r"partition.length: 400 .* at most 250 for 200 shards"):
        Shards(length=400).split(Samples(np.arange(50_000) % 10), 100, np.random.default_rng(0))
