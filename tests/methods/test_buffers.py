"""Running statistics of BatchNorm are averaged, and nothing else: server optimisers must not move them.

In its first round a method that trains as FedAvg does has FedAvg's statistics, whatever it does to the model.
"""

from dataclasses import replace

import pytest
import torch
from support import images, one_client, run
from torch import nn

from fedflow.data import Dataset
from fedflow.local.training import LocalTraining
from fedflow.models.flat import FlatModel
from fedflow.simulation.federation import Federation

SGD = {"epochs": 2, "batch_size": 0, "lr": 0.1}


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))


@pytest.fixture(scope="module")
def normed(digits: Dataset) -> Federation:
    return replace(images(digits, (23, 7, 40)), model=FlatModel(network, dtype=torch.float64))


def statistics(federation: Federation, method: str, hyper: dict, rounds: int = 1) -> torch.Tensor:
    ran = run(method, federation, hyper, training=SGD, rounds=rounds)
    assert ran.servers[-1]["model"].isfinite().all()
    return ran.servers[-1]["model"][federation.model.parameters :]


UNIFORM = {"weighting": "uniform"}
CASES: list[tuple[str, dict, dict]] = [  # a method, and the FedAvg whose statistics it has
    *(("fedavgm", {"form": form, "server_lr": 2}, {}) for form in ("polyak", "nesterov", "damped")),
    ("fednova", {"gmf": 0.5}, {}),
    ("fednova", {"mu": 0}, {}),
    ("qfedavg", {"q": 0}, UNIFORM),
    ("term", {"t": 0}, {}),
    ("afl", {"lambda_lr": 0, "prior": "samples"}, {}),
    ("propfair", {"applied": "weights", "baseline": 1e12}, {}),
    ("fedmgda", {"server_lr": 3}, UNIFORM),
    ("feddyn", {"alpha": 1e-9}, UNIFORM),
    ("apfl", {}, UNIFORM),
    ("perfedavg", {"alpha": 0, "beta": 0.1}, UNIFORM),
    ("pfedme", {"lam": 10, "inner_steps": 1, "personal_lr": 0.1}, {}),
    *((f"fed{optimiser}", UNIFORM, UNIFORM) for optimiser in ("adagrad", "adam", "yogi")),
]


@pytest.mark.parametrize(("method", "hyper", "fedavg"), CASES)
def test_statistics_are_averaged_as_fedavg_does(
    normed: Federation, method: str, hyper: dict, fedavg: dict
) -> None:
    ours, plain = statistics(normed, method, hyper), statistics(normed, "fedavg", fedavg)
    torch.testing.assert_close(ours, plain, rtol=0, atol=1e-12)
    assert (plain[8:] > 0).all()  # the variances


def test_a_full_step_carries_the_statistics_along(normed: Federation) -> None:
    """One chunk leaves them where one full batch does."""
    client = one_client(normed, training=LocalTraining(batch_size=0, epochs=1, lr=0.1))
    w = normed.model.init(0)
    stepped, expected = client.full_step(w), client.fit(start=w)
    torch.testing.assert_close(stepped, expected, rtol=0, atol=1e-12)
    assert not torch.equal(stepped[normed.model.parameters :], w[normed.model.parameters :])
