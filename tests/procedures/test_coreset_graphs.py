"""Graphs and walks on them: Definition 1, powers, norms of columns, generators, and files."""

import gzip

import numpy as np
import pytest
from coreset_measures import zeta0
from scipy import sparse
from scipy.sparse import csgraph
from scipy.spatial.distance import cdist
from support import refused

from fedflow.procedures.coresets.graph import (
    SHARES_TEXT,
    Operator,
    block_model,
    gaussian_mixture,
    knn_graph,
    power_law_tree,
    random_graph,
    read_adjacency,
    read_cora,
    read_edges,
)

EDGE = np.array([[0, 1.0], [1, 0]])


def weighted(seed: int, n: int = 30, chance: float = 0.2) -> np.ndarray:
    """A connected graph with random weights."""
    rng = np.random.default_rng(seed)
    upper = np.triu((rng.random((n, n)) < chance) * rng.random((n, n)), 1) + np.diag(np.full(n - 1, 0.1), 1)
    return upper + upper.T


def test_the_lazy_walk_is_that_of_definition_1():
    graph = weighted(0)
    graph[3, 3] = 0.5  # a loop
    degrees = graph.sum(1)
    matrix = Operator(graph).matrix.toarray()
    assert np.allclose(matrix, (graph - np.diag(degrees)) / degrees.max() + np.eye(30), atol=1e-15)
    assert (matrix == matrix.T).all() and (matrix >= 0).all() and np.allclose(matrix.sum(0), 1)
    assert matrix[3, 3] == pytest.approx(1 - degrees[3] / degrees.max() + 0.5 / degrees.max())


def test_stored_zeros_are_no_edges_and_the_given_matrix_stays_as_it_is():
    given = sparse.csr_array((np.array([1.0, 0, 1, 0]), np.array([1, 2, 0, 0]), np.array([0, 2, 3, 4])))
    with pytest.warns(UserWarning, match="2 components"):
        assert Operator(given).adjacency.nnz == 2
    assert given.nnz == 4 and given.data.tolist() == [1, 0, 1, 0]


def test_a_walk_need_not_be_lazy():
    square = Operator(np.roll(np.eye(4), 1, 0) + np.roll(np.eye(4), -1, 0))
    assert np.linalg.eigvalsh(square.matrix.toarray())[0] == pytest.approx(-1)


@pytest.mark.parametrize("kind", ["lazy", "sym_norm"])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_powers_columns_and_norms_are_those_of_the_dense_matrix(kind, steps):
    graph = csgraph.minimum_spanning_tree(weighted(1, 600, 0.05))  # columns of P^2 sparse, of P^5 not all
    operator = Operator(graph + graph.T, steps, kind)
    adjacency = operator.adjacency.toarray()
    one = operator.matrix.toarray()
    if kind == "sym_norm":
        scale = (adjacency.sum(1) + 1) ** -0.5
        assert np.allclose(one, scale[:, None] * (adjacency + np.eye(600)) * scale)
    power = np.linalg.matrix_power(one, steps)
    assert np.allclose(operator.columns([5, 0]), power[:, [5, 0]], atol=1e-14)
    assert np.allclose(operator.apply(adjacency[0]), power @ adjacency[0])
    assert np.allclose(operator.norms, np.linalg.norm(power, axis=0), atol=1e-14)
    assert np.allclose(operator.products(7), (power[:, 7], power @ power[:, 7]), atol=1e-14)
    stars = power / np.linalg.norm(power, axis=0)
    assert np.allclose(zeta0(operator), stars.sum(0) / np.sqrt(600), atol=1e-14)
    if kind == "lazy":
        assert (operator.norms >= 600**-0.5 - 1e-12).all() and (operator.norms <= 1 + 1e-12).all()


def test_dense_columns_have_the_same_products_as_sparse_ones(monkeypatch):
    kept = Operator(weighted(2), 3)
    monkeypatch.setattr("fedflow.procedures.coresets.graph.DENSE", -1.0)
    dense = Operator(weighted(2), 3)
    assert np.allclose(kept.norms, dense.norms, atol=1e-15)
    assert np.allclose(kept.products(4), dense.products(4), atol=1e-15)


