"""What any partition can be followed by: difficulty, newcomers, hold-out, validation, label noise, pieces."""

import warnings
from itertools import pairwise

import dealing
import numpy as np
import pytest
from dealing import label_counts
from hypothesis import given
from hypothesis import strategies as st
from support import refused

from fedflow.data import DataColumn
from fedflow.errors import FedflowError
from fedflow.partition import SCHEMES, Partition, Samples, Scheme, Split, load_partition
from fedflow.partition.after.difficulty import by_difficulty, consistency
from fedflow.partition.after.holdout import hold_out
from fedflow.partition.after.label_noise import LabelNoise, spoil, transition
from fedflow.partition.after.newcomers import order_of_joining

CIFAR = Samples(np.arange(50_000) % 10, np.arange(10_000) % 10)
MNIST = Samples(np.arange(60_000) % 10, np.arange(10_000) % 10)
LOSSES = np.random.default_rng(0).exponential(0.5, 50_000)
BY_EXPERT = {"expert": "mine"}
HARD = Samples(CIFAR.labels, CIFAR.test_labels, losses=lambda difficulty: LOSSES)


def make(samples: Samples = CIFAR, **entry: object) -> Partition:
    return dealing.make(samples, **{"scheme": "iid", "clients": 100} | entry)


def parts(made: Partition) -> list[list[int]]:
    return [made.train(k).tolist() for k in range(len(made.sizes))]


def assert_tested_on_own_labels(made: Partition) -> None:
    for k in range(len(made.sizes)):
        assert set(CIFAR.labels[made.train(k)]) == set(CIFAR.test_labels[made.test(k)])


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_easy_samples_go_to_the_first_clients_and_hard_ones_to_the_last():
    """Algorithm 2 by hand: N = [[2, 1], [3, 1], [1, 4]] samples of two classes."""
    labels = np.repeat([0, 1], 6)
    losses = np.array([0.9, 0.1, 0.5, 0.3, 0.7, 0.2, 0.6, 0.05, 0.8, 0.4, 1.0, 0.15])
    before = [np.array(rows) for rows in ([0, 1, 6], [2, 3, 4, 7], [5, 8, 9, 10, 11])]
    after = by_difficulty(before, labels, losses, 1.0, rng())
    assert [rows.tolist() for rows in after] == [[1, 5, 7], [2, 3, 4, 11], [0, 6, 8, 9, 10]]
    means, stds = np.array([0.35 / 3, 0.4125, 0.74]), [losses[rows].std() for rows in after]
    assert [losses[rows].mean() for rows in after] == pytest.approx(means)
    facts = consistency(after, losses)["difficulty"]
    assert facts == {"intra_std": pytest.approx(np.mean(stds)), "inter_std": pytest.approx(means.std())}
    assert facts["inter_std"] == pytest.approx(0.255, abs=5e-4)
    assert "difficulty" not in make().summary()


@given(
    owners=st.lists(st.integers(-1, 3), min_size=8, max_size=60),
    order=st.sampled_from([0.0, 0.29, 0.5, 1.0]),
    seed=st.integers(0, 5),
)
def test_clients_keep_their_class_counts_and_together_their_samples(owners, order, seed):
    owner = np.array(owners)
    labels, losses = np.arange(len(owner)) % 3, np.random.default_rng(seed).random(len(owner))
    before = [np.flatnonzero(owner == k) for k in range(4)]
    after = by_difficulty(before, labels, losses, order, np.random.default_rng(seed))
    assert np.array_equal(*(label_counts(labels, parts) for parts in (before, after)))
    assert np.array_equal(np.sort(np.concatenate(after)), np.flatnonzero(owner >= 0))


@pytest.mark.parametrize(
    ("order", "within", "between"),
    [(0, 0.501, 0.020), (0.5, 0.430, 0.237), (0.9, 0.222, 0.442), (1, 0.018, 0.499)],
)
def test_order_sets_how_much_difficulty_differs_within_and_between_clients(order, within, between):
    """IID clients, exponential losses of mean 0.5: the numbers of the specification of Curriculum-FL."""
    made = make(HARD, stratified=True, difficulty=BY_EXPERT | {"order": order})
    stds = made.summary()["difficulty"]
    assert stds == {
        "intra_std": pytest.approx(within, abs=0.01),
        "inter_std": pytest.approx(between, abs=0.01),
    }


