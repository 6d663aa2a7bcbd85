"""What a gradient records of its objective: the training loss and the statistics of BatchNorm."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from support import Normed, one_client, run
from torch import Tensor

from fedflow.local.client import Client
from fedflow.local.samples import Batch
from fedflow.local.trainer import Loss
from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.models.flat import FlatModel
from fedflow.seeding import torch_seed
from fedflow.simulation.federation import Federation


@pytest.fixture(scope="module")
def normed(federation: Federation) -> Federation:
    return replace(federation, model=FlatModel(Normed, dtype=torch.float64))


def plain(client: Client) -> Loss:
    return client.loss


def penalized(client: Client) -> Loss:
    return lambda w, batch: client.loss(w, batch) + 3 + 0 * w.sum()


def doubtful(client: Client) -> Loss:
    """The data loss, and another one far away with weight 0."""
    return lambda w, batch: client.loss(w, batch) + 0 * client.loss(w * 0 + 100, batch)


def mixed(client: Client) -> Loss:
    return lambda w, batch: 0.25 * client.loss(w, batch) + 0.75 * client.loss(w, batch)


def without_data(client: Client) -> Loss:
    return lambda w, batch: w[: client.model.parameters].square().sum()


def with_objective(make: Callable[[Client], Loss]) -> FedAvg:
    class Own(FedAvg):
        def local(self, client: Client) -> Any:
            return client.update(model=client.fit(make(client), start=client.received["model"]))

    return Own()


@pytest.mark.parametrize("make", [penalized, doubtful, mixed])
def test_the_recorded_loss_is_that_of_the_data(federation: Federation, make: Any, cohort: str) -> None:
    """Penalties do not count; with several data losses, the value of the objective is recorded."""
    ours, theirs = (run(with_objective(each), federation, cohort=cohort) for each in (make, plain))
    losses = [ran.values("train_loss") for ran in (ours, theirs)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-12)
    torch.testing.assert_close(ours.servers[-1]["model"], theirs.servers[-1]["model"], rtol=0, atol=1e-12)


def test_an_objective_may_have_no_data_loss(federation: Federation, cohort: str) -> None:
    ran = run(with_objective(without_data), federation, cohort=cohort, rounds=1)
    w = federation.model.init(torch_seed(0, "initial model", 0))
    assert ran.values("train_loss")[0] == pytest.approx(float(w.square().sum()) * (1 + 0.8**2) / 2)
    torch.testing.assert_close(ran.servers[0]["model"], 0.64 * w)


@pytest.mark.parametrize(("make", "moves"), [(doubtful, True), (penalized, True), (without_data, False)])
def test_statistics_are_those_after_the_first_data_loss(normed: Federation, make: Any, moves: bool) -> None:
    client, w = one_client(normed), normed.model.init(0)
    _, expected = normed.model.train_outputs(w, client.data()[0])
    trained = client.fit(make(client), start=w)[normed.model.parameters :]
    assert torch.equal(trained, expected if moves else w[normed.model.parameters :])


def test_losses_of_a_nested_objective_are_not_recorded(federation: Federation) -> None:
    client, w = one_client(federation), federation.model.init(0)
    batch = Batch(*client.data())

    def adapted(w: Tensor, batch: Batch) -> Tensor:
        return client.loss(w - 0.1 * client.gradient(w, batch).gradient, batch)

    found = client.gradient(w, batch, adapted)
    assert found.loss == client.loss(w - 0.1 * client.full_gradient(w), batch)
