"""PropFair: worked numbers of both forms, its slope, and FedAvg for large M."""

from typing import Any

import pytest
import torch
from lines import ONE_STEP, outlier, three
from support import quadratics, run

from fedflow.errors import BadInput
from fedflow.methods import build_method
from fedflow.methods.fairness.propfair import PropFair
from fedflow.simulation.federation import Federation

T1 = [  # hyperparameters, local models of the first round, models
    ({"baseline": 2}, (0.5517375832, 0.215), [0.2991843958, -0.3452033919]),
    ({"baseline": 2, "beyond": "huber"}, (0.5517375832, -1.0), [-0.6120656042, -0.5805469875]),
    ({"baseline": 5}, (0.5202919841, 0.3001593133), [0.3551924810]),
]


@pytest.mark.parametrize(("hyper", "trained", "models"), T1, ids=["M=2", "M=2 huber", "M=5"])
def test_propfair(hyper: dict, trained: tuple, models: list[float], cohort: str) -> None:
    """T1 (see `test_oracles`). Client 2 starts at a loss of 2.25, beyond M - eps = 1.8."""
    ran = run("propfair", quadratics(), hyper, rounds=2, keep_trained=True, cohort=cohort)
    assert ran.kept("trained")[0] == pytest.approx(trained, abs=1e-9)
    assert ran.server("model")[: len(models)] == pytest.approx(models, abs=1e-9)


@pytest.mark.parametrize(
    ("baseline", "weights"), [(3, (0.109589, 0.205479, 0.684932)), (5, (0.155340, 0.262136, 0.582524))]
)
def test_fair_weights_of_three_given_clients(baseline: float, weights: tuple, cohort: str) -> None:
    """p_k / (M - F_k), normalized; updates (0.1, 0), (0, 0.2) and (0.3, 0.1), from (1, 1)."""
    hyper = {"baseline": baseline, "applied": "weights"}
    ran = run("propfair", three(), hyper, rounds=1, training=ONE_STEP, cohort=cohort)
    expected = [1 - 0.1 * weights[0] - 0.3 * weights[2], 1 - 0.2 * weights[1] - 0.1 * weights[2]]
    assert ran.server("model") == [pytest.approx(expected, abs=1e-6)]


def test_fair_weights_pull_towards_the_worst_client() -> None:
    hyper = {"baseline": 60, "applied": "weights"}
    models = run("propfair", outlier(), hyper, training=ONE_STEP, rounds=100).server("model")
    assert (models[9], models[-1]) == (pytest.approx(2.5583, abs=1e-4), pytest.approx(2.8749, abs=1e-4))


def test_fair_weights_cost_one_number_up(federation: Federation) -> None:
    for applied, numbers in (("loss", 0), ("weights", 1)):
        ran = run("propfair", federation, {"applied": applied}, rounds=1)
        assert ran.values("bytes_up")[0] == 8 * 4 * (federation.model.size + numbers)


@pytest.mark.parametrize(("beyond", "line"), [("plain", 1 / 3), ("huber", 1 / 0.2)])
def test_the_slope_is_one_over_the_distance_to_the_baseline(beyond: str, line: float) -> None:
    """Also at and above M, where the log is infinite or not a number."""
    method = build_method("propfair", {"baseline": 3, "beyond": beyond})
    assert isinstance(method, PropFair)
    losses = torch.tensor([0, 1, 2.7, 2.9, 3, 100], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(method.cost(losses).sum(), losses)
    expected = [1 / 3, 1 / 2, 1 / 0.3, line, line, line]
    assert gradient.tolist() == pytest.approx(expected)
    assert method.slope(losses.detach()).tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("hyper", "lr"), [({"baseline": 1e6}, 1e5), ({"baseline": 1e6, "applied": "weights"}, 0.1)]
)
def test_propfair_with_a_large_baseline_is_fedavg(hyper: dict, lr: float, cohort: str) -> None:
    ran = run("propfair", quadratics(), hyper, rounds=1, training={"lr": lr}, cohort=cohort)
    assert ran.server("model") == pytest.approx([0.11875], abs=1e-6)
    if lr > 1:
        assert ran.server("model") == pytest.approx([0.1187493383], abs=1e-9)


def test_fair_weights_with_a_large_baseline_are_those_of_fedavg(federation: Federation, cohort: str) -> None:
    settings: dict[str, Any] = {"participation": 0.5, "training": {"batch_size": 8}, "cohort": cohort}
    hyper = {"baseline": 1e9, "applied": "weights"}
    ran, plain = run("propfair", federation, hyper, **settings), run("fedavg", federation, **settings)
    torch.testing.assert_close(ran.servers[-1]["model"], plain.servers[-1]["model"], rtol=0, atol=1e-6)


def test_eps_must_be_below_the_baseline() -> None:
    with pytest.raises(BadInput, match=r"^method\.eps: 2\.0 is not accepted; expected a number below method"):
        build_method("propfair", {"eps": 2, "baseline": 2})