@pytest.mark.parametrize(
    ("alpha", "order", "within", "between"),
    [(0.2, 0, 0.500, 0.024), (0.2, 1, 0.104, 0.481), (0.05, 0, 0.503, 0.024), (0.05, 1, 0.099, 0.470)],
)
def test_label_skew_keeps_most_of_the_consistency(alpha, order, within, between):
    """Labels are drawn client by client; the mean of four seeds, as fully sorted ones vary by 0.02."""
    entry = {"scheme": "dirichlet_clients", "alpha": alpha, "difficulty": BY_EXPERT | {"order": order}}
    made = [make(HARD, seed=seed, **entry).summary()["difficulty"] for seed in range(4)]
    assert [np.mean([facts[name] for facts in made]) for name in ("intra_std", "inter_std")] == [
        pytest.approx(within, abs=0.02),
        pytest.approx(between, abs=0.02),
    ]


def test_fully_sorted_clients_do_not_overlap_in_difficulty():
    made = make(HARD, scheme="shards", difficulty=BY_EXPERT)
    for c in range(10):
        owners = [k for k in range(100) if c in CIFAR.labels[made.train(k)]]
        mine = [LOSSES[rows[CIFAR.labels[rows] == c]] for rows in map(made.train, owners)]
        assert all(easier.max() <= harder.min() for easier, harder in pairwise(mine))


def test_random_difficulty_is_another_draw_of_the_same_partition():
    plain, mixed = (
        make(HARD, scheme="shards"),
        make(HARD, scheme="shards", difficulty=BY_EXPERT | {"order": 0}),
    )
    assert parts(plain) != parts(mixed)
    assert np.array_equal(plain.label_counts, mixed.label_counts)


def test_the_share_that_is_sorted_is_floored_exactly():
    """0.29 * 100 is 28.999999999999996 in floats."""
    before = [np.arange(100), np.arange(100, 200)]
    after = by_difficulty(before, np.zeros(200, int), np.arange(200.0), 0.29, rng())
    assert set(range(29)) <= set(after[0].tolist()) and set(range(100, 129)) <= set(after[1].tolist())
    assert not set(range(29, 40)) <= set(after[0].tolist())


def test_real_targets_are_one_class():
    samples = Samples(np.linspace(0, 1, 60), np.zeros(5), losses=lambda difficulty: np.arange(60.0)[::-1])
    assert make(samples, clients=3, difficulty=BY_EXPERT).train(0).tolist() == list(range(40, 60))


def test_difficulty_is_refused_where_a_label_means_another_class_at_every_client():
    entry = {"scheme": "acid", "classes_per_client": 3, "difficulty": BY_EXPERT}
    with refused(r"^partition.difficulty: .* null, because this scheme renames"):
        make(HARD, anonymous=True, **entry)
    assert_tested_on_own_labels(make(HARD, **entry))


def test_clients_are_tested_on_the_labels_that_they_truly_train_on():
    assert_tested_on_own_labels(make(scheme="shards", clients=50, label_noise={"ratio": 0.6}))


