"""Who gets which samples: worked numbers, published statistics, and what holds for every scheme."""

import doctest
import sys
from itertools import combinations

import numpy as np
import pytest
from dealing import deal, disjoint, equal, label_counts, make, part_sizes
from hypothesis import assume, given
from hypothesis import strategies as st
from support import refused

from fedflow.data import DataColumn
from fedflow.errors import BadInput, FedflowError
from fedflow.partition import SCHEMES, Samples
from fedflow.partition.dirichlet import LOOK, TRIES, Dirichlet, portions
from fedflow.partition.dirichlet_clients import DirichletClients
from fedflow.partition.iid import IID
from fedflow.partition.label_groups import LabelGroups
from fedflow.partition.label_skew import LabelSkew
from fedflow.partition.scheme import runs
from fedflow.partition.shards import Shards

CIFAR10 = np.repeat(np.arange(10), 5000)
SEEDS = range(3)

# Settings under which a scheme works for whatever data hypothesis finds.
PERMISSIVE = {
    "acid": {"classes_per_client": 2},
    "dirichlet": {"alpha": 0.5, "min_size": 0},
    "dirichlet_clients": {"alpha": 0.5, "min_size": 0},
    "dirichlet_disjoint": {"alpha": 0.5},
    "label_skew": {"fraction": 0.5},
    "label_groups": {"groups": 1},
    "noniid1": {"fraction": 0.4},
    "shards": {"shards_per_client": 1},
    "structured": {"labels_per_group": 6},
    "structured_as_published": {"labels_per_group": 6},
    "super_clusters": {"clusters": [[0]], "labels_per_client": 1},
}
# Schemes that use all samples.
EVERY_SAMPLE = {
    "dirichlet",
    "dirichlet_clients",
    "dirichlet_exact",
    "domains",
    "iid",
    "label_groups",
    "label_skew",
    "structured",
    "structured_as_published",
}


def permissive(name: str, labels: np.ndarray, clients: int) -> dict:
    if name == "label_shares":
        return {"shares": (1.0 + np.add.outer(np.arange(clients), np.arange(labels.max() + 1)) % 3).tolist()}
    if name == "given":
        return {"rows": [np.arange(len(labels))[k::clients] for k in range(clients)]}
    if name == "kway":
        return {"ways": int(labels.max()) + 1}
    return PERMISSIVE.get(name, {})


def samples(labels: np.ndarray) -> Samples:
    """With every column that a scheme may ask for."""
    rows = np.arange(len(labels))
    facts = {"user": rows % 12, "domain": rows % 2}
    facts |= {name: (rows % 4 == i) + 0 for i, name in enumerate(("smiling", "wavy_hair", "wearing_hat"))}
    return Samples(labels, labels, {name: DataColumn(fact, fact) for name, fact in facts.items()})


def test_ten_samples_for_three_owners_are_4_3_3():
    assert np.bincount(runs(np.arange(3), 10)).tolist() == [4, 3, 3]


def test_dirichlet_cuts_at_the_floor_of_the_cumulative_share():
    assert portions(7, np.array([0.5, 0.3, 0.2])).tolist() == [3, 2, 2]
    assert portions(10, np.array([0.15, 0.7, 0.15])).tolist() == [1, 7, 2]
    assert portions(10, np.array([0.7, 0.1, 0.2])).tolist() == [7, 1, 2]  # 0.7 + 0.1 is below 0.8 in floats


def test_iid_gives_the_first_clients_one_more():
    assert part_sizes(deal(IID(), np.zeros(14, dtype=int), 4)).tolist() == [4, 4, 3, 3]


