import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import (
    NETWORKS,
    Ran,
    Workers,
    failing,
    follow,
    prepare_run,
    quadratics,
    refused,
    run,
    same,
    suited,
    with_cohorts,
)

from fedflow.errors import RoundFailed
from fedflow.local.client import Client
from fedflow.local.fast.pieces import Pieces
from fedflow.local.samples import Batch
from fedflow.local.trainer import Step
from fedflow.methods import METHODS, Method, build_method
from fedflow.methods.protocols import Asynchronous
from fedflow.metrics.table import completed
from fedflow.simulation.federation import Federation
from fedflow.simulation.loop import Simulation

TEN = quadratics(((1, 1),) * 10, range(1, 11))


def cohorts(ran: Ran) -> list[list[int]]:
    return [r.cohort for r in ran.rounds]


def test_methods_get_the_same_cohorts_and_the_same_initial_model(federation: Federation) -> None:
    """All but those that choose their cohorts themselves, as FedCluster does."""
    expected = cohorts(run("fedavg", federation, participation=0.4))
    assert len(set(map(tuple, expected))) > 1
    uniform = {Method.plan, METHODS["fedavg"].plan, METHODS["local"].plan}
    waiting = {name: method for name, method in METHODS.items() if not issubclass(method, Asynchronous)}
    sampled = [name for name, method in waiting.items() if method.plan in uniform]
    assert len(sampled) > 20
    for name in sampled:
        assert cohorts(run(name, suited(name, federation), participation=0.4)) == expected, name
    model, alike = federation.model, sorted(METHODS.keys() - NETWORKS.keys())
    servers = [METHODS[name]().setup(model, model.init) for name in alike]
    firsts = [server.model for server in servers if hasattr(server, "model")]
    assert len(firsts) > 10 and all(torch.equal(first, firsts[0]) for first in firsts)


def test_cohorts_depend_on_seed_and_round_and_not_on_the_length_of_a_run() -> None:
    short, long = (cohorts(run("fedavg", TEN, rounds=n, participation=0.3)) for n in (2, 6))
    assert long[:2] == short
    assert cohorts(run("fedavg", TEN, rounds=6, participation=0.3, seed=1)) != long


@pytest.mark.parametrize(("rate", "size"), [(0.3, 3), (0.01, 1), (0.25, 2), (0.7, 7), (1.0, 10)])
def test_a_cohort_has_its_share_of_distinct_clients(rate: float, size: int) -> None:
    for cohort in cohorts(run("fedavg", TEN, participation=rate)):
        assert len(cohort) == len(set(cohort)) == size
        assert cohort == sorted(cohort)


def test_proportional_sampling_favors_large_clients() -> None:
    ran = run("fedavg", TEN, {"weighting": "uniform"}, rounds=200, participation=0.1, sampling="proportional")
    counts = np.bincount([k for cohort in cohorts(ran) for k in cohort], minlength=10)
    expected = 200 * TEN.partition.sizes / TEN.partition.sizes.sum()
    assert np.abs(counts - expected).max() < 4 * np.sqrt(expected.max())


def test_participations_are_counted() -> None:
    ran = run(with_cohorts(build_method("fedavg"), [[0], [0, 3], [3, 9]]), TEN)
    assert ran.outcome().participations.tolist() == [2, 0, 0, 2, 0, 0, 0, 0, 0, 1]


def test_traffic_adds_up_over_rounds() -> None:
    ran = run(with_cohorts(build_method("scaffold"), [[0], [0, 3], [3, 9, 5]]), TEN)
    assert ran.values("bytes_down") == [16 * n for n in (1, 3, 6)]  # x and c, one float64 each
    assert ran.values("bytes_up") == [16 * n for n in (1, 3, 6)]
    assert ran.outcome().metrics["bytes_up"] == 96