@pytest.mark.parametrize(
    ("clients", "mnist", "cifar"),
    [
        pytest.param(50, 960, 800, marks=pytest.mark.full),
        pytest.param(100, 480, 400, marks=pytest.mark.full),
        (500, 96, 80),
    ],
)
@pytest.mark.parametrize("stratified", [True, False])
@pytest.mark.parametrize("order", ["random", "in_order"])
def test_clients_hold_out_a_fifth_of_two_shards(clients, mnist, cifar, stratified, order):
    for samples, train in ((MNIST, mnist), (CIFAR, cifar)):
        whole = make(samples, scheme="shards", clients=clients, order=order)
        made = make(
            samples, scheme="shards", clients=clients, order=order, holdout=0.2, holdout_stratified=stratified
        )
        assert made.held_out and set(made.sizes.tolist()) == {train}
        assert {len(made.test(k)) for k in range(clients)} == {train // 4}
        for k in range(clients):
            assert sorted([*made.train(k), *made.test(k)]) == whole.train(k).tolist()


def test_every_label_gives_its_share_unless_samples_are_drawn_at_random():
    def off(**entry: object) -> float:
        """By how many samples at most a label's part of the held-out ones differs from its share."""
        made = make(scheme="dirichlet", alpha=0.5, holdout=0.2, **entry)
        train, test = (label_counts(CIFAR.labels, map(rows, range(100))) for rows in (made.train, made.test))
        return abs(test - 0.2 * (train + test)).max()

    assert off() <= 1.0001 and off(holdout_stratified=False) > 5


def test_a_label_gives_its_share_to_less_than_a_sample_and_a_half() -> None:
    """Its part of what is held out is right to less than one; the number of these is rounded."""
    draw, off_share, off_part = np.random.default_rng(0), 0.0, 0.0
    for _ in range(4000):
        n, share = int(draw.integers(2, 60)), float(draw.uniform(0.01, 0.99))
        labels = draw.integers(0, draw.integers(1, 6), n)
        _, (held,) = hold_out([np.arange(n)], labels, share, draw)
        sizes = np.bincount(labels)
        found = np.bincount(labels[held], minlength=len(sizes))
        off_share = max(off_share, abs(found - share * sizes).max())
        off_part = max(off_part, abs(found - len(held) / n * sizes).max())
    assert off_part < 1 < off_share < 1.5


def test_a_client_always_keeps_one_sample_and_is_tested_on_one():
    labels, two = np.zeros(4, int), [np.array([0, 1]), np.array([2, 3])]
    for share in (0.01, 0.99):
        train, test = hold_out(two, labels, share, rng())
        assert [len(rows) for rows in (*train, *test)] == [1, 1, 1, 1]


def held_by(plain, tuned, k: int) -> set[int]:
    """What client k trains on without validation, and not with it."""
    return set(plain.train(k).tolist()) - set(tuned.train(k).tolist())


@pytest.mark.parametrize("late", [0, 0.2])
def test_the_validation_pools_are_those_of_the_test_set_made_of_what_training_clients_hold_out(late):
    """So a try is judged by what the table reports: all samples of the labels that a client has."""
    entry = {"scheme": "dirichlet", "alpha": 0.5, "newcomers": late}
    plain, tuned = make(**entry), make(validation=0.25, **entry)
    assert tuned.held_out and tuned.newcomers == plain.newcomers
    held = [held_by(plain, tuned, k) for k in range(100)]
    assert [len(own) for own in held] == [max(1, round(0.25 * n)) for n in plain.sizes]
    everybody = np.array(sorted(set().union(*held[: plain.training_clients])))
    for k in range(plain.training_clients):
        assert set(tuned.train(k).tolist()) < set(plain.train(k).tolist())
        labels = np.unique(CIFAR.labels[plain.train(k)])
        assert tuned.test(k).tolist() == everybody[np.isin(CIFAR.labels[everybody], labels)].tolist()
    for k in range(plain.training_clients, 100):  # newcomers have no part in tuning
        assert not set(tuned.pool_indices.tolist()) & held[k]


@pytest.mark.parametrize(
    "entry", [{"scheme": "dirichlet", "alpha": 0.5, "holdout": 0.2}, {"scheme": "acid", "anonymous": True}]
)
def test_where_clients_have_test_sets_of_their_own_they_are_validated_on_their_own(entry):
    plain, tuned = make(**entry), make(validation=0.25, **entry)
    for k in range(100):
        assert set(tuned.test(k).tolist()) == held_by(plain, tuned, k)
        if "holdout" in entry:
            assert not set(plain.test(k).tolist()) & set(plain.train(k).tolist())


def test_clients_of_one_test_pool_share_what_they_hold_out():
    domains = np.arange(600) % 3
    samples = Samples(np.arange(600) % 2, np.arange(60) % 2, {"site": DataColumn(domains, domains[:60])})
    entry = {"scheme": "domains", "column": "site", "clients": 6}
    plain, tuned = make(samples, **entry), make(samples, validation=0.2, **entry)
    for k in range(6):
        alike = [j for j in range(6) if np.array_equal(plain.test(j), plain.test(k))]
        assert len(alike) == 2
        assert set(tuned.test(k).tolist()) == set().union(*(held_by(plain, tuned, j) for j in alike))


def test_real_targets_are_validated_on_all_that_is_held_out():
    samples = Samples(np.linspace(0, 1, 300), np.linspace(0, 1, 30))
    plain, tuned = (make(samples, scheme="iid", clients=5, **v) for v in ({}, {"validation": 0.2}))
    everybody = set().union(*(held_by(plain, tuned, k) for k in range(5)))
    assert all(set(tuned.test(k).tolist()) == everybody for k in range(5))


@pytest.mark.parametrize("scheme", [{}, {"scheme": "dirichlet", "alpha": 0.5, "newcomers": 0.2}])
def test_samples_to_choose_by_are_of_every_client_and_every_label(scheme):
    """Neither trained on, nor tested on, nor held out for tuning; newcomers have some too."""
    entry = {"holdout": 0.2, "clients": 20} | scheme
    plain, made = make(**entry), make(selection=0.25, **entry)
    for k in range(20):
        train, chosen_by = made.train(k), made.selection(k)
        assert sorted([*train, *chosen_by]) == plain.train(k).tolist()
        assert np.array_equal(made.test(k), plain.test(k))
        counts, of = (np.bincount(CIFAR.labels[rows], minlength=10) for rows in (chosen_by, plain.train(k)))
        assert (abs(counts - of / 4) < 1.0001).all()
    tuned = make(selection=0.25, validation=0.25, **entry)
    assert np.array_equal(tuned.selection_indices, made.selection_indices)
    assert not {*tuned.indices, *tuned.pool_indices} & set(tuned.selection_indices)


def test_who_chooses_by_what_is_stored_and_part_of_the_hash(tmp_path):
    made, plain = make(selection=0.25), make()
    made.save(tmp_path / "made")
    stored = load_partition(tmp_path / "made")
    assert stored.hash == made.hash != plain.hash
    assert np.array_equal(stored.selection(3), made.selection(3))
    assert plain.selection(3) is None and made.facts["samples_unused"] == 0


def test_labels_to_choose_by_are_as_wrong_as_those_to_train_on():
    made = make(HARD, selection=0.25, label_noise={"ratio": 1.0})
    assert (made.train_labels != CIFAR.labels)[made.selection_indices].all()


@pytest.mark.parametrize("purpose", ["holdout", "selection", "validation"])
def test_a_client_of_one_sample_cannot_hold_any_out(purpose):
    with refused(rf"partition.{purpose}: 0.2 .*0, because client 0 has 1 samples"):
        make(Samples(np.zeros(3, int), np.zeros(3, int)), clients=3, **{purpose: 0.2})


SHARING = {
    "label_groups": {"groups": 2, "sampler": "independent", "clients": 4, "samples_per_label": 400},
    "super_clusters": {"clusters": "cifar10", "control": "repo", "clients": 10},
    "dirichlet_disjoint": {"official": True, "clients": 20, "alpha": 0.5},
}


@pytest.mark.parametrize("after", ["difficulty", "holdout", "selection", "validation"])
@pytest.mark.parametrize("scheme", SHARING)
def test_where_clients_share_samples_nothing_is_held_out_or_dealt_again(scheme, after):
    labels = np.arange(5000) % 10
    samples = Samples(labels, labels[:500], losses=lambda difficulty: LOSSES[:5000])
    made = make(samples, scheme=scheme, **SHARING[scheme])
    assert len(np.unique(made.indices)) < len(made.indices)
    with refused(rf"^partition.{after}: .*because clients share samples"):
        make(
            samples, scheme=scheme, **SHARING[scheme], **{after: BY_EXPERT if after == "difficulty" else 0.2}
        )


@pytest.mark.parametrize("kind", ["pair", "symmetric"])
@pytest.mark.parametrize("ratio", [0, 0.1, 0.6, 1])
def test_rows_of_the_transition_matrix_are_probabilities(kind, ratio):
    matrix = transition(kind, ratio, 7)
    assert (matrix >= 0).all() and matrix.sum(1) == pytest.approx(np.ones(7))
    assert matrix.diagonal() == pytest.approx(np.full(7, 1 - ratio))


def test_the_matrices_of_superfed():
    assert transition("pair", 0.1, 4)[3] == pytest.approx([0.1, 0, 0, 0.9])
    assert transition("symmetric", 0.2, 4)[0] == pytest.approx([0.8, *[0.2 / 3] * 3])
    assert transition("symmetric", 0.6, 10)[4, 4:6] == pytest.approx([0.4, 0.0666667], abs=1e-6)
    # No accuracy on wrong labels is above their largest probability.
    assert transition("symmetric", 0.6, 10).max(1) == pytest.approx(np.full(10, 0.4))


@pytest.mark.parametrize(("kind", "ratio"), [("pair", 0.4), ("symmetric", 0.2), ("symmetric", 0.6)])
@pytest.mark.parametrize("protocol", ["clean", "official"])
def test_labels_are_replaced_as_often_as_the_matrix_says(kind, ratio, protocol):
    labels, noise = np.arange(100_000) % 10, LabelNoise(kind=kind, ratio=ratio, protocol=protocol)
    noisy = spoil(labels, np.arange(100_000), 10, noise, rng())
    rates = np.zeros((10, 10))
    np.add.at(rates, (labels, noisy), 1e-4)
    swapped = {"pair": "symmetric", "symmetric": "pair"}  # in the authors' code
    expected = transition(swapped[kind] if protocol == "official" else kind, ratio, 10)
    assert rates == pytest.approx(expected, abs=0.02)  # four standard deviations of 10,000 draws


@pytest.mark.parametrize("holdout", [0, 0.2])
def test_only_training_labels_are_wrong(holdout):
    made = make(scheme="shards", clients=20, pieces=40, holdout=holdout, label_noise={"ratio": 0.6})
    wrong = made.train_labels != CIFAR.labels
    assert wrong[made.indices].mean() == pytest.approx(0.6, abs=0.02)
    assert not np.delete(wrong, made.indices).any()  # held out, or of a piece that nobody uses
    assert made.test_labels is None and made.classes is None
    assert parts(made) == parts(make(scheme="shards", clients=20, pieces=40, holdout=holdout))


@pytest.mark.parametrize("scheme", [{"scheme": "shards"}, {"scheme": "dirichlet", "alpha": 100}])
@pytest.mark.parametrize(
    ("kind", "ratio"), [("pair", 0.1), ("pair", 0.4), ("symmetric", 0.2), ("symmetric", 0.6)]
)
@pytest.mark.parametrize("protocol", ["clean", "official"])
def test_the_set_ups_of_superfed(scheme, kind, ratio, protocol):
    """Clients test on a fifth of their samples: with right labels, or with wrong ones and kinds swapped."""
    entry = {"holdout": 0.2, "holdout_stratified": False} | scheme
    made = make(label_noise={"kind": kind, "ratio": ratio, "protocol": protocol}, **entry)
    assert parts(made) == parts(make(**entry)) and made.test_labels is None
    official = protocol == "official"
    for rows, wrong in ((made.indices, ratio), (made.pool_indices, official * ratio)):
        shifts = np.bincount((made.train_labels - CIFAR.labels)[rows] % 10, minlength=10) / len(rows)
        others = [wrong, *[0] * 8] if official is (kind == "symmetric") else [wrong / 9] * 9
        assert shifts == pytest.approx([1 - wrong, *others], abs=0.02)


def test_a_class_that_noise_wipes_out_is_still_a_class():
    samples = Samples(np.array([0, 0, 0, 1, 1, 2]), np.arange(3))
    made = make(samples, clients=2, label_noise={"kind": "pair", "ratio": 1})
    assert made.train_labels.tolist() == [1, 1, 1, 2, 2, 0] and made.classes is None


def test_noise_on_renamed_classes_is_of_those():
    made = make(scheme="acid", classes_per_client=3, anonymous=True, label_noise={"ratio": 0.6})
    assert made.classes == 3 and set(made.train_labels) == {0, 1, 2}


def test_numbers_have_no_wrong_label():
    with refused("targets of this dataset are .*numbers, not classes", FedflowError):
        make(Samples(np.linspace(0, 1, 60), np.zeros(5)), clients=3, label_noise={})


@pytest.mark.parametrize(("pieces", "size"), [(100, {500}), (200, {250}), (400, {125}), (800, {62, 63})])
def test_the_first_hundred_pieces_are_used(pieces, size):
    made, all_pieces = make(pieces=pieces), make(clients=pieces)
    assert len(made.sizes) == 100 and set(made.sizes.tolist()) <= size
    assert parts(made) == parts(all_pieces)[:100]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, 1),
        ({"pieces_used": "random"}, 0),
        ({"pieces": 20}, 0),
        ({"difficulty": BY_EXPERT | {"order": 0}}, 0),
    ],
)
def test_the_first_pieces_are_said_to_be_the_easiest(more, said):
    entry = {"clients": 20, "pieces": 100, "difficulty": BY_EXPERT} | more
    with warnings.catch_warnings(record=True) as lines:
        warnings.simplefilter("always")
        make(HARD, **entry)
    assert [str(line.message).startswith("partition.pieces_used: ") for line in lines] == [True] * said