def test_shards_drop_the_surplus_and_hold_few_labels():
    labels = np.repeat(np.arange(10), 103)
    parts = deal(Shards(shards_per_client=2), labels)
    assert set(part_sizes(parts)) == {2 * (1030 // 200)}
    assert (label_counts(labels, parts) > 0).sum(1).max() <= 4  # a shard may lie across a border of labels


def test_shards_of_a_given_length_leave_the_others_unused():
    """Sub-FedAvg: two shards of 250 for each of 100 clients, tested on all test samples of their labels."""
    samples = Samples(np.repeat(np.arange(10), 6000), np.repeat(np.arange(10), 1000))
    made = make(samples, "shards", clients=100, shards_per_client=2, length=250)
    used = np.concatenate([made.train(k) for k in range(100)])
    assert len(np.unique(used)) == len(used) == 100 * 500 and len(np.unique(used // 250)) == 200  # of 240
    for k in range(100):
        held = np.unique(samples.labels[made.train(k)])
        assert len(held) <= 2 and np.unique(samples.test_labels[made.test(k)]).tolist() == held.tolist()
        assert len(made.test(k)) == 1000 * len(held)


def test_label_groups_are_planted_and_disjoint():
    split = LabelGroups(groups=3).split(Samples(CIFAR10), 10, np.random.default_rng(0))
    held = label_counts(CIFAR10, split.train) > 0
    assert split.groups.tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
    own = np.array([held[split.groups == g].any(0) for g in range(3)])
    assert (own.sum(0) == 1).all() and sorted(own.sum(1)) == [3, 3, 4]


@pytest.mark.parametrize(
    ("fraction", "labels", "overlaps"),
    [(0.2, 2, (0.628, 0.351, 0.021)), (0.3, 3, (0.294, 0.525, 0.173, 0.008))],
)
def test_label_skew_has_the_published_sizes_and_overlaps(fraction, labels, overlaps):
    shared, spread = np.zeros(labels + 1), []
    for seed in SEEDS:
        parts = deal(LabelSkew(fraction=fraction), CIFAR10, 100, seed)
        held = label_counts(CIFAR10, parts) > 0
        assert (held.sum(1) == labels).all() and part_sizes(parts).mean() == 500
        assert all(held[i, i % 10] for i in range(100))
        spread.append(part_sizes(parts).std())
        for a, b in combinations(range(100), 2):
            shared[(held[a] & held[b]).sum()] += 1
    assert shared / shared.sum() == pytest.approx(overlaps, abs=0.03)  # means of three draws
    if labels == 2:
        assert np.mean(spread) == pytest.approx(48, rel=0.25)


@pytest.mark.parametrize(("alpha", "labels", "sd"), [(0.1, 4.1, 410), (0.5, 8.2, 172), (100, 10, 15)])
def test_dirichlet_has_the_published_label_counts_and_sizes(alpha, labels, sd):
    counts, spread = [], []
    for seed in SEEDS:
        parts = deal(Dirichlet(alpha=alpha), CIFAR10, 100, seed)
        assert part_sizes(parts).sum() == 50_000 and part_sizes(parts).min() >= 10
        counts.append((label_counts(CIFAR10, parts) > 0).sum(1).mean())
        spread.append(part_sizes(parts).std())
    assert np.mean(counts) == pytest.approx(labels, abs=0.3)  # single draws differ by 0.1
    assert np.mean(spread) == pytest.approx(sd, rel=0.2)  # and by a tenth


@pytest.mark.parametrize("alpha", [1, 10, 100])
@pytest.mark.parametrize(("classes", "clients"), [(100, 100), (200, 200)])  # CIFAR-100, Tiny ImageNet
def test_superfeds_code_would_drop_no_client(alpha, classes, clients):
    """It drops those of at most 10 samples; a client that is full gets at most the rest of one label."""
    labels = np.repeat(np.arange(classes), 500)
    for seed in SEEDS:
        sizes = part_sizes(deal(Dirichlet(alpha=alpha, min_size=0), labels, clients, seed))
        assert sizes.sum() == len(labels) and sizes.min() > 10 and sizes.max() < 500 + 500


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    """Labels 0..K-1 in any order, and a number of clients."""
    classes, clients = draw(st.integers(1, 6)), draw(st.integers(1, 12))
    counts = draw(st.lists(st.integers(1, 40), min_size=classes, max_size=classes))
    labels = np.repeat(np.arange(classes), counts)
    return np.random.default_rng(draw(st.integers(0, 99))).permutation(labels), clients


@pytest.mark.filterwarnings("ignore:label_skew")
@pytest.mark.parametrize("name", sorted(SCHEMES))
@given(case=cases(), seed=st.integers(0, 2**32))
def test_parts_are_disjoint_sorted_and_complete_and_follow_the_seed(name, case, seed):
    labels, clients = case
    scheme = SCHEMES[name].parse(permissive(name, labels, clients))
    try:
        parts = scheme.split(samples(labels), clients, np.random.default_rng(seed)).train
    except BadInput:
        assume(False)
    again = scheme.split(samples(labels), clients, np.random.default_rng(seed)).train
    everything = np.concatenate(parts)
    assert len(parts) == clients and disjoint(parts)
    assert all(part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)
    assert everything.size == 0 or 0 <= everything.min() <= everything.max() < len(labels)
    assert equal(parts, again)
    if name in EVERY_SAMPLE and (name != "label_skew" or clients >= labels.max() + 1):
        assert len(everything) == len(labels)
    if name == "iid":
        assert np.ptp(part_sizes(parts)) <= 1
    if name == "shards":
        assert set(part_sizes(parts)) == {len(labels) // clients}


@given(case=cases(), seed=st.integers(0, 2**32))
def test_iid_does_not_look_at_the_labels(case, seed):
    labels, clients = case
    assume(clients <= len(labels))
    assert equal(*(deal(IID(), y, clients, seed) for y in (labels, labels.max() - labels)))


@pytest.mark.parametrize("name", sorted(SCHEMES.keys() - {"given"}))  # draws nothing
def test_another_seed_gives_another_partition(name):
    labels = np.repeat(np.arange(10), 50)
    options = {"clients": 10} | permissive(name, labels, 10)
    one, again, other = (make(samples(labels), name, seed=seed, **options).hash for seed in (0, 0, 1))
    assert one == again != other


@pytest.mark.parametrize("name", sorted(SCHEMES))
def test_the_example_in_a_scheme_s_docstring_is_true(name):
    module = sys.modules[SCHEMES[name].__module__]
    assert module.__doc__.splitlines()[0].endswith(".")
    result = doctest.testmod(module)
    assert result.attempted > 0 and result.failed == 0


@pytest.mark.parametrize(
    ("scheme", "labels", "clients", "message"),
    [
        (Dirichlet(min_size=10), 50, 6, r"partition.min_size: 10 .* at most 8 for 6 clients"),
        (LabelGroups(groups=4), 30, 3, r"partition.groups: 4 .* at most 3"),
        (LabelGroups(groups=11), 100, 50, r"partition.groups: 11 .* at most 10"),
        (Shards(shards_per_client=9), 40, 5, r"partition.shards_per_client: 9 .* at most 8"),
        (LabelSkew(fraction=1.0), 40, 20, r"partition.clients: 20 .* 20 clients share 4 samples of label 0"),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "split") else None,
)
def test_a_partition_that_cannot_be_made_names_the_field_and_what_works(scheme, labels, clients, message):
    with refused(message):
        deal(scheme, np.arange(labels) % 10, clients)


def test_dirichlet_refuses_real_targets():
    with refused("numbers, not classes; choose a scheme that does not use labels", FedflowError):
        deal(Dirichlet(min_size=0), np.linspace(0, 1, 40), 2)


def test_dirichlet_gives_up_after_a_bounded_number_of_draws():
    with refused(rf"alpha 0.001, or a larger alpha: in each of {TRIES} draws \d clients or more had fewer"):
        deal(Dirichlet(alpha=0.001, min_size=9), np.repeat(np.arange(2), 50), 10)


@pytest.mark.parametrize(
    "scheme", [Dirichlet(alpha=0.001), DirichletClients(alpha=1e-4, min_size=18)], ids=lambda s: s.name
)
def test_a_request_that_is_far_out_of_reach_is_refused_after_a_few_draws(scheme):
    with refused(rf"in each of {LOOK} draws [2-9]\d clients or more had fewer samples"):
        deal(scheme, np.arange(2000) % 10)


def test_what_is_reached_by_a_late_draw_is_what_it_was():
    """The hash is that of the code which dealt every draw before it looked at the sizes; this is draw 68."""
    data = Samples(np.arange(2000) % 10)
    made = make(data, "dirichlet", alpha=0.1, min_size=30, clients=20, seed=1)
    assert made.hash == "ac5df75de8679a1a"


def test_label_skew_says_which_share_of_the_samples_nobody_holds():
    message = "6 of 10 labels without owner among 3 clients: 30000 samples .*cover"
    with pytest.warns(UserWarning, match=message):
        parts = deal(LabelSkew(fraction=0.2), CIFAR10, 3)
    assert part_sizes(parts).sum() == 20_000


@pytest.mark.parametrize("clients", [5, 7, 100])
def test_label_skew_with_cover_gives_every_label_an_owner(clients):
    for seed in SEEDS:
        parts = deal(LabelSkew(fraction=0.2, cover=True), CIFAR10, clients, seed)
        held = label_counts(CIFAR10, parts) > 0
        assert held.any(0).all() and (held.sum(1) == 2).all() and part_sizes(parts).sum() == 50_000


def test_cover_changes_nothing_where_the_first_draw_covers_all_labels():
    assert equal(*(deal(LabelSkew(fraction=0.2, cover=cover), CIFAR10, 20) for cover in (False, True)))


def test_cover_that_cannot_be_is_refused():
    with refused(r"partition.cover: True .* 2 labels for each of 4 clients gives all 10"):
        deal(LabelSkew(fraction=0.2, cover=True), CIFAR10, 4)


def test_halves_of_a_label_go_to_the_even_number():
    for fraction, labels in ((0.25, 2), (0.35, 4)):
        parts = deal(LabelSkew(fraction=fraction), CIFAR10, 20)
        assert ((label_counts(CIFAR10, parts) > 0).sum(1) == labels).all()