@pytest.mark.parametrize(
    ("name", "hyper"),
    [("fedavg", {}), ("fedsgd", {}), ("scaffold", {"variate": "I"}), ("pfedme", {}), ("ditto", {})],
)
def test_gradients_are_those_that_clients_compute(
    federation: Federation, name: str, hyper: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every sample in every batch; half of the cohort has time for fewer epochs, except in FedSGD."""
    samples: list[int] = []
    gradient, by_layer = Client.gradient, Pieces.gradient

    def spy(client: Client, w: torch.Tensor, batch: Batch, *objective: Any) -> Step:
        samples.append(len(batch.x))
        return gradient(client, w, batch, *objective)

    def other(pieces: Pieces, x: torch.Tensor, y: torch.Tensor, *cost: Any) -> Any:
        samples.append(len(x))
        return by_layer(pieces, x, y, *cost)

    monkeypatch.setattr(Client, "gradient", spy)
    monkeypatch.setattr(Pieces, "gradient", other)
    training = {"epochs": 4, "batch_size": 8, "stragglers": 0 if name == "fedsgd" else 0.5}
    simulation = prepare_run(name, federation, hyper, training=training, participation=0.5)
    for report in simulation.rounds():
        assert report.values["gradients"] == sum(samples)
        assert report.values["participants"] == len(report.cohort) == 4
    assert len(samples) >= 12


def test_rounds_are_evaluated_periodically_and_at_the_end(federation: Federation) -> None:
    ran = run("fedavg", federation, rounds=5, evaluate_every=2)
    assert ["local_accuracy" in r.values for r in ran.rounds] == [False, True, False, True, True]
    names = {"local_accuracy", "global_accuracy", "global_loss", "gradients"}
    names |= {f"local_{what}" for what in ("std", "worst10", "weighted", "variance", "lowest", "highest")}
    last, metrics = ran.rounds[-1].values, ran.outcome().metrics
    metrics = completed(metrics, last)
    assert {name: last[name] for name in names} == {name: metrics[name] for name in names}
    assert metrics["local_gap"] == metrics["local_best10"] - metrics["local_worst10"]


def test_the_spread_over_clients_is_reported_at_the_end(federation: Federation) -> None:
    outcome = run("fedavg", federation, training={"lr": 0.5}).outcome()
    accuracy, samples = outcome.scores.local_accuracy, outcome.scores.test_samples
    assert len(set(samples.tolist())) > 1
    metrics = outcome.metrics
    assert metrics["local_weighted"] == pytest.approx(np.average(accuracy, weights=samples))
    assert metrics["local_variance"] == pytest.approx(accuracy.var()) and accuracy.var() > 0
    assert (metrics["local_lowest"], metrics["local_highest"]) == (accuracy.min(), accuracy.max())


def test_the_target_is_reached_in_the_first_round_that_has_it(federation: Federation) -> None:
    def metrics(target: float | None, shipped: int = 0) -> dict:
        settings = {"rounds": 6, "evaluate_every": 1, "target_accuracy": target}
        ran = run("fedavg", replace(federation, shipped=shipped), training={"lr": 0.5}, **settings)
        sent = np.add(ran.values("bytes_down"), ran.values("bytes_up")).tolist()
        return ran.outcome().metrics | {"curve": ran.values("local_accuracy"), "bytes": sent}

    plain = metrics(None)
    assert plain["rounds_to_target"] is plain["bytes_to_target"] is None
    reached = metrics(best := max(plain["curve"]))
    first = plain["curve"].index(best)
    assert (reached["rounds_to_target"], reached["bytes_to_target"]) == (first + 1, plain["bytes"][first])
    clients = len(federation.partition.sizes)
    assert metrics(best, shipped=7)["bytes_to_target"] == plain["bytes"][first] + 7 * clients
    assert metrics(0.999)["rounds_to_target"] is None


def test_bytes_to_the_target_include_the_onboarding(federation: Federation) -> None:
    ran = run("pacfl", federation, rounds=1, evaluate_every=1, target_accuracy=0.001)
    sent = sum(ran.values(f"bytes_{way}")[0] for way in ("down", "up"))
    metrics = ran.outcome().metrics
    before = sum(metrics[f"onboarding_bytes_{way}"] for way in ("down", "up"))
    assert before > 0 and metrics["bytes_to_target"] == sent + before


def test_the_learning_rate_decays_from_round_to_round() -> None:
    """One step of lr on w^2 / 2 multiplies w by 1 - lr."""
    client = quadratics(((1, 0),), (4,), start=1)
    ran = run("fedavg", client, training={"epochs": 1, "lr": 0.5, "lr_decay": 0.5}, rounds=3)
    assert ran.server("model") == pytest.approx([0.5, 0.5 * 0.75, 0.5 * 0.75 * 0.875], abs=1e-12)


def test_the_training_loss_is_the_mean_over_steps_and_clients() -> None:
    ran = run("fedavg", quadratics(), rounds=1)
    steps = [0.125, 0.45**2 / 2, 2.25, 1.2**2]  # F_1 at 0.5 and 0.55, F_2 at 0.5 and 0.2
    assert ran.values("train_loss")[0] == pytest.approx(np.mean(steps), abs=1e-12)


def planted_groups(**settings: int) -> Simulation:
    """IFCA on two planted groups of two clients, with models at 9 and 0."""
    four = quadratics(((1, 0), (1, 1), (1, 9), (1, 8)), (5,) * 4)
    planted = replace(four, partition=replace(four.partition, groups=np.array([0, 0, 1, 1])))
    simulation = prepare_run("ifca", planted, **settings)
    models = torch.tensor([[9.0], [0.0]], dtype=torch.float64)
    simulation.state.server = replace(simulation.state.server, models=models)
    return simulation


def test_an_assignment_is_reported_when_it_changes() -> None:
    """The first evaluation reports it; in the next two it is unchanged."""
    ran = follow(planted_groups(evaluate_every=1))
    assert [r.assignment for r in ran.rounds] == [[1, 1, 0, 0], None, None]
    assert (ran.values("clusters"), ran.values("ari")) == ([2] * 3, [1] * 3)


def test_agreement_with_planted_groups_is_reported_if_measured() -> None:
    ran = follow(planted_groups(evaluate_every=2))
    assert [ran.values(name) for name in ("ari", "nmi")] == [[None, 1, 1]] * 2
    assert ran.values("clustering_error") == [None, 0, 0]


def test_one_cluster_is_no_assignment_and_more_workers_than_clients_do_no_harm() -> None:
    ran, shared = (run("fedavg", quadratics(), executor=e, evaluate_every=1) for e in (None, Workers(8)))
    assert [r.assignment for r in ran.rounds] == ran.values("ari") == [None] * 3
    assert ran.values("clusters") == [1] * 3 and ran.server("model") == shared.server("model")


def test_a_rate_that_decays_after_the_last_round_is_said() -> None:
    training = {"lr_decay": 0.5, "lr_decay_every": 3}
    with pytest.warns(UserWarning, match="^training.lr_decay: the rate does not decay in 3 rounds, as lr_"):
        prepare_run("fedavg", TEN, training=training, rounds=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepare_run("fedavg", TEN, training=training, rounds=4)


# Rounds in which every client fails


@pytest.mark.parametrize(("share", "most"), [(1.0, 2), (0.5, 2), (0.4, 3), (0.2, 5)])
def test_a_run_stops_after_one_round_over_the_participation_without_any_client(
    share: float, most: int
) -> None:
    """At least two in a row; a round with an update starts the count again."""
    spared = failing("fedavg", *range(2, 1 + most), *range(2 + most, 1 + 2 * most))
    with pytest.warns(UserWarning, match="every client failed"):
        ran = run(spared, TEN, participation=share, rounds=1 + 2 * most)
    assert ran.outcome().metrics["failed_rounds"] == 2 * (most - 1)
    message = f"round {1 + most}: every client failed in {most} rounds in a row, .* {share:g} "
    stopped = refused(message + r"\(client \d+: ValueError: out of order", RoundFailed)
    with stopped, pytest.warns(UserWarning, match="every client failed"):
        run(failing("fedavg", *range(2, 9)), TEN, participation=share, rounds=9)


def test_the_count_of_rounds_without_any_client_survives_an_interruption(tmp_path: Path) -> None:
    method, settings = failing("fedavg", 1, 2), {"rounds": 4, "checkpoint_every": 1, "participation": 0.5}
    with pytest.warns(UserWarning, match="round 1: every client failed"):
        next(prepare_run(method, TEN, checkpoints=tmp_path, **settings).rounds())
    with refused("round 2: every client failed in 2 rounds in a row", RoundFailed):
        run(method, TEN, checkpoints=tmp_path, **settings)


@pytest.mark.filterwarnings("ignore:.*clients train one by one")
@pytest.mark.parametrize(("cohort", "workers"), [("loop", 3), ("vmap", 1), ("vmap", 3)])
@pytest.mark.parametrize("name", ["scaffold", "fedbuff", "fedhen"])
def test_a_round_without_any_client_on_other_executors(
    name: str, cohort: str, workers: int, federation: Federation
) -> None:
    reported = [] if name == "fedbuff" else ["active"]
    settings = {"participation": 0.5, "rounds": 3, "evaluate_every": 1, "reports": reported}
    with pytest.warns(UserWarning, match="round 2: every client failed"):
        ran = run(
            failing(name, 2), suited(name, federation), executor=Workers(workers), cohort=cohort, **settings
        )
    assert same(ran.servers[0], ran.servers[1]) and not same(ran.servers[1], ran.servers[2])
    assert ran.values("local_accuracy")[0] == ran.values("local_accuracy")[1]
    assert not [value for value in ran.rounds[1].values if value.startswith("active_")]


def test_a_cohort_that_must_have_clients_stops_the_run_at_once() -> None:
    reasons = (
        r"client 0: ValueError: out of order \(support.py, line \d+\); client 1: .*; client 2: .*; and 7 more"
    )
    message = rf"round 2: 0 of 10 clients succeeded, run.min_cohort is 1 \({reasons}\)"
    with refused(message, RoundFailed):
        run(failing("fedavg", 2), TEN, min_cohort=1)


# More clusters than clients


@pytest.mark.parametrize(
    ("name", "hyper"),
    [
        ("fedcluster", {"clusters": 9}),
        ("fedsc", {"clusters": 9}),
        ("lcfl", {"clusters": 9}),
        ("one_shot", {"clusters": 9}),
        ("pacfl", {"clusters": 9}),
        ("flt", {"case": "clusters", "clusters": 9}),
        ("pca_km_hc", {"case": "clusters", "clusters": 9}),
        ("fesem", {"cluster_over": "all", "centers": 9}),
    ],
)
def test_more_clusters_than_clients_are_refused_before_anyone_trains(
    name: str, hyper: dict[str, Any], federation: Federation
) -> None:
    with refused(r"method.\w+: 9 .*at most 8, the (number of )?clients"):
        prepare_run(name, federation, hyper)