@pytest.mark.parametrize("more", [{}, {"difficulty": BY_EXPERT}, {"newcomers": 0.2}])
def test_random_pieces_are_a_sample_of_all(more):
    cut = {"clients": 20, "pieces": 100, "pieces_used": "random"} | more
    made, again, other = (make(HARD, seed=seed, **cut) for seed in (3, 3, 4))
    everything = parts(make(HARD, seed=3, difficulty=more.get("difficulty")))
    used = [everything.index(part) for part in parts(made)]
    training = used[: made.training_clients]
    assert len(set(used)) == 20 and max(used) >= 20 and training == sorted(training)
    assert parts(again) == parts(made) != parts(other)
    assert len(training) == (16 if "newcomers" in more else 20)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"pieces": 50}, r"partition.pieces: 50 .*at least clients, which is 100"),
        ({"clients": None, "pieces": 50}, r"partition.pieces: 50 .*at least clients"),
        ({"pieces_used": "random"}, r"partition.pieces_used: 'random' .*first, without pieces"),
        ({"pieces": 60_000}, r"partition.pieces: 60000 .*at most 50000"),
        ({"pieces": 49_500, "public": 1000}, r"partition.pieces: 49500 .*at most 49000"),
        ({"public": 50_000}, r"partition.public: 50000 .*fewer than 50000"),
        ({"label_noise": {"kind": "pairs"}}, r"label_noise.kind: 'pairs' .*did you mean 'pair'"),
        ({"label_noise": {"ratio": 1.2}}, r"partition.label_noise.ratio: 1.2 .*<= 1"),
        ({"label_noise": {"rho": 0.2}}, r"partition.label_noise.rho: .*expected one of"),
        ({"label_noise": {"protocol": "dirty"}}, r"label_noise.protocol: 'dirty' .*clean, official"),
        (
            {"label_noise": {"protocol": "official"}},
            r"label_noise.protocol: 'official' .*clean without holdout",
        ),
    ],
)
def test_steps_are_checked_by_name(entry, message):
    with refused(message):
        make(**entry)


