"""Other ways to choose nodes, and the measures of what they choose."""

import networkx as nx
import numpy as np
import pytest
from coreset_measures import beta, path_errors, smooth, squared_error
from scipy import sparse
from support import refused
from test_coreset_graphs import weighted
from test_coreset_selection import PATH, STAR, sixty

from fedflow.procedures.coresets.baselines import BASELINES, Problem, centrality
from fedflow.procedures.coresets.graph import Operator, distances, knn_graph, power_law_tree, random_graph
from fedflow.procedures.coresets.select import objective_error


def problem(graph, steps: int = 1, **settings) -> Problem:
    operator = Operator(graph, steps)
    return Problem(operator.adjacency, operator, **settings)


def chosen(name: str, of: Problem, k: int, seed: int = 0) -> np.ndarray:
    """Weights of all nodes [n]."""
    nodes, weights = BASELINES[name](of, k, np.random.default_rng(seed))
    full = np.zeros(of.operator.n)
    full[nodes] = weights
    return full


def frank_wolfe(columns: np.ndarray, sigma: float, k: int) -> np.ndarray:
    """As in the table of Section 7, on dense columns and with any ``sigma``."""
    n, norms = len(columns), np.linalg.norm(columns, axis=0)
    vertices, target = sigma * np.eye(n) / norms, np.full(n, 1 / n)
    weights = vertices[np.argmax(columns.T @ target / norms)]
    for _ in range(k - 1):
        residual = target - columns @ weights
        vertex = vertices[np.argmax(columns.T @ residual / norms)]
        towards = columns @ (vertex - weights)
        weights = weights + np.clip(towards @ residual / (towards @ towards), 0, 1) * (vertex - weights)
    return weights


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("points", [False, True])
def test_all_choose_distinct_nodes_in_order_and_repeat_themselves(name, points):
    cloud = np.random.default_rng(0).normal(size=(60, 2))
    graph = knn_graph(cloud, 6)
    costs = np.random.default_rng(1).random(60)
    given = problem(graph, 2, points=cloud if points else None, costs=costs, kappa=0.5)
    for k in (1, 7):
        nodes, weights = BASELINES[name](given, k, np.random.default_rng(2))
        assert 1 <= len(nodes) <= k and nodes.shape == weights.shape and (np.diff(nodes) > 0).all()
        assert (weights > 0).all() and 0.05 < weights.sum() < 2
        again = BASELINES[name](given, k, np.random.default_rng(2))
        assert np.array_equal(nodes, again[0]) and np.array_equal(weights, again[1])
    for k in (0, 61):
        with refused(f"k: {k} .* >= 1 and <= 60, the number of nodes"):
            BASELINES[name](given, k, np.random.default_rng(0))


def test_frank_wolfe_needs_the_sigma_of_its_target():
    given = problem(sixty())
    columns, norms = given.operator.matrix.toarray(), given.operator.norms
    for k in (1, 10, 30):
        found = chosen("frank_wolfe", given, k)
        assert np.allclose(found, frank_wolfe(columns, norms.mean(), k), atol=1e-12)
        assert norms @ found == pytest.approx(norms.mean())
    printed = objective_error(given.operator, frank_wolfe(columns, norms.sum(), 10))
    assert printed == pytest.approx(10.2503, abs=1e-4)


def test_shares_of_frank_wolfe_are_those_of_the_nearest_nodes():
    path = chosen("frank_wolfe_shares", problem(PATH), 2)
    assert path.tolist() == [0.5, 0, 0, 0.5]
    star = chosen("frank_wolfe_shares", problem(STAR), 2)  # leaves are as far from a leaf as twice from 0
    assert star.tolist() == [0.8, 0.2, 0, 0, 0]
    with pytest.warns(UserWarning, match="2 components"):
        apart = problem(sparse.block_diag([PATH, PATH]))
    with refused("graph: .several components. .* distances give the weights"):
        BASELINES["frank_wolfe_shares"](apart, 1, np.random.default_rng(0))


@pytest.mark.parametrize("name", ["kmeans", "spectral"])
def test_clusters_far_apart_weigh_what_they_hold(name):
    rng = np.random.default_rng(0)
    points = np.concatenate([center + rng.normal(size=(size, 2)) for center, size in ((0, 20), (50, 30))])
    with pytest.warns(UserWarning, match="2 components"):
        found = chosen(name, problem(knn_graph(points, 5), points=points), 2)
    (first, second), weights = np.flatnonzero(found), found[found > 0]
    assert first < 20 <= second and np.allclose(weights, [0.4, 0.6])
    if name == "kmeans":
        distance = np.linalg.norm(points[:20] - points[:20].mean(0), axis=1)
        assert first == distance.argmin()


