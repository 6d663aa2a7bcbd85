"""Dirichlet by client: published size ranges, and every sample used once."""

import numpy as np
import pytest
from dealing import deal, part_sizes
from hypothesis import given
from hypothesis import strategies as st
from support import refused

from fedflow.partition import Scheme
from fedflow.partition.dirichlet import TRIES
from fedflow.partition.dirichlet_clients import DirichletClients

CIFAR10 = np.repeat(np.arange(10), 5000)


def drawn_sizes(scheme: Scheme, draws: int) -> np.ndarray:
    return np.array([part_sizes(deal(scheme, CIFAR10, seed=seed)) for seed in range(draws)])


@pytest.mark.parametrize(
    ("alpha", "smallest", "largest"), [(0.05, 365, 746), (0.2, 417, 572), (0.9, 452, 532)]
)
def test_sizes_have_the_published_range(alpha, smallest, largest):
    """The published numbers are of one draw; means of ten are within a fifth of them."""
    drawn = drawn_sizes(DirichletClients(alpha=alpha), 10)
    assert (drawn.sum(1) == 50_000).all()
    assert drawn.min(1).mean() == pytest.approx(smallest, rel=0.2)
    assert drawn.max(1).mean() == pytest.approx(largest, rel=0.2)


def test_sizes_are_far_more_equal_than_class_by_class():
    """`dirichlet` without its balance step, which would even them out: ten classes of 5,000 samples."""
    by_class = 5_000 * np.random.default_rng(0).dirichlet([0.2] * 100, (3, 10)).sum(1).std(1).mean()
    by_client = drawn_sizes(DirichletClients(alpha=0.2), 3).std(1).mean()
    assert by_client < by_class / 4


@given(
    stock=st.lists(st.integers(0, 30), min_size=1, max_size=5).filter(lambda n: n[-1] > 0),
    clients=st.integers(1, 8),
    alpha=st.sampled_from([1e-4, 0.2, 5.0]),
    seed=st.integers(0, 99),
)
def test_every_sample_is_used_once(stock, clients, alpha, seed):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(stock)), stock))
    scheme = DirichletClients(alpha=alpha, min_size=0)
    parts = deal(scheme, labels, clients, seed)
    assert len(parts) == clients and np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))


def test_a_minimum_is_reached_or_refused():
    assert part_sizes(deal(DirichletClients(alpha=0.05, min_size=300), CIFAR10, seed=0)).min() >= 300
    labels = np.repeat(np.arange(2), 50)
    with refused(r"partition.min_size: 10 .* at most 9 for 11 clients"):
        deal(DirichletClients(), labels, 11)
    with refused(rf"partition.min_size: 33 .* less .* in each of {TRIES} draws"):
        deal(DirichletClients(alpha=1e-6, min_size=33), labels, 3)