@pytest.mark.parametrize(
    ("entry", "unused"),
    [
        ({"holdout": 0.2}, 0),  # tested on
        ({"public": 1000}, 0),  # at the server
        ({"clients": 50, "pieces": 100, "holdout": 0.2}, 25_000),
        ({"holdout": 0.2, "validation": 0.2}, 10_000),  # while tuning, nobody sees the test samples
    ],
)
def test_unused_are_the_samples_that_nobody_trains_or_is_tested_on(entry, unused):
    assert make(**entry).facts["samples_unused"] == unused


def test_newcomers_are_of_every_planted_group_and_numbered_last():
    entry = {"scheme": "label_groups", "groups": 4, "clients": 100}
    made, plain = make(newcomers=0.2, **entry), make(**entry)
    assert (made.newcomers, made.training_clients) == (20, 80)
    assert np.bincount(made.groups[80:]).tolist() == [5] * 4
    assert sorted(parts(made)) == sorted(parts(plain))
    for some in (parts(made)[:80], parts(made)[80:]):  # both in their old order
        places = [parts(plain).index(rows) for rows in some]
        assert places == sorted(places)
    assert all(
        np.array_equal(made.groups[k], plain.groups[parts(plain).index(rows)])
        for k, rows in enumerate(parts(made))
    )


