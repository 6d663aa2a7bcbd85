"""Label groups: FLT's first two scenarios, the sweep of overlaps, and three ways to divide a group."""

import numpy as np
import pytest
from dealing import deal, disjoint, equal, label_counts, make
from hypothesis import given
from hypothesis import strategies as st
from support import refused

from fedflow.partition import Samples, Split
from fedflow.partition.label_groups import LabelGroups

CIFAR10 = np.repeat(np.arange(10), 5000)
SAMPLERS = ("mixed", "slice", "independent")


def split(scheme: LabelGroups, labels: np.ndarray = CIFAR10, clients: int = 100, seed: int = 0) -> Split:
    return scheme.split(Samples(labels), clients, np.random.default_rng(seed))


def group_labels(labels: np.ndarray, made: Split) -> list[set[int]]:
    """The labels of every group, held by each of its clients."""
    held = label_counts(labels, made.train) > 0
    return [set(np.flatnonzero(held[made.groups == g].all(0))) for g in range(max(made.groups) + 1)]


def test_scenario_1_has_pairs_of_labels_and_250_of_each_for_every_client():
    made = split(LabelGroups(groups=5, labels_per_group=2, sampler="slice"))
    counts = label_counts(CIFAR10, made.train)
    assert made.groups.tolist() == np.repeat(np.arange(5), 20).tolist()
    assert set(counts.ravel()) == {0, 250} and ((counts > 0).sum(1) == 2).all()
    owns = group_labels(CIFAR10, made)
    assert set.union(*owns) == set(range(10)) and sum(map(len, owns)) == 10


def test_scenario_2_is_a_ring_of_five_groups_that_share_one_label_with_each_neighbor():
    made = split(LabelGroups(groups=5, labels_per_group=3, overlap=1, sampler="slice"))
    owns = group_labels(CIFAR10, made)
    shared = [[len(a & b) for b in owns] for a in owns]
    assert shared == [[3 if i == j else int((i - j) % 5 in (1, 4)) for j in range(5)] for i in range(5)]
    counts = label_counts(CIFAR10, made.train)
    common = [c for c in range(10) if sum(c in own for own in owns) == 2]
    assert len(common) == 5
    assert set(counts[:, common].ravel()) == {0, 125}  # 5,000 over 40 clients
    assert sum(map(len, made.train)) == 50_000


@pytest.mark.parametrize("overlap", range(6))
def test_two_groups_of_five_labels_share_none_to_all(overlap):
    made = split(LabelGroups(groups=2, labels_per_group=5, overlap=overlap, sampler="slice"))
    one, other = group_labels(CIFAR10, made)
    assert len(one & other) == overlap and len(one) == len(other) == 5
    assert sum(map(len, made.train)) == 5000 * (10 - overlap)  # the other labels stay unused


