"""FedSC: complete linkage by hand, both modes, and FedAvg with one cluster."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support import a_round, images, last_server, quadratics, run
from torch import Tensor

from fedflow.data import Dataset
from fedflow.errors import BadInput
from fedflow.heterogeneity.distances import weight_divergence
from fedflow.heterogeneity.hierarchy import merge
from fedflow.methods import build_method
from fedflow.methods.clustered.fedcluster import complete_linkage
from fedflow.methods.clustered.fedsc import FedSC
from fedflow.partition import Partition
from fedflow.simulation.federation import Federation

SHARES = torch.tensor(
    [[1, 0, 0], [0.8, 0.2, 0], [0.1, 0.9, 0], [0, 0.5, 0.5], [0, 0, 1]], dtype=torch.float64
)
MODES = pytest.mark.parametrize("mode", ["cycle", "stratified"])
SGD = {"epochs": 1, "batch_size": 8, "lr": 0.1}


def clustered(features: Tensor, number: int, **hyper: Any) -> list[int]:
    return complete_linkage(FedSC.parse(hyper).distances(features, features), features, number).tolist()


def test_clusters_of_label_shares() -> None:
    assert clustered(SHARES, 3) == [0, 0, 1, 1, 2]
    assert clustered(SHARES, 2) == [0, 0, 0, 0, 1]
    heights = merge(FedSC.parse({}).distances(SHARES, SHARES).numpy(), "complete")[:, 2]
    assert heights == pytest.approx([0.282843, 0.648074, 1.272792, 1.414214], abs=1e-6)


def test_clusters_do_not_depend_on_the_numbers_of_classes_and_clients() -> None:
    order = [3, 0, 4, 2, 1]
    assert clustered(SHARES[order], 3) == [clustered(SHARES, 3)[k] for k in order]
    renamed = clustered(SHARES[:, [2, 0, 1]], 3)
    assert renamed[0] == renamed[1] and renamed[2] == renamed[3] and len(set(renamed)) == 3


def test_cosine_distances_ignore_lengths() -> None:
    lengths = torch.tensor([1.0, 3, 0.5, 7, 2], dtype=torch.float64)[:, None]
    cosine = FedSC.parse({"metric": "cosine"})
    expected = cosine.distances(SHARES, SHARES)
    torch.testing.assert_close(cosine.distances(SHARES * lengths, SHARES), expected)
    assert float(expected[0, 1]) == pytest.approx(1 - 0.8 / 0.68**0.5) and float(expected[0, 4]) == 1


@MODES
@pytest.mark.parametrize("participation", [0.5, 1.0])
def test_one_cluster_is_fedavg(federation: Federation, mode: str, participation: float, cohort: str) -> None:
    settings: dict[str, Any] = {"training": SGD, "participation": participation, "cohort": cohort}
    one = run("fedsc", federation, {"clusters": 1, "mode": mode}, **settings)
    plain = run("fedavg", federation, **settings)
    assert torch.equal(one.servers[-1]["model"], plain.servers[-1]["model"])


@pytest.mark.parametrize(("server_lr", "model"), [(1.0, 1.15), (0.1, 1.915)])
def test_server_step(server_lr: float, model: float, cohort: str) -> None:
    """w = 2, local models 1.0 and 1.6 of 30 and 10 samples, one of each cluster."""
    ran = run(
        "fedsc",
        quadratics(((10, 1), (10, 1.6)), (30, 10), start=2),
        {"given": [0, 1], "mode": "stratified", "server_lr": server_lr},
        training={"epochs": 1},
        rounds=1,
        cohort=cohort,
    )
    assert ran.server("model") == pytest.approx([model], abs=1e-12)


def test_cycles_train_one_cluster_after_the_other(cohort: str) -> None:
    """4 -> 2.5 -> 7.25, as FedCluster; stratified as FedAvg to 5.25."""
    four = quadratics(((1, 0), (1, 2), (1, 10), (1, 14)), (1,) * 4, start=4)
    for mode, end in (("cycle", 7.25), ("stratified", 5.25)):
        hyper = {"given": [0, 0, 1, 1], "mode": mode}
        ran = run("fedsc", four, hyper, training={"epochs": 1, "lr": 0.5}, rounds=1, cohort=cohort)
        assert ran.server("model") == [end]


@MODES
def test_every_round_sees_every_cluster(digits: Dataset, mode: str) -> None:
    hyper = {"clusters": 5, "mode": mode}
    ran = run("fedsc", images(digits, (5,) * 10), hyper, participation=0.5, training=SGD)
    cluster = ran.servers[0]["assignment"].tolist()
    assert [sorted(cluster[k] for k in r.cohort) for r in ran.rounds] == [[0, 1, 2, 3, 4]] * 3


def test_as_many_clusters_as_clients_let_all_take_part(federation: Federation) -> None:
    hyper = {"clusters": 8, "mode": "stratified"}
    ran = run("fedsc", federation, hyper, participation=0.25, rounds=1, training=SGD)
    assert ran.rounds[0].cohort == [*range(8)]


def test_clients_may_be_compared_by_their_updates(digits: Dataset) -> None:
    hyper = {"clusters": 2, "feature": "update", "metric": "cosine"}
    clients = images(digits, (40, 40, 40, 40))
    ran = run("fedsc", clients, hyper, rounds=1)
    assert ran.servers[0]["features"].shape == (4, clients.model.size)
    assert set(ran.servers[0]["assignment"].tolist()) == {0, 1}
    assert ran.outcome().metrics["onboarding_bytes_down"] == 4 * clients.model.size * 4


def test_newcomers_join_the_cluster_whose_farthest_member_is_nearest(digits: Dataset) -> None:
    clients = images(digits, (10,) * 9)
    late = replace(clients, partition=replace(clients.partition, newcomers=2))
    ran = run("fedsc", late, {"clusters": 3}, rounds=1)
    assert ran.outcome().metrics["newcomers"] == 2
    *before, last, other = last_server(ran).assignment.tolist()
    assert before == ran.servers[0]["assignment"].tolist()
    shares = torch.stack(
        [
            clients.train.y[torch.from_numpy(clients.partition.train(k))].bincount(minlength=10) / 10
            for k in range(9)
        ]
    )
    for k, joined in ((7, last), (8, other)):
        farthest = [
            max(float((shares[k] - shares[i]).norm()) for i in range(7) if before[i] == z) for z in range(3)
        ]
        assert joined == np.argmin(farthest)


@pytest.mark.parametrize(
    ("hyper", "field"),
    [
        ({"grouping": "random", "feature": "update"}, "feature"),
        ({"grouping": "random", "metric": "cosine"}, "metric"),
        ({"given": [0, 1], "metric": "cosine"}, "metric"),
        ({"given": [0, 1], "grouping": "random"}, "grouping"),
        ({"mode": "stratified", "order": "reshuffle"}, "order"),
    ],
)
def test_options_without_effect_are_refused(hyper: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput, match=f"^method.{field}: .* its default, "):
        build_method("fedsc", hyper)


@MODES
def test_random_clusters_need_no_onboarding(federation: Federation, mode: str) -> None:
    method = build_method("fedsc", {"grouping": "random", "mode": mode})
    assert method.onboarding_phases() == 0
    server = method.setup(federation.model, federation.model.init)
    drawn, server = method.plan(a_round(federation), server, np.ones(8), 4)
    assert sorted(server.assignment.tolist()) == [0] * 4 + [1] * 4
    assert len(drawn) == (2 if mode == "cycle" else 4)


def test_weights_diverge_from_central_training_where_clients_hold_few_labels(digits: Dataset) -> None:
    """FedAvg on the same images: one client with all of them, four with random parts, or sorted by label."""
    rows, clients = np.argsort(digits.y_train.numpy(), kind="stable")[:400], images(digits, (1,))
    shuffled, ends = np.random.default_rng(0).permutation(rows), {}
    for name, dealt in (("all", [rows]), ("alike", np.split(shuffled, 4)), ("few", np.split(rows, 4))):
        pools, tested = [np.arange(len(digits.y_test))], [np.zeros(1, dtype=int)] * len(dealt)
        partition = Partition.from_lists([np.sort(own) for own in dealt], pools, tested)
        ran = run("fedavg", replace(clients, partition=partition), rounds=5, training=SGD)
        ends[name] = ran.servers[-1]["model"].numpy()
    alike, few = (weight_divergence(ends[name], ends["all"]) for name in ("alike", "few"))
    assert few > 1.5 * alike
