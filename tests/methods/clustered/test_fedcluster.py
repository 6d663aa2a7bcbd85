"""FedCluster on F_k(w) = (w - c_k)^2 / 2, c = (0, 2 | 10, 14), two clusters, one step of 0.5 from 4."""

from typing import Any

import numpy as np
import pytest
import torch
from support import Ran, images, quadratics, run, with_cohorts

from fedflow.data import Dataset
from fedflow.errors import BadInput
from fedflow.methods import build_method
from fedflow.methods.clustered.fedcluster import FedCluster, State, shares
from fedflow.methods.method import Round
from fedflow.simulation import loop
from fedflow.simulation.federation import Federation

FOUR = quadratics(((1, 0), (1, 2), (1, 10), (1, 14)), (1,) * 4, start=4)
STEP = {"epochs": 1, "lr": 0.5}
GIVEN = {"given": [0, 0, 1, 1], "order": "fixed"}
SGD = {"epochs": 2, "batch_size": 8, "lr": 0.1}


def cycled(**more: Any) -> Ran:
    return run("fedcluster", FOUR, GIVEN, **{"training": STEP, "rounds": 2} | more)


def test_clusters_take_turns(cohort: str) -> None:
    """4 -> 2.5 -> 7.25 | -> 4.125 -> 8.0625, where FedAvg goes to 5.25 and 5.875."""
    ran = cycled(cohort=cohort)
    assert ran.server("model") == [7.25, 8.0625]
    assert [r.cohort for r in ran.rounds] == [[0, 1, 2, 3]] * 2
    assert run("fedavg", FOUR, training=STEP, rounds=2, cohort=cohort).server("model") == [5.25, 5.875]
    first = with_cohorts(build_method("fedcluster", GIVEN), [[0, 1], [2, 3], [0, 1]])
    assert run(first, FOUR, training=STEP, rounds=3, cohort=cohort).server("model") == [2.5, 7.25, 4.125]


def test_reports_of_all_turns_are_recorded(cohort: str) -> None:
    """Steps of -2 and -1 from 4, then of 3.75 and 5.75 from 2.5."""
    ran = cycled(updates=[{"step": "clip", "norm": 100}], rounds=1, cohort=cohort)
    norms = [ran.values(f"client/clip.norm/{what}")[0] for what in ("min", "mean", "max")]
    assert norms == [1, 3.125, 5.75]


def test_vectors_of_a_turn_are_not_kept_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = list[int]()
    monkeypatch.setattr(loop, "summarized", lambda sent: kept.extend(len(s.vectors) for s in sent) or {})
    cycled(updates=[{"step": "clip", "norm": 100}], rounds=1)
    assert kept == [0] * 4


def test_clients_may_be_held_near_the_model_of_their_turn(cohort: str) -> None:
    """With mu = 1 a second step of 0.5 ends half the way between both: (0 + 4) / 2, (2 + 4) / 2; mean 2.5."""
    hyper, two_steps = GIVEN | {"mu": 1}, {"epochs": 2, "lr": 0.5}
    ran = run("fedcluster", FOUR, hyper, training=two_steps, rounds=1, keep_trained=True, cohort=cohort)
    assert ran.kept("trained") == [[2, 3, 6.25, 8.25]]
    assert ran.server("model") == [7.25]


@pytest.mark.parametrize(("given", "limit"), [([0, 0, 1, 1], 8 + 1 / 3), ([1, 1, 0, 0], 4 + 2 / 3)])
def test_the_last_cluster_pulls_most(given: list[int], limit: float) -> None:
    ran = run("fedcluster", FOUR, GIVEN | {"given": given}, training=STEP, rounds=30)
    assert ran.server("model")[-1] == pytest.approx(limit, abs=1e-9)


def test_the_bias_to_the_last_cluster_vanishes_with_the_step() -> None:
    """The limit (13 - eta) / (2 - eta) goes to the optimum 6.5."""
    for eta in (0.4, 0.2, 0.1):
        end = cycled(training=STEP | {"lr": eta}, rounds=110).server("model")[-1]
        assert end == pytest.approx((13 - eta) / (2 - eta), abs=1e-8)


class FirstDevice(FedCluster):
    """Only device 0 takes part."""

    def plan(self, now: Round, server: State, chances: np.ndarray, size: int) -> tuple[np.ndarray, State]:
        return np.array([0]), super().plan(now, server, chances, size)[1]

    def cycles(self) -> int:
        return 1


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_weights_of_a_sample_sum_to_one(weighting: str, cohort: str) -> None:
    """Device 0 goes from 4 to 2, and is half of its cluster."""
    method = FirstDevice.parse(GIVEN | {"weighting": weighting})
    assert run(method, FOUR, training=STEP, rounds=1, cohort=cohort).server("model") == [2.0]


