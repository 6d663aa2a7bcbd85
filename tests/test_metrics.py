"""How numbers are spread over clients, and how well clusters match groups."""

import numpy as np
import pytest

from fedflow.metrics import clustering
from fedflow.metrics.clustering import agreement, clustering_error
from fedflow.metrics.distribution import summarize


def test_gini_of_worked_examples_knows_neither_order_nor_scale():
    ginis = {(0.5, 0.6, 0.9, 1.0): 0.15, (0.4, 0.4, 0.4): 0, (0, 0, 0, 1): 0.75, (0, 0): 0, (0.3,): 0}
    for values, gini in ginis.items():
        assert summarize(np.array(values, dtype=float))["gini"] == pytest.approx(gini, abs=1e-12), values

    values = np.random.default_rng(0).random(50)
    shuffled = np.random.default_rng(1).permutation(values) * 7
    assert summarize(shuffled)["gini"] == pytest.approx(summarize(values)["gini"])


def test_a_tenth_of_the_clients_is_the_worst_and_the_best():
    spread = summarize(np.arange(25) / 100)
    assert spread["worst10"] == pytest.approx(0.005) and spread["best10"] == pytest.approx(0.235)
    few = summarize(np.array([0.2, 0.7, 0.4]))
    assert (few["worst10"], few["best10"]) == (0.2, 0.7)


def test_mean_and_population_deviation_leave_out_what_was_not_measured_and_are_nan_without_a_rest():
    spread = summarize(np.array([0.2, np.nan, 0.6]))
    assert spread["mean"] == pytest.approx(0.4) and spread["std"] == pytest.approx(0.2)


def test_clients_count_by_their_weights_or_alike():
    values, samples = np.array([0.5, np.nan, 1.0, 0.25]), np.array([10, 1000, 30, 0])
    spread = summarize(values, samples)
    assert spread["weighted"] == pytest.approx((0.5 * 10 + 1.0 * 30) / 40)
    assert summarize(values)["weighted"] == pytest.approx(spread["mean"]) == pytest.approx(1.75 / 3)
    assert spread["variance"] == pytest.approx(np.var([0.5, 1.0, 0.25])) == pytest.approx(spread["std"] ** 2)
    assert (spread["lowest"], spread["highest"]) == (0.25, 1.0)

    assert all(np.isnan(value) for value in summarize(np.array([np.nan, np.nan])).values())


def test_clusters_are_compared_up_to_their_numbers():
    """Of six clients in pairs; in one cluster, everybody has four companions too many."""
    groups = np.array([0, 0, 1, 1, 2, 2])
    same = agreement(np.array([5, 5, 3, 3, 4, 4]), groups)
    assert same == {"ari": pytest.approx(1.0), "nmi": pytest.approx(1.0), "clustering_error": 0}
    one = agreement(np.zeros(6, dtype=int), groups)
    assert one == {"ari": pytest.approx(0.0), "nmi": pytest.approx(0.0), "clustering_error": 4}
    assert agreement(np.arange(6), groups)["clustering_error"] == 1


def test_clients_without_a_cluster_do_not_count_and_without_groups_or_clusters_there_is_no_agreement():
    clusters, groups = np.array([0, 0, 1, 1, -1]), np.array([0, 0, 1, 1, 0])
    found = agreement(clusters, groups)
    assert found["ari"] == pytest.approx(1.0) and found["clustering_error"] == 0
    nothing = {"ari": None, "nmi": None, "clustering_error": None}
    assert agreement(np.array([0, 1]), None) == nothing
    assert agreement(np.array([-1, -1]), np.array([0, 1])) == nothing


def label_sets(*sets: set[int]) -> np.ndarray:
    return np.array([[label in own for label in range(5)] for own in sets])


def test_the_clustering_error_of_a_worked_example():
    """Four clients with two labels each, and a cluster for each, errors 1, 1, 1, 2."""
    labels = label_sets({0, 1}, {0, 2}, {3, 4}, {0, 3})
    own = np.zeros((4, 4), dtype=bool)
    for client, members in enumerate(([0, 1], [0, 1], [2], [0, 3])):
        own[client, members] = True
    assert clustering_error(own, labels) == 1.25


def test_half_of_the_labels_in_common_need_not_be_mutual():
    """The second client has all labels of the first, which has one of its four."""
    labels = label_sets({0}, {0, 1, 2, 3})
    assert clustering_error(np.array([0, 0]), labels) == clustering_error(np.array([0, 1]), labels) == 0.5


def test_labels_stand_in_for_groups_in_the_clustering_error_only():
    labels = label_sets({0}, {0}, {1})
    found = agreement(np.array([0, 0, 0]), None, labels)
    assert found == {"ari": None, "nmi": None, "clustering_error": pytest.approx(4 / 3)}


def test_the_clustering_error_of_many_clients_is_summed_in_parts(monkeypatch):
    """Against the definition, client by client; with 300 clients some are alike, which count together."""
    rng = np.random.default_rng(0)
    labels, clusters = rng.random((300, 4)) < 0.4, rng.integers(3, size=300)
    labels[np.arange(300), rng.integers(4, size=300)] = True
    true = ((labels & own).sum(1) >= np.ceil(own.sum() / 2) for own in labels)
    wrong = sum((alike != (clusters == clusters[i])).sum() for i, alike in enumerate(true))
    for rows in (clustering.ROWS, 7):
        monkeypatch.setattr(clustering, "ROWS", rows)
        assert clustering_error(clusters, labels) == wrong / 300
