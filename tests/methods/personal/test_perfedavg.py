"""Per-FedAvg on the test-bed T1, and FedAvg without adaptation."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from support import Ran, consecutive, images, near, one_client, quadratics, refused, run
from torch import Tensor

from fedflow.data import Dataset
from fedflow.local.schedule import Schedule
from fedflow.methods import build_method
from fedflow.methods.personal.perfedavg import PerFedAvg
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.seeding import torch_seed
from fedflow.simulation.federation import Federation

T1 = {"alpha": 0.1, "beta": 0.2}
ORDERS = {  # local models, global models of two rounds, personal models after the first
    "first": ([0.6638, -0.3064], [0.1787, -0.00360562], [0.26083, -0.05704]),
    "hessian_free": ([0.648878, -0.169696], [0.239591, 0.0760827930], [0.3156319, -0.0083272]),
}
ORDERS["second"] = ORDERS["hessian_free"]  # which is exact on quadratics


def served(ran: Ran) -> list[float]:
    return [float(w) for w in ran.outcome().models.values()]


@pytest.mark.parametrize("order", ORDERS)
def test_perfedavg(order: str, cohort: str) -> None:
    local, models, personal = ORDERS[order]
    hyper = T1 | {"order": order}
    ran = run("perfedavg", quadratics(), hyper, rounds=2, keep_trained=True, cohort=cohort)
    assert ran.kept("trained")[0] == near(local)
    assert ran.server("model") == near(models)
    assert served(run("perfedavg", quadratics(), hyper, rounds=1, cohort=cohort)) == near(personal)


EXACT = (-0.405, 1.92)


@pytest.mark.parametrize(
    ("hyper", "delta", "gradients"),
    [
        ({}, 1e-3, (-0.45, 2.4)),
        ({"order": "hessian_free"}, 1e-3, EXACT),
        ({"order": "hessian_free"}, 1.0, EXACT),
        ({"order": "second"}, 1e-3, EXACT),
    ],
)
def test_meta_gradients(
    hyper: dict[str, Any], delta: float, gradients: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 1/2: (1 - alpha a) grad F(w'), without and with the first factor; for any delta on quadratics."""
    monkeypatch.setattr(PerFedAvg, "delta", delta)
    for curve, gradient in zip(((1, 1), (2, -1)), gradients):
        hyper = {"alpha": 0.1, "beta": None} | hyper
        ran = run("perfedavg", quadratics((curve,), (4,)), hyper, training={"epochs": 1, "lr": 1}, rounds=1)
        assert ran.server("model") == near([0.5 - gradient])


def test_each_gradient_has_its_own_batch() -> None:
    """From 0, towards 1 on D and towards 2 on D': w' = 0.5, v = -1.5, w = 0.15."""
    zero = torch.zeros(1, dtype=torch.float64)
    both = replace(quadratics(((1, 1), (1, 2)), (1, 1), 0), partition=consecutive((2,)))
    client = one_client(both, model=zero)
    client._schedules = {"inner": Schedule(torch.tensor([[0]])), "batches": Schedule(torch.tensor([[1]]))}
    update = build_method("perfedavg", {"alpha": 0.5, "beta": 0.1}).local(client)
    assert float(update.vectors["model"]) == near(0.15)


@pytest.mark.parametrize("order", ORDERS)
def test_without_adaptation_it_is_uniform_fedavg(federation: Federation, order: str, cohort: str) -> None:
    half = {"training": {"epochs": 2, "batch_size": 8, "momentum": 0.5}, "participation": 0.5}
    meta = run("perfedavg", federation, {"alpha": 0, "beta": 0.05, "order": order}, cohort=cohort, **half)
    half["training"] |= {"lr": 0.05}
    plain = run("fedavg", federation, {"weighting": "uniform"}, cohort=cohort, **half)
    assert torch.equal(meta.servers[-1]["model"], plain.servers[-1]["model"])


def test_gradients_with_second_derivatives_are_those_of_the_objective(
    digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """grad of F(w - alpha grad F(w)) by automatic differentiation, on real images."""
    monkeypatch.setattr(PerFedAvg, "delta", 1e-5)
    alone = images(digits, (12,), dtype=torch.float64)
    model, alpha = alone.model, 0.1
    rows = torch.as_tensor(alone.partition.train(0))
    x, y = alone.train.inputs(rows, torch.float64), alone.train.targets(rows)

    def objective(w: Tensor) -> Tensor:
        def loss(v: Tensor) -> Tensor:
            return model.loss(model.train_outputs(v, x)[0], y)

        return loss(w - alpha * torch.func.grad(loss)(w))

    w = model.init(torch_seed(0, "initial model", 0))
    with model.for_cohorts():
        exact = torch.func.grad(objective)(w)
    errors = []
    for order in ({"order": "second"}, {"order": "hessian_free"}, {}):
        hyper = {"alpha": alpha, "beta": None} | order
        ran = run("perfedavg", alone, hyper, training={"epochs": 1, "lr": 1}, rounds=1)
        errors.append(float((w - ran.servers[0]["model"] - exact).norm() / exact.norm()))
    assert errors[0] < 1e-12 and errors[1] < 1e-6 < 1e-3 < errors[2]


@pytest.mark.parametrize(
    ("hyper", "gradient"),
    [
        ({"alpha": 0}, -9),
        ({}, -6.3),
        ({"order": "second"}, -4.41),
        ({"order": "second", "adaptation": 5}, -0.2542277),
    ],
)
def test_second_order_goes_through_all_steps(hyper: dict[str, Any], gradient: float, cohort: str) -> None:
    """F = 3/2 (w - 4)^2 at 1, with steps of 0.1: PFL's worked example."""
    alone, one_step = quadratics(((3, 4),), (4,), 1), {"epochs": 1, "lr": 1}
    ran = run("perfedavg", alone, {"alpha": 0.1} | hyper, training=one_step, rounds=1, cohort=cohort)
    assert ran.server("model") == pytest.approx([1 - gradient], abs=1e-7)


def test_what_does_nothing_is_refused(federation: Federation) -> None:
    for order in ("first", "second"):
        with refused(rf"^training\.adaptation: a mapping .* null with perfedavg and order: {order}"):
            run("perfedavg", federation, {"order": order}, training={"adaptation": {"name": "proto"}})
    with refused(r"^training\.curriculum: a mapping .* null with perfedavg and order: second, whose steps"):
        run("perfedavg", federation, {"order": "second"}, training={"curriculum": {}})


def test_second_order_names_its_own_option_where_a_network_has_none(federation: Federation) -> None:
    lstm = FlatModel(partial(build, "char_lstm", (5,), 10, hidden=6, embedding=4))
    lstm.device = torch.device("cuda")
    with refused(r"^method\.order: 'second' .* first with a recurrent network on a GPU"):
        build_method("perfedavg", {"order": "second"}).maml.check(lstm, federation.train)


@pytest.mark.parametrize(("steps", "personal"), [(0, 0.1787), (2, 0.334747)])
def test_steps_before_a_client_is_served(steps: int, personal: float) -> None:
    """1 - (1 - 0.1)^steps (1 - 0.1787) for client 0"""
    assert served(run("perfedavg", quadratics(), T1 | {"adaptation": steps}, rounds=1))[0] == near(personal)
