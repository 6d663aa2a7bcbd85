"""Clients of samples that have exactly one of several attributes."""

import numpy as np
import pytest
from dealing import make
from hypothesis import given
from hypothesis import strategies as st
from support import refused

from fedflow.data import DataColumn
from fedflow.partition import Samples
from fedflow.partition.attributes import Attributes

NAMES = ("smiling", "wavy_hair", "wearing_hat")


def table(train: np.ndarray, test: np.ndarray) -> Samples:
    """Rows of three attributes."""
    columns = {name: DataColumn(train[:, i], test[:, i]) for i, name in enumerate(NAMES)}
    return Samples(np.zeros(len(train), int), np.zeros(len(test), int), columns)


bits = st.lists(st.lists(st.integers(0, 1), min_size=3, max_size=3), min_size=3, max_size=60)


@given(train=bits, test=bits, clients=st.integers(3, 9), seed=st.integers(0, 99))
def test_clients_divide_the_samples_of_exactly_one_attribute(train, test, clients, seed):
    train, test = np.array(train), np.array(test)
    made = Attributes().split(table(train, test), clients, np.random.default_rng(seed))
    assert made.groups.tolist() == sorted(made.groups) and set(made.groups) == {0, 1, 2}
    assert np.ptp(np.bincount(made.groups)) <= 1
    for attribute in range(3):
        alone = np.eye(3, dtype=int)[attribute]
        own = [rows for rows, group in zip(made.train, made.groups) if group == attribute]
        assert np.ptp([len(rows) for rows in own]) <= 1
        assert np.array_equal(np.sort(np.concatenate(own)), np.flatnonzero((train == alone).all(1)))
        assert np.array_equal(made.pools[attribute], np.flatnonzero((test == alone).all(1)))


def test_a_client_is_tested_on_the_test_samples_of_its_attribute():
    train, test = np.tile(np.eye(3, dtype=int), (8, 1)), np.tile(np.eye(3, dtype=int), (2, 1))
    made = make(table(train, test), "attributes", clients=6)
    assert [made.test(k).tolist() for k in range(6)] == [[0, 3], [0, 3], [1, 4], [1, 4], [2, 5], [2, 5]]


@pytest.mark.parametrize(
    ("options", "clients", "message"),
    [
        ({"columns": ["smiling", "hat"]}, 4, r"columns: 'hat' .* a column of the dataset: number, smi"),
        ({"columns": ["number"]}, 4, r"partition.columns: 'number' .* columns of zeros and ones"),
        ({"columns": []}, 4, r"partition.columns: \[\] .* different columns"),
        ({"columns": ["smiling", "smiling"]}, 4, r"partition.columns: .* different columns"),
        ({}, 2, r"partition.clients: 2 .* at least 3"),
    ],
)
def test_what_cannot_be_made_is_refused_in_one_line(options, clients, message):
    samples = table(np.tile(np.eye(3, dtype=int), (8, 1)), np.eye(3, dtype=int))
    samples.columns["number"] = DataColumn(np.arange(24), np.arange(3))
    with refused(message):
        Attributes.parse(options).split(samples, clients, np.random.default_rng(0))
