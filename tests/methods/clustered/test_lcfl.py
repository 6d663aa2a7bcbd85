"""LCFL on F_k(w) = (w - c_k)^2 / 2: a learning rate of 1 makes w_k = c_k, so D_ij = (c_i - c_j)^2."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support import SIZES, Ran, quadratics, run, with_newcomers

from fedflow.errors import BadInput
from fedflow.local.client import Client, Update
from fedflow.methods import build_method
from fedflow.methods.clustered.lcfl import LCFL, State, loss_distances
from fedflow.simulation.federation import Federation

C = (0, 0.4, 5, 5.6)
JUMP = {"epochs": 1, "lr": 1}
SGD = {"epochs": 1, "batch_size": 8, "lr": 0.1}


def points(centers: tuple[float, ...] = C, newcomers: int = 0) -> Federation:
    return with_newcomers(quadratics([(1, c) for c in centers], (10,) * len(centers)), newcomers)


def lcfl(hyper: dict[str, Any], federation: Federation, **more: Any) -> Ran:
    return run("lcfl", federation, {"warmup": 1} | hyper, **{"training": JUMP, "rounds": 1} | more)


def test_distances_of_losses() -> None:
    """F_i(w) = (w - c_i)^2 / 2 + 0.1 i: the constants cancel."""
    c = torch.tensor([0, 0.4, 5], dtype=torch.float64)
    losses = (c - c[:, None]).square() / 2 + 0.1 * torch.arange(3)[:, None]
    expected = torch.tensor([[0, 0.16, 25], [0.16, 0, 21.16], [25, 21.16, 0]], dtype=torch.float64)
    torch.testing.assert_close(loss_distances(losses), expected)


def test_distances_are_symmetric_and_zero_between_equal_clients() -> None:
    losses = torch.rand(6, 6, generator=torch.Generator().manual_seed(0))
    losses[3], losses[:, 3] = losses[2], losses[:, 2].clone()
    losses[3, 3] = losses[2, 2]
    d = loss_distances(losses)
    assert torch.equal(d, d.T) and not d.diagonal().any() and (d >= 0).all() and d[2, 3] == 0


@pytest.mark.parametrize("distance", ["loss", "model", "update"])
def test_each_cluster_trains_its_own_model(distance: str, cohort: str) -> None:
    """From 2.75, the mean after the warm-up, where both clusters start. Updates from 2 differ in sign."""
    clients = quadratics(tuple((1, c) for c in C), (10,) * 4, start=2)
    ran = lcfl({"distance": distance}, clients, cohort=cohort)
    assignment, models = ran.server("assignment")[0], ran.server("models")[0]
    assert assignment in ([0, 0, 1, 1], [1, 1, 0, 0])
    assert [models[z] for z in assignment] == pytest.approx([0.2, 0.2, 5.3, 5.3])
    assert ran.outcome().scores.cluster.tolist() == assignment
    half = lcfl({"distance": distance}, clients, training=JUMP | {"lr": 0.5}, cohort=cohort)
    warm = (2 + 2.75) / 2
    assert [half.server("models")[0][z] for z in assignment] == pytest.approx(
        [(warm + c) / 2 for c in (0.2, 0.2, 5.3, 5.3)]
    )


def test_onboarding_costs_the_warm_up_and_all_models_to_all(federation: Federation) -> None:
    ran = run("lcfl", federation, {"warmup": 2}, rounds=1, training=SGD)
    metrics, p = ran.outcome().metrics, federation.model.size
    assert metrics["onboarding_bytes_down"] == 4 * (2 * 8 * p + 8 * 8 * p)
    assert metrics["onboarding_bytes_up"] == 4 * (2 * 8 * p + 8 * 8)


def test_one_cluster_continues_as_fedavg(federation: Federation, cohort: str) -> None:
    """Full batches are the same in every round, so the warm-up is a first round."""
    whole = {"batch_size": 0, "lr": 0.1}
    one = run("lcfl", federation, {"clusters": 1, "warmup": 2}, training=whole, rounds=2, cohort=cohort)
    plain = run("fedavg", federation, training=whole, rounds=4, cohort=cohort)
    torch.testing.assert_close(one.servers[-1]["models"][0], plain.servers[-1]["model"], rtol=0, atol=1e-6)


def test_the_warm_up_takes_the_servers_steps() -> None:
    steps: dict[str, Any] = {"server_lr": 0.1}
    clustered = run("lcfl", quadratics(), {"clusters": 1, "warmup": 2} | steps, rounds=2)
    plain = run("fedavg", quadratics(), steps, rounds=4)
    assert clustered.servers[-1]["models"].item() == plain.server("model")[-1]


@pytest.mark.parametrize("distance", ["loss", "model", "update"])
def test_newcomers_join_the_nearest_medoid(distance: str) -> None:
    ran = lcfl({"distance": distance}, points((0, 0.4, 5, 5.6, 4.5, -0.2), newcomers=2))
    newcomers = ran.outcome().newcomers
    assert newcomers is not None
    a, b = ran.servers[0]["assignment"][[0, 2]].tolist()
    assert a != b and newcomers.cluster.tolist() == [b, a]


def test_every_round_of_the_warm_up_has_new_batches_and_newcomers_train_once(federation: Federation) -> None:
    orders: dict[int, set[str]] = {}

    class Spy(LCFL):
        def onboarding_local(self, phase: int, client: Client) -> Update:
            if phase < self.warmup:
                order = str(client._schedules["batches"].positions)
                orders.setdefault(int(client.samples), set()).add(order)
            return super().onboarding_local(phase, client)

    ran = run(Spy.parse({"warmup": 3}), with_newcomers(federation, 2), rounds=1, training=SGD)
    assert ran.outcome().newcomers is not None
    assert [len(orders[size]) for size in SIZES] == [1, *[3] * 5, 1, 1]


def test_distances_of_models_leave_running_statistics_out() -> None:
    start = torch.zeros(3)
    state = State(start[None], start=start, trained=torch.tensor([[1.0, 0, 0], [0, 1, 100]]))
    now = SimpleNamespace(model=SimpleNamespace(parameters=2))
    gaps = LCFL.parse({"distance": "model"}).gaps(now, state, state.trained)  # type: ignore[arg-type]
    torch.testing.assert_close(gaps, 2**0.5 * (1 - torch.eye(2, dtype=torch.float64)))


def test_dbscan_finds_the_number_of_clusters_and_leaves_noise_alone() -> None:
    """(c_i - c_j)^2 <= 1 within a group."""
    ran = lcfl({"eps": 1.0}, points((0, 0.4, 5, 5.6, 20, 30)))
    assert ran.server("assignment") == [[0, 0, 1, 1, 2, 3]]
    assert ran.server("models")[0] == pytest.approx([0.2, 5.3, 20, 30])


def test_medoids_of_dbscan_are_members_in_the_middle() -> None:
    x = np.array([0, 0.4, 0.9, 5, 20])
    found, medoids = LCFL.parse({"eps": 0.6}).group(np.abs(x[:, None] - x))
    assert (found.tolist(), medoids.tolist()) == ([0, 0, 0, 1, 2], [1, 3, 4])


@pytest.mark.parametrize(
    ("hyper", "message"),
    [
        ({"eps": 1.0, "clusters": 3}, "clusters: 3 .* expected 2, its default, with eps"),
        ({"min_samples": 3}, "min_samples: 3 .* expected 2, its default, without eps"),
    ],
)
def test_options_of_the_other_clustering_are_refused(hyper: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=f"^method.{message}$"):
        build_method("lcfl", hyper)


def test_more_clusters_than_clients() -> None:
    assert build_method("lcfl", {"clusters": 5}).onboarding_phases() == 6
    with pytest.raises(BadInput, match=r"method.clusters: 5 .* at most 4"):
        lcfl({"clusters": 5}, points())