def test_one_cluster_is_fedavg(federation: Federation, cohort: str) -> None:
    settings: dict[str, Any] = {"training": SGD, "participation": 0.5, "cohort": cohort}
    one, plain = (
        run("fedcluster", federation, {"clusters": 1}, **settings),
        run("fedavg", federation, **settings),
    )
    assert torch.equal(one.servers[-1]["model"], plain.servers[-1]["model"])
    assert [r.cohort for r in one.rounds] == [r.cohort for r in plain.rounds]


def test_as_many_clusters_as_clients_train_one_after_the_other(federation: Federation, cohort: str) -> None:
    one_by_one = with_cohorts(build_method("fedavg"), [[k] for k in range(8)])
    alone = {"given": [*range(8)], "clusters": 8, "order": "fixed"}
    chain, turns = (
        run(*method, rounds=rounds, cohort=cohort)
        for method, rounds in ((("fedcluster", federation, alone), 1), ((one_by_one, federation), 8))
    )
    assert chain.rounds[0].cohort == [*range(8)]
    # Not bit for bit: every round shuffles the samples of a batch.
    torch.testing.assert_close(chain.servers[-1]["model"], turns.servers[-1]["model"])


def test_random_clusters_are_drawn_once_and_their_order_in_every_round(federation: Federation) -> None:
    ran = run("fedcluster", federation, {"clusters": 4}, rounds=6, training={"epochs": 1})
    clusters = [server["assignment"].tolist() for server in ran.servers]
    assert clusters == [clusters[0]] * 6 and sorted(clusters[0]) == [0, 0, 1, 1, 2, 2, 3, 3]
    turns = [[clusters[0][k] for k in r.cohort[::2]] for r in ran.rounds]
    assert all(sorted(order) == [0, 1, 2, 3] for order in turns) and len(set(map(tuple, turns))) > 2


def test_a_round_costs_as_much_as_one_of_fedavg(federation: Federation) -> None:
    settings = {"participation": 0.5, "rounds": 1, "training": {"epochs": 1}}
    for clusters in (2, 3, 4):
        ran = run("fedcluster", federation, {"clusters": clusters}, **settings)
        assert len(set(ran.rounds[0].cohort)) == 4
        assert (
            ran.rounds[0].values["bytes_up"]
            == run("fedavg", federation, **settings).rounds[0].values["bytes_up"]
        )


@pytest.mark.parametrize(
    ("members", "size", "expected"),
    [([4, 4], 4, [2, 2]), ([1, 1, 6], 4, [1, 1, 2]), ([5, 3], 8, [5, 3]), ([9, 1], 1, [1, 1])],
)
def test_shares_of_the_cohort(members: list[int], size: int, expected: list[int]) -> None:
    assert shares(np.array(members), size).tolist() == expected


def test_clients_with_the_same_labels_share_a_cluster(digits: Dataset) -> None:
    """Neighbors of this federation hold neighboring labels."""
    ran = run("fedcluster", images(digits, (20,) * 6), {"clusters": 3, "grouping": "similar"}, rounds=1)
    assert ran.servers[-1]["assignment"].tolist() == [0, 0, 1, 1, 2, 2]
    metrics = ran.outcome().metrics
    assert (metrics["onboarding_bytes_down"], metrics["onboarding_bytes_up"]) == (0, 6 * 10 * 4)


def test_clients_without_labels_cannot_be_compared() -> None:
    with pytest.raises(Exception, match="compared by their labels"):
        run("fedcluster", FOUR, {"grouping": "similar"})


@pytest.mark.parametrize(
    ("hyper", "message"),
    [
        ({"clusters": 5}, "method.clusters: 5 .* at most 4"),
        ({"clusters": 5, "grouping": "similar"}, "method.clusters: 5 .* at most 4"),
        ({"given": [0, 1, 1]}, "method.given: .* the clusters of 4 clients"),
        ({"given": [0, 0, 2, 2]}, "method.given: .* every cluster from 0 to 1"),
        (GIVEN | {"grouping": "similar"}, "method.grouping: 'similar' .* random, its default, with given"),
    ],
)
def test_impossible_clusters(hyper: dict, message: str, digits: Dataset) -> None:
    with pytest.raises(BadInput, match=message):
        run("fedcluster", images(digits, (5,) * 4), hyper)
