"""Super clusters: the published sets and client counts, SC-NIID and SC-Dir in them, and their controls."""

import io
import re
import tarfile

import numpy as np
import pytest
from dealing import disjoint, equal, label_counts, part_sizes
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support import refused

from fedflow.data import data_root
from fedflow.errors import BadInput
from fedflow.partition import PartitionParams, Samples, Split
from fedflow.partition.label_skew import LabelSkew
from fedflow.partition.super_clusters import PUBLISHED, SuperClusters, damped, proportional, settle

ROOT = data_root()
CIFAR10, CIFAR100 = np.repeat(np.arange(10), 5000), np.repeat(np.arange(100), 500)
STL10 = np.repeat(np.arange(10), 500)
SIZES = {name: [len(classes) for classes in clusters] for name, clusters in PUBLISHED.items()}


def split(labels: np.ndarray, clients: int = 100, seed: int = 0, **options: object) -> Split:
    return SuperClusters(**options).split(Samples(labels), clients, np.random.default_rng(seed))


def by_group(values: np.ndarray, groups: np.ndarray) -> list[np.ndarray]:
    return [values[groups == g] for g in range(groups.max() + 1)]


def owned(labels: np.ndarray, made: Split) -> list[set[int]]:
    """The labels of every super cluster."""
    return [set(np.flatnonzero(c.any(0))) for c in by_group(label_counts(labels, made.train), made.groups)]


def test_published_super_clusters_are_table_5_7():
    assert SIZES == {"cifar10": [4, 6], "stl10": [3, 7], "fmnist": [3, 4, 3], "cifar100": [4, 7, 6, 4, 79]}
    for clusters in PUBLISHED.values():
        classes = sorted(c for own in clusters for c in own)
        assert classes == list(range(len(classes)))
    assert [set(own) for own in PUBLISHED["cifar10"]] == [{0, 1, 8, 9}, {2, 3, 4, 5, 6, 7}]
    assert {33, 68, 2, 97} < set(PUBLISHED["cifar100"][4])


@pytest.mark.parametrize(
    ("sizes", "clients", "expected"),
    [
        ([4, 6], 100, [47, 54]),
        ([4, 6], 10, [5, 6]),
        ([3, 7], 100, [44, 57]),
        ([3, 7], 25, [11, 15]),
        ([4, 7, 79, 6, 4], 100, [18, 18, 30, 18, 18]),
    ],
)
def test_damped_allocation_has_the_worked_numbers(sizes, clients, expected):
    counts = damped(sizes, clients)
    assert counts.tolist() == expected
    settled = settle(counts, clients, np.random.default_rng(0))
    assert settled.sum() == clients and (counts - settled).min() >= 0


@pytest.mark.parametrize(
    ("samples", "clients", "expected"),
    [
        ([20_000, 30_000], 100, [40, 60]),
        ([2000, 3500, 39_500, 3000, 2000], 100, [4, 7, 79, 6, 4]),
        ([1, 1, 1000], 10, [1, 1, 8]),
        ([50, 50], 7, [4, 3]),
    ],
)
def test_proportional_allocation_follows_the_samples(samples, clients, expected):
    assert proportional(samples, clients).tolist() == expected


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.integers(0, 60), st.integers(0, 99))
def test_both_allocations_give_every_super_cluster_a_client_and_everybody_a_place(sizes, more, seed):
    clients = len(sizes) + more
    settled = settle(damped(sizes, clients), clients, np.random.default_rng(seed))
    for counts in (settled, proportional(sizes, clients)):
        assert counts.sum() == clients and counts.min() >= 1


def test_sc_niid_of_cifar10_has_the_published_sizes():
    made = split(CIFAR10, clusters="cifar10")
    counts = label_counts(CIFAR10, made.train)
    vehicles, animals = by_group(part_sizes(made.train), made.groups)
    assert (len(vehicles), len(animals)) in {(47, 53), (46, 54)} and (np.diff(made.groups) >= 0).all()
    assert vehicles.mean() == 20_000 / len(vehicles) and animals.mean() == 30_000 / len(animals)
    assert ((counts > 0).sum(1) == 2).all()
    assert owned(CIFAR10, made) == list(map(set, PUBLISHED["cifar10"]))
    assert np.sort(np.concatenate(made.train)).tolist() == list(range(50_000))


