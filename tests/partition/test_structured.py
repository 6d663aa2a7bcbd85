"""Structured groups: the check values of FLT's fourth scenario, and who is tested on what."""

import numpy as np
import pytest
from dealing import equal, make, part_sizes
from hypothesis import given
from hypothesis import strategies as st
from support import refused

from fedflow.partition import Samples, Split
from fedflow.partition.structured import Structured, chunk_sizes, growth
from fedflow.partition.structured_as_published import StructuredAsPublished

EMNIST = np.repeat(np.arange(47), 2400)


def split(scheme: Structured, labels: np.ndarray, clients: int, seed: int = 0) -> Split:
    return scheme.split(Samples(labels, np.unique(labels)), clients, np.random.default_rng(seed))


@pytest.mark.parametrize(
    ("total", "count", "beta", "least", "most", "first"),
    [
        (12_000, 240, 9.4771e-5, 26, 259, 124),
        (4_800, 240, 7.3841e-5, 11, 105, 105),
        (12_000, 60, 1.95933e-3, 101, 1256, 128),
        (4_800, 60, 1.65674e-3, 41, 429, None),
        (12_000, 24, 0.0137373, 251, 2981, None),
        (1_000, 10, 0.0576230, 51, 368, 56),
    ],
)
def test_chunks_grow_as_published(total, count, beta, least, most, first):
    sizes = chunk_sizes(total, count)
    assert growth(total, count, total // (2 * count), 2) == pytest.approx(beta, rel=5e-6)  # six digits
    assert (sizes.min(), sizes.max(), sizes.sum()) == (least, most, total)
    assert first is None or sizes[0] == first
    assert (np.diff(sizes[1:]) >= 0).all()


def test_the_median_client_holds_little_more_than_the_least():
    assert np.median(chunk_sizes(12_000, 240)) == 29


@given(st.integers(1, 300), st.integers(0, 50), st.integers(0, 5000), st.floats(0.3, 4))
def test_chunks_use_all_samples_and_hold_alpha_and_one_more(count, alpha, surplus, delta):
    total = count * (alpha + 1) + surplus
    sizes = chunk_sizes(total, count, alpha, delta)
    assert sizes.sum() == total and sizes.min() > alpha
    assert chunk_sizes(count + surplus, count).min() >= 1


def test_scenario_4_has_nine_groups_of_five_labels_and_one_of_two():
    made = split(Structured(), EMNIST, 600)
    assert np.bincount(made.groups).tolist() == [60] * 10
    for group in range(10):
        own = [rows for rows, g in zip(made.train, made.groups) if g == group]
        labels = np.unique(EMNIST[np.concatenate(own)])
        assert labels.tolist() == list(range(5 * group, min(5 * group + 5, 47)))
        assert np.array_equal(part_sizes(own), chunk_sizes(2400 * len(labels), 60))


def test_all_clients_of_a_group_are_tested_on_all_its_labels():
    labels, test = np.arange(700) % 7, np.arange(70) % 7
    made = make(Samples(labels, test), "structured", labels_per_group=5, clients=40)
    for k in range(40):
        expected = range(5) if k < 20 else (5, 6)
        assert np.unique(test[made.test(k)]).tolist() == list(expected)
        assert len(made.test(k)) == 10 * len(expected)


def test_as_published_the_last_group_is_tested_on_label_0_too():
    clean, flawed = (split(scheme, EMNIST, 20) for scheme in (Structured(), StructuredAsPublished()))
    assert [own.tolist() for own in clean.own[-2:]] == [[45, 46]] * 2
    assert [own.tolist() for own in flawed.own[-2:]] == [[0, 45, 46]] * 2
    assert equal(clean.own[:-2], flawed.own[:-2])
    assert equal(clean.train, flawed.train)


def test_without_a_shorter_group_there_is_no_label_to_pad():
    made = split(StructuredAsPublished(), np.arange(500) % 10, 4)
    assert [own.tolist() for own in made.own] == [list(range(5))] * 2 + [list(range(5, 10))] * 2


@pytest.mark.parametrize(
    ("scheme", "clients", "message"),
    [
        (Structured(), 1, r"partition.clients: 1 .* at least 2, one for every 5 of 10 labels"),
        (Structured(), 60, r"partition.clients: 60 .* less: 30 clients share the 20 samples of group 0"),
        (Structured(alpha=4), 10, r"partition.alpha: 4 .* less: 5 clients share the 20 samples of group 0"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(scheme, clients, message):
    with refused(message):
        split(scheme, np.arange(40) % 10, clients)