def test_a_disconnected_graph_warns_and_an_isolated_node_stays_where_it_is():
    with pytest.warns(UserWarning, match="the graph has 2 components: no walk leaves its own"):
        operator = Operator(sparse.block_diag([EDGE, [[0]]]), 3)
    assert operator.columns([2])[:, 0].tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("graph", "settings", "message"),
    [
        (np.zeros((3, 3)), {}, "adjacency: 'no edge' is not accepted; expected a graph with edges"),
        (-EDGE, {}, "adjacency: -1.0 .* weights >= 0"),
        (EDGE * np.nan, {}, "adjacency: nan .* finite weights"),
        (np.triu(EDGE), {}, "adjacency: 'a difference of 1' .* a symmetric matrix"),
        (np.ones((2, 3)), {}, r"adjacency: \(2, 3\) .* a square matrix"),
        (EDGE, {"steps": 0}, "steps: 0 .* >= 1"),
        (EDGE, {"kind": "random"}, "kind: 'random' .* lazy or sym_norm"),
    ],
)
def test_what_cannot_be_walked_on_is_refused(graph, settings, message):
    with refused(message):
        Operator(graph, **settings)


def test_nearest_neighbors_are_joined_if_either_is_near_the_other():
    points = np.random.default_rng(0).normal(size=(40, 3))
    distances = cdist(points, points)
    near = np.argsort(distances, axis=1)[:, 1:4]
    expected = np.zeros((40, 40))
    expected[np.arange(40)[:, None], near] = 1
    expected = np.maximum(expected, expected.T)
    assert (knn_graph(points, 3).toarray() == expected).all()
    scale = distances[np.arange(40)[:, None], near].mean()
    gaussian = expected * np.exp(-((distances / scale) ** 2) / 2)
    assert np.allclose(knn_graph(points, 3, "gaussian").toarray(), gaussian)


def test_the_mixture_has_the_shares_of_the_text_or_of_the_figure():
    for shares, sizes in ((SHARES_TEXT, [200, 300, 500]), ((0.3, 0.5, 0.2), [300, 500, 200])):
        points, component = gaussian_mixture(1000, shares, np.random.default_rng(0))
        assert np.bincount(component).tolist() == sizes
        centers = [points[component == c].mean(0) for c in range(3)]
        assert np.allclose(centers, [(1, -3), (-3, 2), (3, 0)], atol=0.2)
        assert points.std(0).shape == (2,) and points[component == 0].std() > 0.8


def test_the_block_model_has_edges_with_the_probabilities_of_its_blocks():
    graph, block = block_model([100, 300], 0.1, 0.01, np.random.default_rng(0))
    assert np.bincount(block).tolist() == [100, 300] and (graph != graph.T).nnz == 0
    dense = graph.toarray()
    assert dense.diagonal().sum() == 0 and set(dense.ravel()) == {0, 1}
    assert dense[:100, :100].sum() / 9900 == pytest.approx(0.1, rel=0.1)
    assert dense[:100, 100:].mean() == pytest.approx(0.01, rel=0.2)
    again = block_model([100, 300], 0.1, 0.01, np.random.default_rng(0))[0]
    assert (graph != again).nnz == 0


