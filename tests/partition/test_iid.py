"""IID with lognormal sizes and with exact class balance."""

import doctest
import sys

import numpy as np
import pytest
from dealing import deal, label_counts, make, part_sizes
from hypothesis import given
from hypothesis import strategies as st
from support import refused

from fedflow.partition import SCHEMES, Samples
from fedflow.partition.dirichlet_exact import DirichletExact
from fedflow.partition.iid import IID
from fedflow.partition.sizes import draw_sizes, turns


def test_lognormal_sizes_have_the_derived_range_and_spread():
    """FedDyn, N / m = 500, sigma 0.3: "typically from about 226 to 1023, sd 152"."""
    drawn = [draw_sizes(50_000, 100, 0.3, np.random.default_rng(seed)) for seed in range(50)]
    assert {sizes.sum() for sizes in drawn} == {50_000}
    assert np.mean([sizes.std() for sizes in drawn]) == pytest.approx(152, rel=0.05)
    assert np.mean([sizes.min() for sizes in drawn]) == pytest.approx(226, rel=0.1)
    assert np.mean([sizes.max() for sizes in drawn]) == pytest.approx(1023, rel=0.1)


def test_lognormal_sizes_are_rescaled_floored_and_the_first_takes_the_remainder():
    sizes = draw_sizes(1000, 7, 0.5, np.random.default_rng(3))
    drawn = np.random.default_rng(3).lognormal(np.log(1000 / 7), 0.5, 7)
    floors = (drawn / drawn.sum() * 1000).astype(int)
    assert sizes[1:].tolist() == floors[1:].tolist() and 0 < sizes[0] - floors[0] < 7


@given(
    total=st.integers(0, 500),
    clients=st.integers(1, 20),
    sigma=st.sampled_from([0, 0.3, 2.0]),
    seed=st.integers(0, 99),
)
def test_sizes_sum_to_the_total_and_are_equal_without_sigma(total, clients, sigma, seed):
    sizes = draw_sizes(max(1, total), clients, sigma, np.random.default_rng(seed))
    assert sizes.sum() == max(1, total) and sizes.min() >= 0 and len(sizes) == clients
    if sigma == 0:
        assert np.ptp(sizes) <= 1 and (np.diff(sizes) <= 0).all()


@given(sizes=st.lists(st.integers(0, 12), min_size=1, max_size=8), cut=st.floats(0, 1))
def test_turns_keep_sizes_and_any_stretch_holds_everybody_s_share(sizes, cut):
    owner = turns(np.array(sizes))
    assert np.bincount(owner, minlength=len(sizes)).tolist() == sizes
    until = int(cut * len(owner))
    share = np.bincount(owner[:until], minlength=len(sizes))
    assert (np.abs(share - cut * np.array(sizes)) < 2).all()


def test_stratified_clients_hold_the_same_number_of_each_class():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(100), 50))
    parts = deal(IID(stratified=True), labels, 10)
    assert all((np.bincount(labels[rows]) == 5).all() for rows in parts)
    assert np.unique(np.concatenate(parts)).size == 5000


def test_stratified_clients_of_other_sizes_hold_nearly_their_share_of_each_class():
    labels = np.arange(5000) % 10
    parts = deal(IID(stratified=True, sigma=0.3), labels, 20)
    sizes = part_sizes(parts)
    counts = label_counts(labels, parts)
    assert np.ptp(sizes) > 50 and sizes.sum() == 5000
    assert (np.abs(counts - sizes[:, None] / 10) < 2).all()


def test_unequal_parts_use_every_sample_once():
    parts = deal(IID(sigma=0.3), np.zeros(1000, int), 20)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(1000))
    assert [len(rows) for rows in parts] == draw_sizes(1000, 20, 0.3, np.random.default_rng(0)).tolist()


@pytest.mark.parametrize("stratified", [False, True])
def test_given_sizes_are_those_of_the_clients_and_the_rest_is_unused(stratified):
    labels, wanted = np.arange(1000) % 10, [10, 200, 40, 300]
    parts = deal(IID(sizes=wanted, stratified=stratified), labels, 4)
    assert [len(part) for part in parts] == wanted
    assert np.unique(np.concatenate(parts)).size == 550
    counts = np.array([np.bincount(labels[part], minlength=10) for part in parts])
    even = np.ptp(counts, axis=1) <= 1
    assert even.all() if stratified else not even[1:].any()


def test_a_dirichlet_prior_fills_given_sizes():
    labels = np.arange(1000) % 10
    parts = deal(DirichletExact(sizes=[5, 100, 50]), labels, 3)
    assert [len(part) for part in parts] == [5, 100, 50]
    assert np.ptp(np.bincount(labels[parts[1]], minlength=10)) > 10


def test_a_list_of_sizes_says_how_many_clients_there_are():
    partition = make(Samples(np.arange(100) % 10, np.arange(10)), "iid", sizes=[30, 20, 10])
    assert partition.sizes.tolist() == [30, 20, 10] and partition.summary()["samples_unused"] == 40


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sizes": [30, 20]}, r"sizes: \[30, 20\] .* 3 whole numbers, one per client, .* at most 100"),
        ({"sizes": [30, 20, 51]}, r"partition.sizes: .* that sum to at most 100"),
        ({"sizes": [30, 0, 10]}, r"partition.sizes: 0 .* each item a whole number >= 1"),
        ({"sizes": [30, 20, 10], "sigma": 0.3}, r"partition.sigma: 0.3 .* 0, because sizes is given"),
        ({"sigma": 200}, r"partition.sigma: 200.0 .* a number >= 0 and <= 10"),  # its sizes would overflow
        ({"sigma": -0.1}, r"partition.sigma: -0.1 .* a number >= 0"),
    ],
)
@pytest.mark.parametrize("scheme", ["iid", "dirichlet_exact"])
def test_sizes_that_cannot_be_are_refused(scheme, options, message):
    with refused(message):
        deal(SCHEMES[scheme].parse(options), np.arange(100) % 10, 3)


@pytest.mark.filterwarnings("error")
def test_the_largest_spread_can_be_drawn():
    assert part_sizes(deal(IID(sigma=10), np.arange(1000) % 10)).sum() == 1000


def test_the_examples_of_sizes_are_true():
    result = doctest.testmod(sys.modules[turns.__module__], extraglobs={"np": np})
    assert result.attempted == 1 and result.failed == 0
