"""A matrix of label shares: worked numbers, files, and what cannot be."""

import json

import numpy as np
import pytest
from dealing import disjoint, label_counts, make
from hypothesis import given
from hypothesis import strategies as st
from support import refused

from fedflow.errors import FedflowError
from fedflow.partition import PartitionParams, Samples
from fedflow.partition.label_shares import LabelShares

LABELS = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [100, 200, 300]))


def counts(shares: object, labels: np.ndarray = LABELS, **options: object) -> list[list[int]]:
    scheme = LabelShares.parse({"shares": shares} | options)
    parts = scheme.split(Samples(labels), scheme.count(Samples(labels)), np.random.default_rng(0)).train
    assert disjoint(parts)
    return label_counts(labels, parts).tolist()


def test_a_row_is_the_mix_of_a_client_and_sizes_fit_the_scarcest_label():
    """Equal sizes of 300 want 150 + 120 of label 0, which has 100: both shrink to floor(300 100 / 270)."""
    assert counts([[1, 0, 1], [2, 3, 0]]) == [[56, 0, 55], [44, 67, 0]]


def test_given_sizes_are_kept_and_only_proportions_count():
    assert counts([[2, 0, 2], [1, 2, 3]], sizes=[40, 60]) == [[20, 0, 20], [10, 20, 30]]
    assert counts([[0.5, 0, 0.5], [10, 20, 30]], sizes=[40, 60]) == [[20, 0, 20], [10, 20, 30]]


@given(
    stock=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    clients=st.integers(1, 6),
    seed=st.integers(0, 999),
)
def test_any_shares_give_disjoint_parts_near_the_mix_that_is_asked_for(stock, clients, seed):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(stock)), stock)
    matrix = rng.integers(0, 4, (clients, len(stock))) * 1.0
    matrix[:, 0] += 1
    found = np.array(counts(matrix.tolist(), labels))
    assert (found.sum(0) <= stock).all() and not found[matrix == 0].any()
    mix = matrix / matrix.sum(1, keepdims=True)
    assert (np.abs(found - found.sum(1, keepdims=True) * mix) < len(stock)).all()


@pytest.mark.parametrize("suffix", ["npy", "csv"])
def test_shares_come_from_a_file_below_the_project(tmp_path, suffix):
    matrix = np.array([[2.0, 0, 2], [1, 2, 3]])
    np.save(tmp_path / "mix.npy", matrix)
    np.savetxt(tmp_path / "mix.csv", matrix, delimiter=",")
    entry = {"dataset": "d", "scheme": "label_shares", "shares": f"mix.{suffix}", "sizes": [40, 60]}
    made = make(Samples(LABELS, LABELS, root=tmp_path), **entry)
    inline = make(Samples(LABELS, LABELS), **entry | {"shares": matrix.tolist()})
    assert made.hash == inline.hash and PartitionParams.parse(entry).files() == [f"mix.{suffix}"]
    assert json.loads(json.dumps(made.summary()))["samples_unused"] == 500


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "text.csv").write_text("a,b,c\n1,2,3\n")
    np.save(tmp_path / "objects.npy", np.array([None]), allow_pickle=True)
    for name in ("none.npy", "text.csv", "objects.npy"):
        with refused(rf"{name}: cannot be read", FedflowError):
            LabelShares(shares=name).count(Samples(LABELS, root=tmp_path))


@pytest.mark.parametrize(
    ("shares", "options", "message"),
    [
        ([[1, 2]], {}, r"partition.shares: .* rows of 3 numbers >= 0, one per label"),
        ([[1, 2, 3], [1, 2]], {}, r"partition.shares: .* rows of 3 numbers"),
        ([[1, 2, -3]], {}, r"partition.shares: .* numbers >= 0"),
        ([[1, 0, 0], [0, 0, 0]], {}, r"partition.shares: .* not all 0"),
        ([], {}, r"partition.shares: \[\] .* rows of 3 numbers"),
        ([[1, 0, 0]], {"sizes": [101]}, r"partition.sizes: \[101\] .* label 0 has 100 samples, .* need 101"),
        ([[2, 2, 2], [3, 0, 2]], {"sizes": [100, 150]}, "partition.sizes"),
    ],
)
def test_shares_that_cannot_be_are_refused(shares, options, message):
    with refused(message):
        counts(shares, **options)


def test_one_row_per_client_is_needed():
    with refused(r"partition.clients: 3 .* 2, the rows of shares"):
        LabelShares(shares=[[1, 1, 1]] * 2).split(Samples(LABELS), 3, np.random.default_rng(0))
