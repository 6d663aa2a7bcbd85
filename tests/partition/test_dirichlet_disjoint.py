"""Dirichlet client after client, and the authors' code that shares samples."""

import numpy as np
import pytest
from dealing import deal, disjoint, equal, label_counts, make, part_sizes
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import loggamma
from support import refused

from fedflow.partition import Samples, dirichlet_disjoint
from fedflow.partition.dirichlet_disjoint import DirichletDisjoint

BALANCED = np.repeat(np.arange(10), 6000)


def made(clients: int, seed: int = 0, labels: np.ndarray = BALANCED, **options: object) -> list[np.ndarray]:
    return deal(DirichletDisjoint.parse(options), labels, clients, seed)


@pytest.fixture(params=[50_000, 0], ids=["alone", "together"])
def draws(request, monkeypatch):
    """Draws one by one, or many at once from the start."""
    monkeypatch.setattr(dirichlet_disjoint, "ALONE", request.param)


@pytest.mark.usefixtures("draws")
@pytest.mark.parametrize("alpha", [0.01, 1.0])
@pytest.mark.parametrize("clients", [10, 100])
def test_clients_hold_equal_disjoint_parts_of_at_least_two_classes(clients, alpha):
    parts = made(clients, alpha=alpha)
    assert set(part_sizes(parts)) == {60_000 // clients} and disjoint(parts)
    counts = label_counts(BALANCED, parts)
    two = (counts >= 6).sum(1) >= 2
    assert two[: clients * 9 // 10].all()  # the last may be let off, where one class is left
    held = (counts > 0).sum(1).mean()
    assert held < 2.2 if alpha == 0.01 else held > 4


@pytest.mark.usefixtures("draws")
@pytest.mark.parametrize(
    ("clients", "stock", "seeds"), [(10, 60, 60), pytest.param(100, 300, 2, marks=pytest.mark.full)]
)
def test_at_alpha_0_01_as_many_labels_are_held_as_by_the_specification(clients, stock, seeds):
    """Shares of clients with 1, 2, .. labels; with q rounded to 0 a third of ten clients held 3 to 10."""
    labels = np.repeat(np.arange(10), stock)
    expected = [one_by_one([stock] * 10, clients, 0.01, np.random.default_rng(seed)) for seed in range(seeds)]
    found = [
        len(np.unique(labels[rows])) for seed in range(seeds) for rows in made(clients, seed, labels=labels)
    ]
    shares, reference = (np.bincount(np.ravel(held), minlength=11) / len(found) for held in (found, expected))
    assert shares == pytest.approx(reference, abs=0.05)  # the standard error of a share is below 0.02
    assert np.mean(found) == pytest.approx(np.mean(expected), abs=0.1)
    assert max(found) <= np.max(expected) + 1


def one_by_one(stock: list[int], clients: int, alpha: float, rng: np.random.Generator) -> list[int]:
    """Labels that each client holds, where it takes sample after sample and log q is never exponentiated.

    The argmax of log q + Gumbel noise is a draw from q, here over the labels that are left.
    """
    left, held = np.array(stock), []
    each, classes = left.sum() // clients, len(left)
    for _ in range(clients):
        possible = (left >= 6).sum() >= 2
        for _ in range(1000 if possible else 1):
            log_q = loggamma.rvs(alpha / classes, size=classes, random_state=rng)
            rest, got = left.copy(), np.zeros(classes, int)
            while missing := each - got.sum():
                there = np.flatnonzero(rest)
                drawn = there[(log_q[there] + rng.gumbel(size=(missing, len(there)))).argmax(1)]
                nth = (drawn[:, None] == np.arange(classes)).cumsum(0)  # [missing, K]
                out = np.flatnonzero(nth[np.arange(missing), drawn] == rest[drawn])  # a label's last one
                taken = np.bincount(drawn[: out[0] + 1 if out.size else missing], minlength=classes)
                got, rest = got + taken, rest - taken
            if (got >= 6).sum() >= 2:
                break
        left = rest
        held.append(int((got > 0).sum()))
    return held


def test_only_partitions_of_many_draws_draw_together(monkeypatch):
    """The first 500 draws of the generator are one by one: clients that they serve keep their samples."""
    alone = made(100)
    monkeypatch.setattr(dirichlet_disjoint, "ALONE", 500)
    counts, before = (label_counts(BALANCED, parts) for parts in (made(100), alone))
    same = (counts == before).all(1)
    assert same[:5].all() and not same.all()


def test_any_positive_alpha_is_drawn():
    assert [len(rows) for rows in made(4, labels=np.arange(600) % 3, alpha=1e-320)] == [150] * 4


def test_the_rule_of_two_classes_redraws(monkeypatch):
    """With alpha 0.01 nearly every client would hold one class."""
    with_rule = label_counts(BALANCED, made(100))
    monkeypatch.setattr(dirichlet_disjoint, "MIN_CLASSES", 0)
    without = label_counts(BALANCED, made(100))
    held = [((counts >= 6).sum(1) >= 2).mean() for counts in (without, with_rule)]
    assert held[0] < 0.3 and held[1] > 0.9


@given(
    stock=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    clients=st.integers(1, 8),
    alpha=st.sampled_from([1.0, 100.0]),
    seed=st.integers(0, 99),
)
def test_parts_are_disjoint_of_equal_size_and_leave_less_than_n_samples(stock, clients, alpha, seed):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(stock)), stock))
    parts, again = (made(clients, seed, labels, alpha=alpha) for _ in range(2))
    assert equal(parts, again)
    assert set(part_sizes(parts)) == {len(labels) // clients} and disjoint(parts)
    assert part_sizes(parts).sum() > len(labels) - clients


@pytest.mark.parametrize(
    ("clients", "alpha", "assigned", "distinct"),
    [
        (10, 0.01, 45_901, 33_287),
        (10, 1.0, 14_302, 6_391),
        (100, 0.01, 12_477, 4_073),
        (100, 1.0, 10_016, 1_135),
    ],
)
def test_the_authors_code_shares_few_samples(clients, alpha, assigned, distinct):
    """The expected numbers are of one draw, and draws differ by a third: they lie among 60 of ours."""
    drawn = [made(clients, seed, alpha=alpha, official=True) for seed in range(60)]
    for found, expected in (
        ([sum(map(len, parts)) for parts in drawn], assigned),
        ([np.unique(np.concatenate(parts)).size for parts in drawn], distinct),
    ):
        assert min(found) <= expected <= max(found)
        assert np.median(found) == pytest.approx(expected, rel=0.35)


def test_a_client_of_the_authors_code_may_get_nearly_nothing_or_nearly_twice_its_share():
    """It draws on while it drew fewer than 6,000, and counts what it drew, not what was left of it."""
    sizes = [len(rows) for seed in range(20) for rows in made(10, seed, official=True)]
    assert min(sizes) < 100 and 11_900 < max(sizes) < 12_000


def test_the_authors_code_hands_out_heads_of_the_class_lists():
    parts = made(5, official=True, alpha=1.0)
    for c in range(10):
        own = [rows[BALANCED[rows] == c] - 6000 * c for rows in parts]
        taken = [np.unique(rows) for rows in own if len(rows)]
        assert all(np.array_equal(rows, np.arange(len(rows))) for rows in taken)


def test_a_partition_by_the_authors_code_counts_a_shared_sample_once():
    samples = Samples(BALANCED, np.arange(10))
    partition = make(samples, "dirichlet_disjoint", clients=10, alpha=1.0, official=True)
    assert partition.summary()["samples_unused"] == 60_000 - np.unique(partition.indices).size > 0


def test_too_many_clients_for_the_authors_code_are_refused():
    with refused(r"partition.clients: 200 .* fewer for 1000 samples, or a larger alpha"):
        made(200, labels=np.arange(1000) % 10, official=True)
