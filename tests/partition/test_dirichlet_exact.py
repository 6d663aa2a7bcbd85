"""Dirichlet with exact sizes: coverage as simulated, exhaustion as specified, speed."""

import time

import numpy as np
import pytest
from dealing import deal, equal, label_counts, part_sizes
from hypothesis import given
from hypothesis import strategies as st
from support import refused

from fedflow.partition.dirichlet_exact import DirichletExact, _drawn, _picked
from fedflow.partition.iid import IID
from fedflow.partition.sizes import draw_sizes

MNIST = np.repeat(np.arange(10), [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])


def classes_that_cover(shares: tuple[float, ...], labels: np.ndarray, parts: list[np.ndarray]) -> np.ndarray:
    """How many most frequent classes hold a share of a client's samples, mean over clients, per share."""
    counts = np.sort(label_counts(labels, parts))[:, ::-1]
    covered = counts.cumsum(1) / counts.sum(1, keepdims=True)
    return np.array([1 + (covered < share - 1e-12).sum(1).mean() for share in shares])


@pytest.mark.parametrize(("alpha", "expected"), [(0.6, (1.77, 2.75, 4.36)), (0.3, (1.44, 2.16, 3.34))])
def test_as_many_classes_cover_40_60_and_80_percent_as_derived(alpha, expected):
    drawn = [deal(DirichletExact(alpha=alpha), MNIST, seed=seed) for seed in range(3)]
    found = [classes_that_cover((0.4, 0.6, 0.8), MNIST, parts) for parts in drawn]
    assert np.mean(found, axis=0) == pytest.approx(expected, abs=0.12)  # sd of a mean of 300 is below 0.1


def test_with_equal_shares_as_many_classes_cover_these_percentages_as_published():
    parts = deal(IID(), MNIST)
    assert classes_that_cover((0.4, 0.6, 0.8), MNIST, parts) == pytest.approx((4, 6, 8), abs=0.5)


@given(
    stock=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    clients=st.integers(1, 8),
    alpha=st.sampled_from([1e-4, 0.3, 5.0]),
    sigma=st.sampled_from([0, 0.5]),
    seed=st.integers(0, 99),
)
def test_sizes_are_exact_and_every_sample_is_used_once(stock, clients, alpha, sigma, seed):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(stock)), stock))
    scheme = DirichletExact(alpha=alpha, sigma=sigma)
    parts = deal(scheme, labels, clients, seed)
    assert equal(parts, deal(scheme, labels, clients, seed))
    sizes = draw_sizes(len(labels), clients, sigma, np.random.default_rng(seed))
    assert [len(rows) for rows in parts] == sizes.tolist()
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))


def test_picking_is_uniform_over_the_clients_that_are_not_full():
    """Sizes 1 and 3: one is full when picked once, so its turn is place j with P = 1/2, 1/4, 1/8, 1/8."""
    sizes, rng = np.array([1, 3]), np.random.default_rng(0)
    place = [int(np.flatnonzero(_picked(sizes, rng) == 0)[0]) for _ in range(4000)]
    assert np.bincount(place) / 4000 == pytest.approx([1 / 2, 1 / 4, 1 / 8, 1 / 8], abs=0.03)


def test_drawing_follows_the_procedure_step_by_step():
    """The same law as the loop of the paper: counts of client 0's labels, in 3,000 draws of either."""
    prior = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.0, 1.0, 0.0]])
    stock, client = np.array([3, 2, 4]), np.array([0, 1, 2, 2, 0, 1, 2, 0, 1])
    rng = np.random.default_rng(0)

    def loop() -> np.ndarray:
        left, out = stock.copy(), []
        for k in client:
            p = prior[k] * (left > 0)
            p = p if p.any() else left > 0
            out.append(rng.choice(3, p=p / p.sum()))
            left[out[-1]] -= 1
        return np.array(out)

    found, expected = np.zeros((9, 3)), np.zeros((9, 3))
    for _ in range(3000):
        found[np.arange(9), _drawn(prior, client, stock, rng)] += 1
        expected[np.arange(9), loop()] += 1
    assert (found.sum(0) / 3000).tolist() == stock.tolist()
    assert found / 3000 == pytest.approx(expected / 3000, abs=0.05)  # 4 standard errors of a difference


def test_an_absent_class_is_nobody_s():
    assert part_sizes(deal(DirichletExact(alpha=0.1), np.repeat([0, 2], 50), 4)).sum() == 100


def test_a_hundred_thousand_clients_take_seconds():
    labels = np.random.default_rng(0).integers(10, size=1_000_000)
    start = time.perf_counter()
    parts = deal(DirichletExact(), labels, 100_000)
    assert {len(rows) for rows in parts} == {10}
    assert time.perf_counter() - start < 20  # 0.6 s on an idle core


def test_an_alpha_of_nothing_is_refused():
    with refused(r"partition.alpha: 0.0 .* a number > 0"):
        DirichletExact(alpha=0)
