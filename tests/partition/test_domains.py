"""Clients of one domain each: MIX-4, rotations, equal shares."""

import numpy as np
import pytest
from dealing import disjoint, equal, make, part_sizes
from hypothesis import given
from hypothesis import strategies as st
from support import refused

from fedflow.data import DataColumn
from fedflow.partition import Samples
from fedflow.partition.domains import Domains

USPS = [1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644]
SVHN = [4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659]
MIX4 = np.array([USPS, [5000] * 10, SVHN, [6000] * 10])
MIX4_TEST = (2007, 10_000, 26_032, 10_000)


@pytest.fixture(scope="module")
def mix4() -> Samples:
    """The labels of MIX-4: 40 classes in four domains."""
    labels = np.repeat(np.arange(40), MIX4.ravel())
    test = np.repeat(np.arange(4), MIX4_TEST)
    column = DataColumn(labels // 10, test, ("usps", "cifar10", "svhn", "fmnist"))
    return Samples(labels, test * 10, {"domain": column})


def test_mix_4_has_50_samples_of_each_class_and_500_of_usps(mix4):
    entry = {"clients_per_domain": [14, 32, 26, 28], "samples_per_client": 500}
    made = make(mix4, "domains", **entry)
    assert (made.sizes == 500).all() and len(made.sizes) == 100
    assert made.groups.tolist() == [0] * 14 + [1] * 32 + [2] * 26 + [3] * 28
    counts = np.array([np.bincount(mix4.labels[made.train(k)], minlength=40) for k in range(100)])
    for k, domain in enumerate(made.groups):
        own = counts[k, domain * 10 : domain * 10 + 10]
        assert own.sum() == 500
        assert domain == 0 or (own == 50).all()
    assert np.ptp(counts[:14, :10]) > 10  # USPS cannot give 14 * 50 of each: 14 = floor(7291 / 500) blocks
    assert len(mix4.labels[mix4.labels < 10]) // 500 == 14
    assert np.unique(made.indices).size == 50_000
    assert [len(made.test(k)) for k in (0, 14, 46, 72)] == list(MIX4_TEST)
    assert np.array_equal(made.test(99), np.flatnonzero(mix4.columns["domain"].test == 3))


def test_a_fifteenth_client_of_usps_is_refused(mix4):
    scheme = Domains(clients_per_domain=[15, 32, 26, 27], samples_per_client=500)
    message = r"partition.samples_per_client: 500 .* at most 486, for 15 clients of usps with 7291 samples"
    with refused(message):
        scheme.split(mix4, 100, np.random.default_rng(0))


def test_rotations_are_cut_into_equal_random_shards():
    rotation = np.repeat([0, 90, 180, 270], 600)
    columns = {"rotation": DataColumn(rotation, np.repeat([0, 90, 180, 270], 100))}
    samples = Samples(np.tile(np.arange(600) % 10, 4), np.arange(400) % 10, columns)
    made = Domains(column="rotation", draw="random").split(samples, 24, np.random.default_rng(0))
    assert made.groups.tolist() == np.repeat(np.arange(4), 6).tolist()
    assert set(part_sizes(made.train)) == {100} and len(made.train) == 24 and disjoint(made.train)
    assert all((rotation[rows] == g * 90).all() for rows, g in zip(made.train, made.groups))
    assert [len(pool) for pool in made.pools] == [100] * 4


@given(
    counts=st.lists(st.lists(st.integers(4, 12), min_size=2, max_size=2), min_size=1, max_size=4),
    shares=st.data(),
    each=st.sampled_from([None, 2, 4]),
    draw=st.sampled_from(["balanced", "random"]),
    seed=st.integers(0, 99),
)
def test_parts_are_disjoint_of_one_domain_and_of_exact_size(counts, shares, each, draw, seed):
    domains = len(counts)
    clients = shares.draw(st.lists(st.integers(1, 2), min_size=domains, max_size=domains))
    labels = np.tile([0, 1], domains).repeat(np.ravel(counts))
    domain = np.arange(domains).repeat(np.sum(counts, axis=1))
    order = np.random.default_rng(seed).permutation(len(labels))
    labels, domain = labels[order], domain[order]
    samples = Samples(labels, np.zeros(domains, int), {"domain": DataColumn(domain, np.arange(domains))})
    scheme = Domains(clients_per_domain=clients, samples_per_client=each, draw=draw)
    made, again = (scheme.split(samples, sum(clients), np.random.default_rng(seed)) for _ in range(2))
    assert scheme.count(samples) == sum(clients) and equal(made.train, again.train)
    assert disjoint(made.train) and (each is not None or part_sizes(made.train).sum() == len(labels))
    for rows, group in zip(made.train, made.groups):
        assert (domain[rows] == group).all() and (each is None or len(rows) == each)
        if draw == "balanced" and each is not None:  # two clients of four need 4 of each label at most
            assert np.bincount(labels[rows]).tolist() == [each // 2, each // 2]


@pytest.mark.parametrize(
    ("options", "clients", "message"),
    [
        ({"clients_per_domain": [1, 2]}, 3, r"clients_per_domain: \[1, 2\] .* 3 whole numbers, one per "),
        ({"clients_per_domain": [1, 2, 3]}, 7, r"clients_per_domain: .* that sum to clients, which is 7"),
        ({}, 2, r"partition.clients: 2 .* at least 3, one per domain"),
        ({"samples_per_client": 25}, 3, r"samples_per_client: 25 .* a multiple of 2, the labels of a domain"),
        ({"samples_per_client": 40}, 9, r"samples_per_client: 40 .* at most 33, for 3 clients of 0 with 100"),
        ({"column": "place"}, 3, r"partition.column: 'place' .* a column of the dataset: domain"),
    ],
)
def test_what_cannot_be_made_is_refused_in_one_line(options, clients, message):
    column = DataColumn(np.repeat([0, 1, 2], 100), np.empty(0, int))
    samples = Samples(np.arange(300) % 2, columns={"domain": column})
    with refused(message):
        Domains.parse(options).split(samples, clients, np.random.default_rng(0))


def test_clients_may_only_be_left_out_where_the_list_is_given(mix4):
    with refused(r"partition.clients: missing; expected a whole number >= 1"):
        make(mix4, "domains")
    with refused(r"partition.clients_per_domain: 0 .* each item a whole number >= 1"):
        Domains(clients_per_domain=[3, 0])
