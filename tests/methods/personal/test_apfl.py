"""APFL on the test-bed T1, and FedAvg and Local at the ends of its mixture."""

from typing import Any

import pytest
import torch
from support import follow, near, one_client, prepare_run, quadratics, run

from fedflow.methods import build_method
from fedflow.simulation.federation import Federation

HALF: dict[str, Any] = {
    "training": {"epochs": 2, "batch_size": 8, "lr": 0.1, "momentum": 0.5, "weight_decay": 0.01},
    "participation": 0.5,
}


def test_apfl_with_a_fixed_alpha(cohort: str) -> None:
    ran = run("apfl", quadratics(), {"adaptive": False}, rounds=2, cohort=cohort)
    assert ran.server("model") == near([0.2775, 0.1161875])
    assert ran.kept("personal") == near([[0.548125, 0.2225], [0.6043035156, -0.008475]])
    served = [float(ran.outcome().models[k]) for k in range(2)]
    assert served == near([0.3602455078, 0.05385625])
    first = run("apfl", quadratics(), {"adaptive": False}, rounds=1, cohort=cohort).outcome()
    assert [float(first.models[k]) for k in range(2)] == near([0.4128125, 0.25])


def test_apfl_with_an_adaptive_alpha(cohort: str) -> None:
    """From v = 0, because alpha does not move where v = w."""
    simulation = prepare_run("apfl", quadratics(), rounds=2, cohort=cohort)
    simulation.state.store.first["personal"] = torch.zeros(1, dtype=torch.float64)
    ran = follow(simulation)
    assert ran.server("model") == near([0.2775, 0.1161875])
    assert ran.kept("personal") == near([[0.0692751953, -0.249609375], [0.1409242152, -0.4752905258]])
    assert ran.kept("alpha") == near([[0.4625, 0.625], [0.4454504703, 0.7249459087]])


def test_a_step_of_one_client(cohort: str) -> None:
    """F = (w - 3)^2 / 2, alpha = 1/4, w = 1, v = 2: vbar was 1.25 and becomes 1.4109375 (SuPerFed, 3.7)."""
    simulation = prepare_run(
        "apfl",
        quadratics(((1, 3),), (4,), 1),
        {"alpha": 0.25, "adaptive": False},
        training={"epochs": 1},
        rounds=1,
        keep_trained=True,
        cohort=cohort,
    )
    simulation.state.store.first["personal"] = torch.full((1,), 2, dtype=torch.float64)
    ran = follow(simulation)
    assert (ran.kept("personal"), ran.server("model")) == (near([[2.04375]]), near([1.2]))
    assert ran.kept("trained") == near([[1.4109375]])


@pytest.mark.parametrize("push", [-1.0, 1.0])
def test_alpha_stays_a_share(push: float) -> None:
    """A long step towards the better of two models: it ends at one of them, not beyond."""
    model = torch.zeros(1, dtype=torch.float64)
    client = one_client(quadratics(((1, push),), (4,), 0), model=model)
    client.lr = 100.0
    client.kept = {"personal": model + 1, "alpha": model + 0.5}
    kept = build_method("apfl").local(client).keep
    assert float(kept["alpha"]) == (1 if push > 0 else 0)


@pytest.mark.parametrize("alpha", [0, 0.5, 1])
def test_the_global_part_is_uniform_fedavg(federation: Federation, alpha: float, cohort: str) -> None:
    ran = run("apfl", federation, {"alpha": alpha}, cohort=cohort, **HALF)
    plain = run("fedavg", federation, {"weighting": "uniform"}, cohort=cohort, **HALF)
    assert torch.equal(ran.servers[-1]["model"], plain.servers[-1]["model"])


def test_without_personal_models_all_clients_are_served_fedavg(federation: Federation) -> None:
    ran = run("apfl", federation, {"alpha": 0, "adaptive": False}, **HALF)
    assert all(torch.equal(w, ran.servers[-1]["model"]) for w in ran.outcome().models.values())


def test_with_personal_models_only_it_is_local(federation: Federation, cohort: str) -> None:
    ran = run("apfl", federation, {"alpha": 1, "adaptive": False}, cohort=cohort, **HALF)
    local = run("local", federation, cohort=cohort, **HALF)
    assert all(map(torch.equal, ran.clients[-1]["personal"], local.clients[-1]["model"]))


def test_a_step_as_published(cohort: str) -> None:
    """vbar has the received w = 1, not the client's: two steps of F = (w - 3)^2 / 2 with alpha = 1/4."""
    simulation = prepare_run(
        "apfl_as_published",
        quadratics(((1, 3),), (4,), 1),
        training={"epochs": 2, "weight_decay": 0.1},
        rounds=1,
        cohort=cohort,
    )
    simulation.state.store.first["personal"] = torch.full((1,), 2, dtype=torch.float64)
    w, v, rate, decay = 1.0, 2.0, 0.1, 0.1
    for _ in range(2):
        g = 0.25 * v + 0.75 - 3
        w, v = w - rate * (w - 3), v - rate * (0.25 * g + decay * v)
    ran = follow(simulation)
    assert (ran.server("model"), ran.kept("personal")) == (near([w]), near([[v]]))


def test_as_published_its_first_step_is_that_of_apfl(federation: Federation, cohort: str) -> None:
    """And without weight decay, its global part is FedAvg."""
    one = HALF | {
        "training": {"epochs": 1, "steps": 1, "batch_size": 8, "lr": 0.1, "momentum": 0.5},
        "cohort": cohort,
    }
    published, plain = (
        run(name, federation, {"alpha": 0.25} | more, rounds=1, **one)
        for name, more in (("apfl_as_published", {}), ("apfl", {"adaptive": False, "weighting": "samples"}))
    )
    assert torch.equal(published.servers[-1]["model"], plain.servers[-1]["model"])
    assert all(map(torch.equal, published.clients[-1]["personal"], plain.clients[-1]["personal"]))