@given(clients=st.integers(2, 60), share=st.floats(0.01, 0.99), groups=st.integers(1, 5))
def test_any_share_of_clients_joins_late_spread_over_the_groups(clients, share, groups):
    planted = np.arange(clients) % groups
    late = round(share * clients)
    if not 0 < late < clients:
        with refused(f"partition.newcomers: .* 1 to {clients - 1} of {clients} clients"):
            order_of_joining(clients, share, planted, rng())
        return
    order, count = order_of_joining(clients, share, planted, rng())
    assert count == late and sorted(order.tolist()) == list(range(clients))
    ours = np.bincount(planted[order[-late:]], minlength=groups)
    sizes = np.bincount(planted, minlength=groups)
    assert (abs(ours - late * sizes / clients) < 1.0001).all()


def test_the_seed_decides_who_joins_late():
    one, again, other = (make(newcomers=0.2, seed=seed) for seed in (1, 1, 2))
    assert one.hash == again.hash != other.hash
    assert one.hash != make(seed=1).hash


def test_what_follows_a_scheme_does_not_change_the_draws_of_the_rest():
    """Each has its own generator: who joins late is the same with and without a hold-out."""
    entry = {"scheme": "dirichlet", "alpha": 0.5, "newcomers": 0.2, "public": 1000}
    plain = make(HARD, **entry)
    held = make(HARD, holdout=0.2, label_noise={"ratio": 0.2}, **entry)
    assert [sorted([*held.train(k), *held.test(k)]) for k in range(100)] == parts(plain)
    assert np.array_equal(held.public, plain.public)
    everything = make(
        HARD, holdout=0.2, validation=0.2, difficulty=BY_EXPERT, label_noise={}, pieces=120, **entry
    )
    assert not set(everything.indices) & set(everything.pool_indices)
    assert not set(everything.public) & {*everything.indices, *everything.pool_indices}
    assert not (everything.train_labels != CIFAR.labels)[everything.pool_indices].any()