def test_the_first_label_is_that_of_the_client_s_number():
    made = split(CIFAR10, clusters="cifar10", labels_per_client=1)
    held = label_counts(CIFAR10, made.train).argmax(1)
    clusters = [PUBLISHED["cifar10"][g] for g in made.groups]
    assert held.tolist() == [classes[j % len(classes)] for j, classes in enumerate(clusters)]


def test_sc_niid_of_cifar100_gives_two_labels_but_16_in_the_largest_super_cluster():
    made = split(CIFAR100, clusters="cifar100")
    held = (label_counts(CIFAR100, made.train) > 0).sum(1)
    assert [set(own) for own in by_group(held, made.groups)] == [{2}, {2}, {2}, {2}, {16}]
    means = [own.mean() for own in by_group(part_sizes(made.train), made.groups)]
    # 2,000, 3,500, 3,000, 2,000 and 39,500 samples for 16 to 18 and 28 to 30 clients
    assert means == pytest.approx([115, 200, 175, 115, 1340], rel=0.1)


@pytest.mark.parametrize(
    ("clients", "means"), [(25, (1500 / 11, 3500 / 14)), (100, (1500 / 43.5, 3500 / 56.5))]
)
def test_sc_niid_of_stl10_leaves_few_samples(clients, means):
    made = split(STL10, clients, clusters="stl10")
    sizes = by_group(part_sizes(made.train), made.groups)
    assert [own.mean() for own in sizes] == pytest.approx(means, rel=0.1)  # one client is dropped at random


def test_a_fraction_is_that_of_the_super_cluster_s_labels():
    made = split(CIFAR100, clusters="cifar100", fraction=0.2, allocation="proportional")
    held = (label_counts(CIFAR100, made.train) > 0).sum(1)
    assert [set(own) for own in by_group(held, made.groups)] == [{1}, {2}, {2}, {1}, {16}]
    assert np.bincount(made.groups).tolist() == [4, 7, 6, 4, 79]


def test_one_super_cluster_is_label_skew():
    """With K of N classes in order, a client's first label is its number mod K in both."""
    everything = [list(range(10))]
    made = split(CIFAR10, clusters=everything, labels_per_client=2, seed=7)
    plain = LabelSkew(fraction=0.2).split(Samples(CIFAR10), 100, np.random.default_rng(7))
    assert equal(made.train, plain.train)


def test_sc_dir_runs_dirichlet_in_every_super_cluster():
    made = split(CIFAR10, clusters="cifar10", within="dirichlet")
    counts = label_counts(CIFAR10, made.train)
    assert counts.sum(1).min() >= 15 and counts.sum() == 50_000
    assert owned(CIFAR10, made) == list(map(set, PUBLISHED["cifar10"]))
    for own, classes in zip(by_group(counts, made.groups), PUBLISHED["cifar10"], strict=True):
        # alpha 0.5 leaves most labels at a client, unequally: all of four vehicles, or most of six animals
        assert 0.6 * len(classes) < (own > 0).sum(1).mean() <= len(classes)
        assert own.sum(1).std() > 50


