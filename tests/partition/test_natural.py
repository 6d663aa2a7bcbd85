"""Clients that are the values of a column."""

import numpy as np
import pytest
from dealing import make
from hypothesis import given
from hypothesis import strategies as st
from support import refused

from fedflow.data import DataColumn
from fedflow.partition import Samples
from fedflow.partition.natural import Natural

# Users 3, 5, 8 and 9 have 4, 3, 2 and 1 training samples and 1, 2, 0 and 1 test samples; 7 has a test sample.
TRAIN = np.array([3, 5, 8, 3, 5, 3, 8, 9, 5, 3])
TEST = np.array([5, 3, 9, 5, 7])
COLUMNS = {
    "user": DataColumn(TRAIN, TEST),
    "town": DataColumn(TRAIN // 5 * 10, TEST // 5 * 10),
    "day": DataColumn(np.arange(10), np.arange(5)),
}
SAMPLES = Samples(np.arange(10) % 2, np.arange(5) % 2, COLUMNS)


def split(clients: int, seed: int = 0, **options: object):
    return Natural.parse(options).split(SAMPLES, clients, np.random.default_rng(seed))


def test_every_value_is_a_client_with_its_own_training_and_test_samples():
    made = split(4)
    assert [rows.tolist() for rows in made.train] == [[0, 3, 5, 9], [1, 4, 8], [2, 6], [7]]
    assert [rows.tolist() for rows in made.pools] == [[1], [0, 3], [], [2]]
    assert [own.tolist() for own in made.own] == [[0], [1], [2], [3]]


@pytest.mark.parametrize(
    ("options", "count"),
    [({}, 4), ({"min_samples": 2}, 3), ({"min_samples": 3}, 2), ({"min_test": 1}, 3), ({"min_test": 2}, 1)],
)
def test_clients_left_out_means_all_that_qualify(options, count):
    made = make(SAMPLES, "natural", **options)
    assert len(made.sizes) == count == Natural.parse(options).count(SAMPLES)
    assert made.sizes.min() >= options.get("min_samples", 1)
    assert min(len(made.test(k)) for k in range(count)) >= options.get("min_test", 0)


def test_fewer_clients_are_a_random_choice_in_the_order_of_values():
    chosen = {tuple(TRAIN[rows[0]] for rows in split(2, seed).train) for seed in range(60)}
    assert chosen == {(3, 5), (3, 8), (3, 9), (5, 8), (5, 9), (8, 9)}


def test_a_value_without_test_samples_has_none_unless_some_are_held_out():
    made = make(SAMPLES, "natural", min_samples=2)
    assert [len(made.test(k)) for k in range(3)] == [1, 2, 0]
    made = make(SAMPLES, "natural", min_samples=2, holdout=0.5)
    assert made.held_out and [len(made.test(k)) for k in range(3)] == [2, 2, 1]
    assert set(TRAIN[made.test(0)]) == {3}


def test_another_column_plants_groups():
    assert split(4, groups="town").groups.tolist() == [0, 1, 1, 1]
    assert split(2, min_samples=3, groups="town").groups.tolist() == [0, 1]


@given(
    users=st.lists(st.integers(-2, 4), min_size=1, max_size=40),
    tests=st.lists(st.integers(-3, 6), max_size=20),
    limit=st.integers(1, 6),
    seed=st.integers(0, 99),
)
def test_runs_follow_each_other_within_the_samples_of_a_value(users, tests, limit, seed):
    users, tests = np.array(users), np.array(tests, dtype=int)
    samples = Samples(np.zeros(len(users), int), columns={"user": DataColumn(users, tests)})
    scheme = Natural(max_samples=limit, max_test=2)
    values = np.unique(users)
    assert scheme.count(samples) == len(values)
    made = scheme.split(samples, len(values), np.random.default_rng(seed))
    for column, parts, most in ((users, made.train, limit), (tests, made.pools, 2)):
        for value, rows in zip(values, parts):
            own = np.flatnonzero(column == value)
            assert len(rows) == min(most, len(own))
            assert len(rows) == 0 or np.array_equal(own[np.searchsorted(own, rows[0]) :][: len(rows)], rows)


def test_runs_start_anywhere():
    starts = {int(split(1, seed, min_samples=4, max_samples=2).train[0][0]) for seed in range(40)}
    assert starts == {0, 3, 5}


@pytest.mark.parametrize(
    ("options", "clients", "message"),
    [
        ({}, 5, r"partition.clients: 5 .* at most 4, the values of 'user' with enough samples"),
        ({"min_samples": 9}, 1, r"partition.min_samples: 9 .* less: no value of 'user' has that many"),
        ({"column": "writer"}, 1, r"partition.column: 'writer' .* a column of the dataset: day, town, user"),
        ({"groups": "city"}, 4, r"partition.groups: 'city' .* a column of the dataset: day"),
        ({"groups": "day"}, 4, r"partition.groups: 'day' .* a column with one value per user"),
    ],
)
def test_what_cannot_be_made_is_refused_in_one_line(options, clients, message):
    with refused(message):
        split(clients, **options)


def test_a_data_set_without_columns_is_refused():
    with refused(r"partition.column: 'user' .* of the dataset: it has none"):
        make(Samples(np.zeros(5, int)), "natural")


def test_clients_may_be_counted_without_public_samples() -> None:
    users = np.repeat(np.arange(20), 5)
    samples = Samples(np.arange(100) % 2, np.arange(20) % 2, {"user": DataColumn(users, np.arange(20))})
    made = make(samples, "natural", column="user", public=40)
    assert 0 < len(made.sizes) <= 20 and made.sizes.sum() == 60
