"""LG-FedAvg on the test-bed T2, its neighbours FedAvg and Local, and the layers that networks share."""

from typing import Any

import pytest
import torch
from support import products, run

from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.simulation.federation import Federation

HALF: dict[str, Any] = {
    "training": {"epochs": 2, "batch_size": 8, "lr": 0.1, "momentum": 0.5}, "participation": 0.5
}  # fmt: skip


def near(value: Any) -> Any:
    nested = isinstance(value, list) and isinstance(value[0], list)
    return [near(row) for row in value] if nested else pytest.approx(value, rel=0, abs=1e-9)


def test_lg_fedavg(cohort: str) -> None:
    ran = run("lg_fedavg", products(), rounds=2, cohort=cohort)
    assert ran.server("head") == near([0.7410921875, 0.9363029393])
    assert ran.kept("body") == near([[1.04899375, 1.15958125], [1.0796703112, 1.3238897478]])


def test_sharing_everything_is_fedavg(federation: Federation, cohort: str) -> None:
    shared = run("lg_fedavg", federation, {"shared": ["*"]}, cohort=cohort, **HALF)
    plain = run("fedavg", federation, cohort=cohort, **HALF)
    assert torch.equal(shared.servers[-1]["head"], plain.servers[-1]["model"])


def test_sharing_nothing_is_local(federation: Federation, cohort: str) -> None:
    private = run("lg_fedavg", federation, {"shared": []}, cohort=cohort, **HALF)
    local = run("local", federation, cohort=cohort, **HALF)
    assert all(map(torch.equal, private.clients[-1]["body"], local.clients[-1]["model"]))
    assert private.values("bytes_down")[-1] == private.values("bytes_up")[-1] == 0


@pytest.mark.parametrize(
    ("network", "shape", "classes", "options", "parameters"),
    [
        ("lenet5", (3, 32, 32), 10, {}, 11_014),
        ("lenet5_bn", (3, 32, 32), 10, {}, 11_014),
        ("resnet9", (3, 32, 32), 100, {}, 1_024 + 51_300),
        ("cnn_mnist", (1, 28, 28), 10, {}, 21_840 - 5_280),
        ("cnn_feddyn", (3, 32, 32), 10, {}, 385 * 192 + 193 * 10),
        ("cnn", (1, 28, 28), 10, {"hidden": ()}, 10_250),
        ("mlp", (1, 28, 28), 10, {}, 2_010),
        ("mlp", (1, 28, 28), 10, {"hidden": (200, 50), "dropout": 0.5}, 201 * 50 + 51 * 10),
        ("twonn", (1, 28, 28), 10, {}, 200 * 200 + 2_000),
        ("logistic", (1, 28, 28), 10, {}, 7_850),
    ],
)
def test_the_layers_shared_by_default(
    network: str, shape: tuple[int, ...], classes: int, options: dict, parameters: int
) -> None:
    """The published counts: 11,014 of LeNet-5, 52,324 of ResNet-9, all but 5,280 of the MNIST CNN."""
    model = FlatModel(lambda: build(network, shape, classes, **options))
    assert len(model.part(*model.shared_patterns).index) == parameters


def test_parts_are_made_once() -> None:
    model = FlatModel(lambda: build("lenet5", (3, 32, 32), 10))
    assert model.part("fc3.*") is model.head()
    assert model.part("fc2.*") is not model.head()