def test_trees_and_random_graphs_are_connected_and_follow_the_seed():
    tree = power_law_tree(100, 1)
    assert tree.nnz == 2 * 99 and csgraph.connected_components(tree)[0] == 1
    assert (tree != power_law_tree(100, 1)).nnz == 0 and (tree != power_law_tree(100, 2)).nnz > 0
    assert csgraph.connected_components(random_graph(100, 0.1, 0))[0] == 1
    with pytest.warns(UserWarning, match="the random graph of 100 nodes is its largest component, of 9"):
        part = random_graph(100, 0.03, 0)
    assert 90 <= part.shape[0] < 100 and csgraph.connected_components(part)[0] == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: knn_graph([[0.0], [np.nan]], 1), "points: nan .* finite numbers"),
        (lambda: knn_graph(np.zeros((3, 2)), 3), "neighbors: 3 .* >= 1 and < 3"),
        (lambda: knn_graph(np.zeros((3, 2)), 1, "cosine"), "weights: 'cosine' .* binary or gaussian"),
        (lambda: block_model([], 0.1, 0.1, np.random.default_rng(0)), "sizes: .* at least one block"),
        (lambda: block_model([5], 1.5, 0.1, np.random.default_rng(0)), "p_in: 1.5 .* a probability"),
        (lambda: gaussian_mixture(9, (0.5, 0.5), np.random.default_rng(0)), "shares: .* 3 numbers"),
        (lambda: power_law_tree(1, 0), "n: 1 .* >= 2"),
        (lambda: random_graph(10, 1e-9, 0), "p: 1e-09 .* 10 nodes have an edge"),
    ],
)
def test_graphs_that_cannot_be_made_are_refused(make, message):
    with refused(message):
        make()


def test_cora_is_read_with_words_and_classes_in_the_order_of_their_names(tmp_path):
    (tmp_path / "cora.content").write_text("31 0 1 1 Theory\n5 1 0 0 Genetic\n7 0 0 1 Theory\n")
    (tmp_path / "cora.cites").write_text("31 5\n5 31\n7 5\n7 7\n")
    graph, words, labels = read_cora(tmp_path)
    assert graph.toarray().tolist() == [[0, 1, 0], [1, 0, 1], [0, 1, 0]]
    assert words.toarray().tolist() == [[0, 1, 1], [1, 0, 0], [0, 0, 1]] and labels.tolist() == [1, 0, 1]
    (tmp_path / "cora.cites").write_text("31 6\n")
    with refused("cora.cites: '31 6' .* two papers of cora.content"):
        read_cora(tmp_path)
    (tmp_path / "cora.content").write_text("31 0 1 Theory\n5 1 Genetic\n")
    with refused("cora.content"):
        read_cora(tmp_path)
    with refused("file: 'cora.content' .* can be read"):
        read_cora(tmp_path / "elsewhere")


@pytest.mark.parametrize("text", ["0 7\n7 3\n3 7\n", "# a comment\n7,0\n3,7\n", "node_1,node_2\n0,7\n7,3\n"])
def test_edges_are_read_in_any_of_their_forms(tmp_path, text):
    plain, packed = tmp_path / "edges.txt", tmp_path / "edges.txt.gz"
    plain.write_text(text)
    packed.write_bytes(gzip.compress(text.encode()))
    for file in (plain, packed):
        assert read_edges(file).toarray().tolist() == [[0, 0, 1], [0, 0, 1], [1, 1, 0]]


def test_edges_may_have_weights_but_nothing_else(tmp_path):
    file = tmp_path / "edges.txt"
    file.write_text("0 1 2.5\n1 0 2\n")
    assert read_edges(file).toarray().tolist() == [[0, 2.5], [2.5, 0]]
    for text in ("0 1\n1 x\n", "", "5\n"):
        file.write_text(text)
        with refused("edges: 'edges.txt' .* two node numbers per line"):
            read_edges(file)
    file.write_text("0 1 2.5\n1 2 -3\n")
    with refused("edges: -3.0 .*weights >= 0"):
        read_edges(file)


def test_rows_of_an_adjacency_keep_their_numbers(tmp_path):
    file = tmp_path / "edges.csv"
    file.write_text("from,to\n1,3\n")
    assert read_adjacency(file).nonzero()[0].tolist() == [1, 3]
    assert read_adjacency(file, 5).shape == (5, 5)
    for text, wrong in (("1,2\n2,5\n", "5"), ("0,1\n-1,0\n", "-1"), ("0,1.5\n", "1.5")):
        file.write_text(text)
        with refused(f"adjacency: '{wrong}' .*rows from 0 to 4"):
            read_adjacency(file, 5)