@pytest.mark.parametrize("clients", [100, 500])
def test_independent_clients_draw_250_of_each_label_however_many_they_are(clients):
    made = split(LabelGroups(groups=5, labels_per_group=3, overlap=1, sampler="independent"), clients=clients)
    counts = label_counts(CIFAR10, made.train)
    assert set(counts.ravel()) == {0, 250} and ((counts > 0).sum(1) == 3).all()
    assert all((np.diff(rows) > 0).all() for rows in made.train)  # nothing twice within a client
    pairs = [np.intersect1d(made.train[0], made.train[k]).size for k in range(1, clients // 5)]
    assert np.mean(pairs) == pytest.approx(3 * 250 * 250 / 5000, rel=0.15)  # by chance, between clients


def test_a_mixed_group_divides_its_share_of_a_common_label_at_random():
    made = split(LabelGroups(groups=5, labels_per_group=3, overlap=1), clients=10)
    counts = label_counts(CIFAR10, made.train)
    by_group = np.array([counts[made.groups == g].sum(0) for g in range(5)])
    assert set(by_group.ravel()) == {0, 2500, 5000}
    assert {len(rows) for rows in made.train} == {5000}
    assert len(set(counts[counts > 0])) > 10  # unlike slices


def test_clients_of_a_mixed_group_are_cut_from_one_permutation():
    labels = np.arange(120) % 6
    made, rng = split(LabelGroups(groups=3), labels, 6, seed=4), np.random.default_rng(4)
    order = rng.permutation(6)
    pool = rng.permutation(np.flatnonzero(np.isin(labels, order[:2])))
    assert np.array_equal(made.train[0], np.sort(pool[:20]))
    assert np.array_equal(made.train[1], np.sort(pool[20:]))


@st.composite
def schemes(draw: st.DrawFn) -> tuple[LabelGroups, np.ndarray, int]:
    """A scheme that fits its labels and number of clients."""
    classes, length = draw(st.integers(1, 8)), None
    overlap, most = 0, classes
    if draw(st.booleans()):
        length = draw(st.integers(1, classes))
        overlap = draw(st.integers(0, length))
        most = classes // (length - overlap) if overlap < length else 4
    groups = draw(st.integers(1, most))
    clients = draw(st.integers(groups, groups + 10))
    labels = np.random.default_rng(draw(st.integers(0, 9))).permutation(np.arange(24 * classes) % classes)
    sampler = draw(st.sampled_from(SAMPLERS))
    more = {"samples_per_label": draw(st.integers(1, 24))} if sampler == "independent" else {}
    scheme = LabelGroups(groups=groups, labels_per_group=length, overlap=overlap, sampler=sampler, **more)
    return scheme, labels, clients


@given(schemes(), st.integers(0, 2**32))
def test_groups_hold_their_labels_and_no_others(case, seed):
    scheme, labels, clients = case
    made = split(scheme, labels, clients, seed)
    assert equal(made.train, deal(scheme, labels, clients, seed))
    assert made.groups.tolist() == (np.arange(clients) * scheme.groups // clients).tolist()
    assert all(rows.dtype == np.int64 and (np.diff(rows) > 0).all() for rows in made.train)
    counts = label_counts(labels, made.train)
    by_group = np.array([counts[made.groups == g].sum(0) for g in range(scheme.groups)]) > 0
    if scheme.labels_per_group:
        assert (by_group.sum(1) == scheme.labels_per_group).all()
    else:
        assert (by_group.sum(0) == 1).all()
    used = by_group.any(0)
    if scheme.sampler == "independent":
        assert (counts == scheme.samples_per_label * by_group[made.groups]).all()
    else:
        assert (counts.sum(0) == 24 * used).all() and disjoint(made.train)
    if scheme.sampler == "slice":
        assert all(np.ptp(counts[by_group[made.groups, c], c]) <= 1 for c in np.flatnonzero(used))
    if scheme.sampler == "mixed":
        assert all(np.ptp(counts[made.groups == g].sum(1)) <= 1 for g in range(scheme.groups))


def test_samples_that_clients_share_are_not_counted_twice():
    labels, options = np.arange(100) % 4, {"groups": 2, "sampler": "independent", "samples_per_label": 10}
    made = make(Samples(labels, labels), "label_groups", clients=50, **options)
    assert len(made.indices) == 50 * 20
    assert made.facts["samples_unused"] == 100 - len(np.unique(made.indices))


@pytest.mark.parametrize(
    ("options", "clients", "message"),
    [
        ({"groups": 4}, 3, r"partition.groups: 4 .* at most 3, for 10 classes and 3 clients"),
        ({"groups": 11}, 50, r"partition.groups: 11 .* at most 10"),
        ({"labels_per_group": 11}, 9, r"partition.labels_per_group: 11 .* at most 10, the number of classes"),
        (
            {"groups": 6, "labels_per_group": 3, "overlap": 1},
            9,
            r"partition.groups: 6 .* at most 5, for 10 classes of which a group takes 3 and shares 1",
        ),
        (
            {"sampler": "independent", "samples_per_label": 11},
            9,
            r"partition.samples_per_label: 11 .* at most 10, the samples of label \d",
        ),
        ({"groups": 2, "sampler": "slice"}, 50, r"partition.clients: 50 .* 25 clients share 10 samples"),
        (
            {"groups": 11, "labels_per_group": 1, "overlap": 1},
            11,
            r"partition.groups: 11 .* fewer: 11 groups share 10 samples of label \d",
        ),
        ({"overlap": 1}, 9, r"partition.overlap: 1 .* at most labels_per_group, which is 0"),
        ({"labels_per_group": 3, "overlap": 4}, 9, r"partition.overlap: 4 .* which is 3"),
        ({"samples_per_label": 9}, 9, "samples_per_label: 9 .* 250, its default, with sampler: "),
        ({"sampler": "sliced"}, 9, r"partition.sampler: 'sliced' .*did you mean 'slice'"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(options, clients, message):
    with refused(message):
        split(LabelGroups(**options), np.arange(100) % 10, clients)