def test_shards_come_from_one_super_cluster():
    made = split(CIFAR10, clusters="cifar10", within="shards")
    assert owned(CIFAR10, made) == list(map(set, PUBLISHED["cifar10"]))
    for own, classes in zip(by_group(part_sizes(made.train), made.groups), SIZES["cifar10"], strict=True):
        assert set(own) == {2 * (5000 * classes // (2 * len(own)))}


def test_the_matched_control_draws_disjoint_classes_of_the_same_sizes():
    made = split(CIFAR10, clusters="cifar10", control="matched_random", seed=1)
    first, second = owned(CIFAR10, made)
    assert len(first) == 4 and len(second) == 6 and not first & second and first != {0, 1, 8, 9}
    assert sum(map(len, made.train)) == 50_000 and disjoint(made.train)


def test_the_control_of_the_code_gives_2_4_of_ten_classes_twice_and_as_many_to_nobody():
    labels, twice, unused = np.repeat(np.arange(10), 60), [], []
    for seed in range(200):
        made = split(labels, 20, seed, clusters="cifar10", control="repo")
        times = np.bincount(np.concatenate(made.train), minlength=600).reshape(10, 60)
        assert (times == times[:, :1]).all()  # whole classes
        twice.append((times[:, 0] == 2).sum())
        unused.append((times[:, 0] == 0).sum())
    # hypergeometric, variance 0.64: the mean of 200 draws has an sd of 0.06
    assert np.mean(twice) == pytest.approx(2.4, abs=0.2) and twice == unused


def two_kinds(classes: int = 6, per_class: int = 30) -> Samples:
    """Even classes are bright above, odd ones below."""
    rng, labels = np.random.default_rng(0), np.arange(classes * per_class) % classes
    images = rng.integers(0, 60, (len(labels), 8, 8), np.uint8)
    images[labels % 2 == 0, :4] += 150
    images[labels % 2 == 1, 4:] += 150
    return Samples(labels, inputs=lambda: images)


@pytest.mark.parametrize("options", [{}, {"number": 2}, {"threshold": 40.0}])
def test_super_clusters_are_discovered_from_the_inputs(options):
    samples = two_kinds()
    made = SuperClusters(p=1, **options).split(samples, 12, np.random.default_rng(0))
    assert owned(samples.labels, made) == [{0, 2, 4}, {1, 3, 5}]


@pytest.mark.skipif(not (ROOT / "cifar10.tar").is_file(), reason="no cifar10.tar in the data root")
def test_fifty_images_of_each_cifar10_class_are_enough_to_tell_vehicles_from_animals():
    images, names = [], []
    with tarfile.open(ROOT / "cifar10.tar") as tar:
        for member in tar:
            kind, _, rest = member.name.partition("/")
            if kind == "train" and rest[-8:] < "0050.jpg":
                images.append(np.asarray(Image.open(io.BytesIO(tar.extractfile(member).read()))))
                names.append(rest.split("/")[0])
    labels = np.unique(names, return_inverse=True)[1]
    samples = Samples(labels, inputs=lambda: np.stack(images))
    found = SuperClusters().split(samples, 20, np.random.default_rng(0))
    given = SuperClusters(clusters="cifar10").split(samples, 20, np.random.default_rng(0))
    assert np.bincount(labels).tolist() == [50] * 10
    assert equal(found.train, given.train)


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[str, object], np.ndarray, int]:
    """Options, labels with 40 samples of a class, and clients that can be served."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    order = draw(st.permutations(range(sum(sizes))))
    clusters = [[int(c) for c in own] for own in np.split(np.array(order), np.cumsum(sizes)[:-1])]
    clients = draw(st.integers(6 * len(sizes), 30))
    divided = {"labels": {}, "shards": {"shards_per_client": 1}, "dirichlet": {"min_size": 0}}
    within = draw(st.sampled_from(sorted(divided)))
    options = {
        "clusters": clusters,
        "allocation": draw(st.sampled_from(("damped", "proportional"))),
        "within": within,
        **divided[within],
        "control": draw(st.sampled_from(("none", "matched_random", "repo"))),
    }
    order = np.random.default_rng(draw(st.integers(0, 9))).permutation(40 * sum(sizes))
    return options, order % sum(sizes), clients


@given(cases(), st.integers(0, 2**32))
def test_a_client_holds_labels_of_its_super_cluster_only(case, seed):
    options, labels, clients = case
    try:
        made, again = (split(labels, clients, seed, **options) for _ in range(2))
    except BadInput as error:  # few clients may have to share many labels: see below
        assert error.field == "partition.clients" and re.search("(more|fewer): ", error.accepted)
        return
    assert len(made.train) == len(made.groups) == clients and (np.diff(made.groups) >= 0).all()
    assert equal(made.train, again.train)
    assert all(rows.dtype == np.int64 and (np.diff(rows) > 0).all() for rows in made.train)
    found, asked = owned(labels, made), list(map(set, options["clusters"]))
    assert found == asked if options["control"] == "none" else list(map(len, found)) == list(map(len, asked))
    if options["control"] != "repo":
        assert disjoint(made.train)
        assert options["within"] == "shards" or part_sizes(made.train).sum() == len(labels)


def test_classes_in_no_list_stay_unused():
    made = split(CIFAR10, clusters=[[0, 1], [8, 9]])
    assert np.unique(CIFAR10[np.concatenate(made.train)]).tolist() == [0, 1, 8, 9]


@pytest.mark.parametrize(
    ("options", "clients", "message"),
    [
        ({"clusters": [[0, 1], [1, 2]]}, 9, r"partition.clusters: .* classes 0..9, each class in one list"),
        ({"clusters": [[0, 0]]}, 9, r"partition.clusters: .* each class in one list"),
        ({"clusters": [[0, 10]]}, 9, r"partition.clusters: .* classes 0..9"),
        ({"clusters": [[-1, 0]]}, 9, r"partition.clusters: .* classes 0..9"),
        ({"clusters": [[0], []]}, 9, r"partition.clusters: .* lists of classes"),
        ({"clusters": []}, 9, r"partition.clusters: \[\] .* lists of classes"),
        ({"clusters": "cifar100"}, 9, r"partition.clusters: 'cifar100' .* or a list for 10 classes"),
        ({"clusters": "cifar10"}, 1, r"partition.clients: 1 .* at least 2, one per super cluster"),
        (
            {"clusters": "cifar10", "labels_per_client": 5},
            20,
            r"partition.labels_per_client: 5 .* at most 4, the classes of a super cluster",
        ),
        ({"clusters": "cifar10"}, 3, r"partition.clients: 3 .* more: in all of 1000 draws \d clients with 2"),
        ({"clusters": "cifar10"}, 300, r"partition.clients: 300 .* fewer: \d+ clients share 20 samples"),
        ({"clusters": "cifar10", "within": "dirichlet"}, 20, r"partition.min_size: 15 .* at most \d+ for"),
        (
            {"clusters": "cifar10", "within": "shards", "shards_per_client": 50},
            20,
            r"partition.shards_per_client: 50 .* at most \d",
        ),
        ({"number": 7, "p": 1}, 9, r"partition.number: 7 .* a whole number from 1 to 6"),
    ],
)
def test_what_cannot_be_made_is_said_in_one_line(options, clients, message):
    samples = two_kinds() if "number" in options else Samples(np.arange(200) % 10)
    with refused(message):
        SuperClusters(**options).split(samples, clients, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"clusters": "cifar11"}, r"clusters: 'cifar11' .* a list of lists of classes, discovered, or one "),
        ({"clusters": [0, 1]}, r"partition.clusters: .*text or a list, each item a list"),
        ({"number": 2, "threshold": 9}, r"partition.number: 2 .* null, because a threshold is given"),
        ({"labels_per_client": 0}, r"partition.labels_per_client: 0 .* a whole number >= 1 or published"),
        ({"labels_per_client": "two"}, r"labels_per_client: 'two' .* a whole number >= 1 or published"),
        ({"within": "label"}, r"partition.within: 'label' .*did you mean 'labels'"),
        ({"control": "random"}, r"partition.control: 'random' .* one of matched_random, none, repo"),
        ({"fraction": 1.5}, r"partition.fraction: 1.5 .* > 0 and <= 1"),
        *(
            ({"clusters": clusters, **option}, "default, unless clusters is discovered$")
            for clusters in ("cifar10", [[0], [1]])
            for option in ({"p": 2}, {"threshold": 9}, {"number": 2})
        ),
        ({"within": "shards", "fraction": 0.5}, "fraction: 0.5 .* null, .* unless within is labels"),
        ({"within": "dirichlet", "labels_per_client": 2}, "client: 2 .* published, .* unless within is l"),
        ({"within": "dirichlet", "shards_per_client": 3}, "shards_per_client: 3 .* unless within is shards"),
        ({"alpha": 1}, "alpha: 1.0 .* 0.5, its default, unless within is dirichlet"),
        ({"within": "shards", "min_size": 0}, "min_size: 0 .* 15, its default, unless within is dirichlet"),
        ({"fraction": 0.5, "labels_per_client": 2}, "client: 2 .* published, .* with fraction"),
    ],
)
def test_parameters_are_checked_by_name(entry, message):
    with refused(message):
        PartitionParams.parse({"dataset": "d", "scheme": "super_clusters", "clients": 9, **entry})