@pytest.mark.parametrize("graph", [power_law_tree(60, 0), random_graph(80, 0.06, 0), PATH, STAR])
def test_betweenness_is_that_of_networkx(graph):
    given = problem(graph)
    expected = nx.betweenness_centrality(nx.from_scipy_sparse_array(given.adjacency))
    assert np.allclose(centrality(given.operator), list(expected.values()), atol=1e-14)
    highest = sorted(expected, key=lambda v: (-round(expected[v], 9), v))[:3]
    assert np.flatnonzero(chosen("betweenness", given, 3)).tolist() == sorted(highest)


def test_betweenness_of_parts_and_of_a_graph_with_loops(monkeypatch):
    monkeypatch.setattr("fedflow.procedures.coresets.baselines.BLOCK", 3)
    with pytest.warns(UserWarning, match="2 components"):
        operator = Operator(sparse.block_diag([PATH + np.eye(4), STAR]))
    plain = nx.from_numpy_array(sparse.block_diag([PATH, STAR]).toarray())
    assert np.allclose(centrality(operator), list(nx.betweenness_centrality(plain).values()))


@pytest.mark.full
def test_importance_sampling_has_no_bias():
    given = problem(weighted(0))
    values = np.arange(30.0)
    estimates = [chosen("importance", given, 5, seed) @ values for seed in range(500)]
    assert np.mean(estimates) == pytest.approx(values.mean(), abs=4 * np.std(estimates) / np.sqrt(500))


def test_pursuit_fits_all_weights_again():
    given = problem(weighted(1))
    errors = [objective_error(given.operator, chosen("pursuit", given, k)) for k in (1, 3, 10, 30)]
    assert (np.diff(errors) < 0).all() and errors[-1] < 1e-6
    first, giga = chosen("pursuit", given, 1), chosen("giga", given, 1)
    assert np.allclose(first, giga)
    found = chosen("pursuit", given, 10)
    nodes = np.flatnonzero(found)
    gradient = given.operator.apply(given.operator.apply(found) - 1 / 30)
    assert np.allclose(gradient[nodes], 0, atol=1e-12)


def test_a_long_walk_on_a_tree_beats_random_nodes_and_these_beat_central_ones():
    """Claim 8, as errata S9 have it."""
    tree = power_law_tree(200, 1)
    given, between = problem(tree, 256), distances(tree)
    errors = {}
    for name, draws in (("giga", 1), ("random", 20), ("betweenness", 1)):
        found = [chosen(name, given, 10, draw) for draw in range(draws)]
        errors[name] = np.mean([path_errors(w / w.sum(), between)[0] for w in found])
    assert errors["giga"] < errors["random"] < errors["betweenness"]
    assert errors["giga"] == pytest.approx(1.2, abs=0.4)
    assert errors["random"] == pytest.approx(4.8, abs=0.6)
    assert errors["betweenness"] == pytest.approx(11.35, abs=1)


def test_errors_of_means_and_distances():
    weights = np.array([0.5, 0, 0, 0.5])
    assert distances(PATH).tolist() == [[0, 1, 2, 3], [1, 0, 1, 2], [2, 1, 0, 1], [3, 2, 1, 0]]
    assert path_errors(weights, distances(PATH)) == (0.25, 0.125)  # 1.5 each, against 1.5, 1, 1, 1.5
    assert squared_error(weights, [1, 2, 3, 8]) == 1 and squared_error(weights, np.eye(4)).shape == (4,)
    assert beta(Operator(PATH), np.zeros(4)) == 0
    with refused("adjacency: 'a disconnected graph' .* some distances are infinite"):
        distances(sparse.block_diag([PATH, PATH]))


def test_smooth_functions_are_a_projection_on_eigenvectors():
    operator = Operator(weighted(2))
    values = np.random.default_rng(0).normal(size=(30, 2))
    once = smooth(operator, 0.6, values)
    assert np.allclose(smooth(operator, 0.6, once), once) and np.allclose(
        smooth(operator, 0.6, np.ones(30)), 1
    )
    assert np.allclose((values - once).T @ once, 0, atol=1e-12)
    assert np.linalg.norm(operator.matrix @ (values - once)) <= 0.6 * np.linalg.norm(values - once)
