"""Signatures, their distances, thresholds, graphs and clusters: the worked numbers of FLT."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support import refused

from fedflow.heterogeneity.relatedness import (
    decomposition_error,
    disjoint,
    distances,
    equal_rows,
    graph,
    largest_gap,
    reduce,
    signature,
)
from fedflow.seeding import generator

Z = np.array(
    [
        [(0, 0), (4, 0)],
        [(4.2, 0.1), (0.1, 0.2)],
        [(4, 0.3), (9, 9)],
        [(9.2, 9.1), (4.1, -0.2)],
        [(20, 0), (20, 5)],
    ]
)


def blocks(*members: tuple[int, ...], edges: tuple[tuple[int, int], ...] = ()) -> np.ndarray:
    """The graph of disjoint blocks, and some further edges."""
    related = np.zeros((sum(map(len, members)),) * 2, dtype=bool)
    for block in members:
        related[np.ix_(block, block)] = True
    for i, j in edges:
        related[i, j] = related[j, i] = True
    return related


def test_matching_distances_and_their_graph():
    a = distances(Z)
    upper = {
        (0, 1): 0.1581,
        (0, 2): 5.5247,
        (0, 3): 5.6281,
        (1, 2): 5.4192,
        (1, 3): 5.5263,
        (2, 3): 0.2784,
        (0, 4): 13.048,
        (1, 4): 12.9296,
        (2, 4): 9.9132,
        (3, 4): 9.8273,
    }
    assert {pair: a[pair] for pair in upper} == pytest.approx(upper, abs=5e-5)
    assert np.array_equal(a, a.T) and not a.diagonal().any()
    assert disjoint(graph(a, 1)).tolist() == [0, 0, 1, 1, 2]
    squared = distances(Z, "matching_sq")
    assert (squared[0, 1], squared[2, 3]) == pytest.approx((0.05, 0.155))


def test_closest_pairs_join_all_that_have_a_mean_in_common():
    a = distances(Z, "min_pair")
    upper = {
        (0, 1): 0.2236,
        (0, 2): 0.3,
        (0, 3): 0.2236,
        (1, 2): 0.2828,
        (1, 3): 0.3162,
        (2, 3): 0.2236,
        (0, 4): 16,
        (3, 4): 11.5521,
    }
    assert {pair: a[pair] for pair in upper} == pytest.approx(upper, abs=5e-5)
    related = graph(a, 1)
    assert related[:4, :4].all() and related[4].tolist() == [False] * 4 + [True]


def test_signatures_of_different_sizes_match_in_the_best_way():
    """(0, 0) with itself and (1, 0) with (1.5, 0): sqrt(0.25) / 2."""
    pair = [np.array([(0.0, 0), (1, 0)]), np.array([(5.0, 5), (0, 0), (1.5, 0)])]
    assert distances(pair)[0, 1] == 0.25 and distances(pair, "min_pair")[0, 1] == 0
    with refused(r"distance: 'mean' .* one of matching, matching_sq, min_pair"):
        distances(Z, "mean")


@given(
    st.lists(arrays(float, st.tuples(st.integers(1, 4), st.just(2)), elements=st.floats(-9, 9)), min_size=2),
    st.floats(0.1, 9),
    st.randoms(use_true_random=False),
)
def test_relatedness_does_not_depend_on_numbers_and_grows_with_gamma(signatures, gamma, random):
    a, order = distances(signatures), list(range(len(signatures)))
    random.shuffle(order)
    np.testing.assert_allclose(distances([signatures[i] for i in order]), a[np.ix_(order, order)], atol=1e-9)
    related = graph(a, gamma)
    assert np.array_equal(related, related.T) and related.diagonal().all()
    assert not (related & ~graph(a, 2 * gamma)).any()


def test_the_threshold_lies_in_the_largest_gap():
    x = np.array([0, 0.5, 5, 5.2])
    a = np.abs(x[:, None] - x)
    assert largest_gap(a) == pytest.approx((0.5 + 4.5) / 2)
    assert disjoint(graph(a, largest_gap(a))).tolist() == [0, 0, 1, 1]


def test_clients_at_equal_distances_are_all_related():
    for a in (np.zeros((3, 3)), 1 - np.eye(3), np.zeros((1, 1))):
        assert largest_gap(a) == np.inf and graph(a, np.inf).all()


def test_ward_recovers_blocks_also_with_an_edge_too_many():
    members = (0, 3, 5), (1, 4), (2, 6)
    expected = [0, 1, 2, 0, 1, 0, 2]
    assert disjoint(blocks(*members)).tolist() == expected
    assert disjoint(blocks(*members), 3).tolist() == expected
    linked = blocks(*members, edges=((0, 1),))
    assert disjoint(linked, 3).tolist() == expected
    assert disjoint(linked).tolist() == [0, 0, 1, 0, 0, 0, 1]


def test_ward_takes_a_ring_apart():
    """Pairs on a ring of five, each related to both neighbors: every row has 6 of 10."""
    pair = np.arange(10) // 2
    related = np.isin((pair[:, None] - pair) % 5, (0, 1, 4))
    assert (related.sum(1) == 6).all()
    assert disjoint(related, 5).tolist() == pair.tolist()
    assert disjoint(related).tolist() == [0] * 10


def test_ward_leaves_the_number_of_clusters_that_is_asked_for():
    related = blocks((0, 1), (2, 3), (4, 5))
    assert [disjoint(related, c).max() + 1 for c in (1, 2, 3, 6)] == [1, 2, 3, 6]
    assert disjoint(np.ones((1, 1), dtype=bool), 1).tolist() == [0]


def test_decomposition_error_is_the_share_of_edges_between_clusters():
    """The blocks have 13 entries in the matrix, and the edge between them 2 more."""
    members = (0, 1, 2), (3, 4)
    related = blocks(*members, edges=((0, 3),))
    assert decomposition_error(related, disjoint(related, 2)) == pytest.approx(2 / 15)
    assert decomposition_error(blocks(*members), disjoint(blocks(*members))) == 0


def test_clients_with_the_same_relatives_are_alike():
    chain = blocks((0,), (1,), (2,), (3,), edges=((0, 1), (1, 2)))
    assert equal_rows(chain).tolist() == [0, 1, 2, 3]
    assert equal_rows(blocks((0, 2), (1, 3))).tolist() == [0, 1, 0, 1]


def test_a_signature_has_no_more_means_than_there_are_distinct_samples():
    x = torch.tensor([[0.0, 0], [0, 0], [3, 4], [3, 4]])
    assert signature(x, 5, generator(0, "signature")).tolist() == [[0, 0], [3, 4]]
    assert signature(x[:1], 5, generator(0, "signature")).tolist() == [[0, 0]]


def gaussians(labels: list[tuple[int, ...]], seed: int) -> list[np.ndarray]:
    """Signatures of ten clients, two with each of these labels: 60 samples of Gaussian classes in R^16."""
    rng = generator(seed, "gaussians")
    means = 4 * rng.standard_normal((10, 16))
    found = []
    for own in np.repeat(np.arange(5), 2):
        y = np.repeat(labels[own], 60 // len(labels[own]))
        x = torch.from_numpy(means[y] + rng.standard_normal((60, 16)))
        found.append(signature(x, len(labels[own]), generator(0, "signature")).numpy())
    return found


@pytest.mark.parametrize("seed", range(4))
def test_clusters_are_found_where_labels_differ(seed):
    pairs = np.repeat(np.arange(5), 2).tolist()
    apart = gaussians([(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)], seed)
    for distance in "matching", "min_pair":
        a = distances(apart, distance)
        assert disjoint(graph(a, largest_gap(a))).tolist() == pairs
    ring = gaussians([(0, 1, 2), (2, 3, 4), (4, 5, 6), (6, 7, 8), (8, 9, 0)], seed)
    a, closest = distances(ring), distances(ring, "min_pair")
    assert disjoint(graph(a, largest_gap(a))).tolist() == pairs
    assert disjoint(graph(closest, largest_gap(closest))).tolist() == [0] * 10  # they share labels


def test_principal_components_keep_distances_within_a_plane():
    rng = generator(0, "plane")
    x = rng.standard_normal((8, 2)) @ rng.standard_normal((2, 5))
    flat = reduce(x, "pca", 2, rng)
    assert flat.shape == (8, 2)
    np.testing.assert_allclose(distances(np.split(flat, 4)), distances(np.split(x, 4)), atol=1e-12)
    assert reduce(x[:2], "pca", 3, rng).shape == (2, 2)
    assert reduce(x, "none", 2, rng) is x


def test_t_sne_keeps_groups_together():
    x = np.concatenate([generator(0, "groups").standard_normal((6, 5)), np.full((6, 5), 50.0)])
    flat = reduce(x, "tsne", 2, generator(0, "t-SNE"))
    assert np.array_equal(flat, reduce(x, "tsne", 2, generator(0, "t-SNE")))
    center, other = flat[:6].mean(0), flat[6:].mean(0)
    assert (np.linalg.norm(flat[:6] - center, axis=1) < np.linalg.norm(flat[:6] - other, axis=1)).all()


@pytest.mark.slow  # it compiles for ten seconds and more
@pytest.mark.filterwarnings("error:n_neighbors is larger", "error:n_jobs value")
def test_umap_finds_the_planted_groups_and_is_repeatable():
    """FLT's rule, gamma = 1 in units of UMAP: 40 clients in five groups, each with means of four clusters."""
    rng = generator(0, "groups")
    centers = np.repeat(10 * rng.standard_normal((5, 1, 4, 16)), 8, axis=1).reshape(-1, 16)
    points = centers + 0.1 * rng.standard_normal(centers.shape)
    flat = reduce(points, "umap", 2, generator(0, "UMAP"))
    assert np.array_equal(flat, reduce(points, "umap", 2, generator(0, "UMAP")))
    related = graph(distances(np.split(flat, 40)), 1.0)
    assert np.array_equal(related, np.kron(np.eye(5, dtype=bool), np.ones((8, 8), bool)))
    assert reduce(points[:6], "umap", 2, generator(0, "UMAP")).shape == (6, 2)  # fewer than its 15 neighbors


def test_training_keeps_its_number_of_threads_after_umap(monkeypatch):
    """Numba may give OpenMP, and so PyTorch, all processors: then last bits depend on their number."""

    class Greedy:
        def __init__(self, **_: object) -> None: ...

        def fit_transform(self, points: np.ndarray) -> np.ndarray:
            torch.set_num_threads(2)
            return points

    monkeypatch.setitem(sys.modules, "umap", SimpleNamespace(UMAP=Greedy))
    reduce(np.ones((8, 5)), "umap", 2, generator(0, "UMAP"))
    assert torch.get_num_threads() == 1


def test_umap_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)
    with refused(r"method.reducer: 'umap' .* unless fedflow is installed as .*\[umap\]"):
        reduce(np.ones((8, 5)), "umap", 2, generator(0, "UMAP"))
