"""One-shot clustering: planted groups are found, k = 1 is FedAvg, k = N is training alone."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support import consecutive, images, last_server, one_client, quadratics, run
from torch import Tensor, nn

from fedflow.data import Dataset, Examples
from fedflow.errors import BadInput
from fedflow.methods.clustered.one_shot import OneShot, logistic
from fedflow.models.flat import FlatModel
from fedflow.partition import Partition
from fedflow.simulation.federation import Federation

SGD = {"epochs": 2, "batch_size": 8, "lr": 0.1, "momentum": 0.5}
FOUR = ((1, 0), (1, 0.4), (1, 5), (1, 5.6))


class Regression(nn.Module):
    """<theta, x> with F = mean (<theta, x> - y)^2, from theta = 0."""

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(dimensions, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.theta

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs - y).square()

    def hits(self, outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs - y).abs() < 1


def mixed_regression(samples: int, clients: int = 12, dimensions: int = 20) -> tuple[Federation, Tensor]:
    """Blocks of clients with one of two truths in {0, 1}^20 and noise 0.1; the truths [2, 20]."""
    rng = np.random.default_rng(1)
    truths = rng.integers(0, 2, (2, dimensions)).astype(float)
    x = rng.normal(size=(clients * samples, dimensions))
    own = np.repeat(truths, len(x) // 2, axis=0)
    y = (x * own).sum(1) + rng.normal(scale=0.1, size=len(x))
    examples = Examples(torch.from_numpy(x), torch.from_numpy(y))
    model = FlatModel(partial(Regression, dimensions), dtype=torch.float64)
    return Federation(model, examples, examples, consecutive([samples] * clients)), torch.from_numpy(truths)


def test_each_cluster_trains_its_own_model(cohort: str) -> None:
    """Two steps of 0.5 from 0.5 end at 0.25 w + 0.75 b."""
    clients = quadratics(FOUR, (10,) * 4)
    ran = run("one_shot", clients, {"clusters": 2}, training={"lr": 0.5}, rounds=1, cohort=cohort)
    assert ran.server("assignment") == [[0, 0, 1, 1]]
    assert ran.server("models")[0] == pytest.approx([0.125 + 0.15, 0.125 + 0.75 * 5.3])
    assert ran.outcome().scores.cluster.tolist() == [0, 0, 1, 1]


def test_one_cluster_is_fedavg(federation: Federation, cohort: str) -> None:
    settings: dict[str, Any] = {"training": SGD, "participation": 0.5, "cohort": cohort}
    one = run("one_shot", federation, {"clusters": 1}, **settings)
    plain = run("fedavg", federation, **settings)
    assert torch.equal(one.servers[-1]["models"][0], plain.servers[-1]["model"])


def test_a_cluster_for_every_client_is_local_training(federation: Federation, cohort: str) -> None:
    alone = run("one_shot", federation, {"clusters": 8}, training=SGD, cohort=cohort)
    local = run("local", federation, training=SGD, cohort=cohort)
    assignment = alone.servers[-1]["assignment"]
    assert sorted(assignment.tolist()) == [*range(8)]
    models = alone.servers[-1]["models"][assignment]
    # Not bit for bit: a mean of one is its model times and over its weight.
    torch.testing.assert_close(models, torch.stack(local.clients[-1]["model"]), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("samples", "found"), [(60, True), (4, False)])
def test_groups_are_found_as_long_as_clients_can_train_alone(
    samples: int, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 unknowns: 60 samples of a client determine them, 4 do not."""
    clients, truths = mixed_regression(samples)
    monkeypatch.setattr(OneShot, "trainings", 15)
    ran = run("one_shot", clients, {"clusters": 2}, training={"epochs": 5, "lr": 0.05}, rounds=25)
    assignment = ran.servers[-1]["assignment"].numpy()
    assert (len({*assignment[:6]}) == len({*assignment[6:]}) == 1) == found
    error = (ran.servers[-1]["models"][assignment] - truths.repeat_interleave(6, 0)).norm(dim=1).mean()
    assert (error < 0.1) == found


@pytest.mark.parametrize("features", ["model", "logistic"])
def test_newcomers_join_the_cluster_with_the_nearest_center(digits: Dataset, features: str) -> None:
    """The last client holds what client 3 holds."""
    four = images(digits, (60,) * 4)
    train, own = ([getattr(four.partition, of)(k) for k in (0, 1, 2, 3, 3)] for of in ("train", "test"))
    partition = Partition.from_lists(train, own, [np.array([k]) for k in range(5)], newcomers=1)
    hyper = {"clusters": 2, "features": features}
    ran = run("one_shot", replace(four, partition=partition), hyper, rounds=1, training=SGD)
    newcomers = ran.outcome().newcomers
    *before, joined = last_server(ran).assignment.tolist()
    assert joined == before[3] and set(before) == {0, 1}
    assert newcomers is not None and newcomers.cluster.tolist() == [joined]


def test_logistic_coefficients_stand_at_their_labels(digits: Dataset) -> None:
    clients = images(digits, (40,) * 20)
    found = {k: logistic(one_client(clients, k)).reshape(10, 64) for k in range(20)}
    counts = {k: clients.train.y[torch.from_numpy(clients.partition.train(k))].unique() for k in range(20)}
    assert {len(c) for c in counts.values()} >= {1, 2}
    for k, present in counts.items():
        filled = found[k].abs().sum(1).nonzero()[:, 0]
        assert torch.equal(filled, present if len(present) > 1 else filled[:0])
        if len(present) == 2:
            torch.testing.assert_close(found[k][present[0]], -found[k][present[1]], rtol=0, atol=1e-3)


def test_more_clusters_than_clients() -> None:
    with pytest.raises(BadInput, match=r"method.clusters: 5 .* at most 4"):
        run("one_shot", quadratics(FOUR, (1,) * 4), {"clusters": 5})