class Halves(Scheme):
    """Every client selects on its first sample, and is tested on its last one."""

    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> Split:
        parts = np.array_split(np.arange(len(samples.labels)), clients)
        pools, pool_of = [rows[-1:] for rows in parts], list(np.arange(clients)[:, None])
        selection = [rows[:1] for rows in parts]
        return Split([rows[1:-1] for rows in parts], None, pools, pool_of, selection, held_out=True)


class Renamed(Scheme):
    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> Split:
        return Split([np.arange(len(samples.labels))], train_labels=samples.labels + 0.5)


def test_what_a_scheme_holds_out_is_apart_from_public_samples(monkeypatch):
    monkeypatch.setitem(SCHEMES, "halves", Halves)
    made = make(Samples(np.arange(40) % 2, np.arange(4) % 2), scheme="halves", clients=4, public=8)
    whole = [made.public, made.indices, made.pool_indices, made.selection_indices]
    assert np.array_equal(np.sort(np.concatenate(whole)), np.arange(40))


def test_labels_of_a_scheme_are_whole_numbers(monkeypatch):
    monkeypatch.setitem(SCHEMES, "renamed", Renamed)
    with refused("train_labels of a scheme must be whole numbers, not float64", FedflowError):
        make(Samples(np.arange(40) % 2, np.arange(4) % 2), scheme="renamed", clients=1)
