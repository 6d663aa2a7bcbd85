"""TERM: worked numbers, its limits, and FedAvg without tilt."""

import math
from typing import Any

import pytest
import torch
from lines import ONE_STEP, outlier, three
from support import quadratics, run

from fedflow.simulation.federation import Federation


@pytest.mark.parametrize(
    ("t", "weights", "models"),
    [
        (1, [(0.0382867558, 0.9617132442), (0.1748449663, 0.8251550337)], [-0.0156879101, -0.2743418328]),
        (0.1, [(0.2123007775, 0.7876992225)], [0.0948109937, -0.1659995873]),
    ],
)
def test_term(t: float, weights: list, models: list[float], cohort: str) -> None:
    """T1 (see `test_oracles`): losses 0.125 and 2.25, local models 0.595 and -0.04 in the first round."""
    ran = run("term", quadratics(), {"t": t}, rounds=2, cohort=cohort)
    assert ran.server("model") == pytest.approx(models, abs=1e-9)
    assert models[0] == pytest.approx(weights[0][0] * 0.595 - weights[0][1] * 0.04, abs=1e-9)
    for w, expected in zip([0.5, models[0]], weights):
        tilted = [p * math.exp(t * a / 2 * (w - b) ** 2) for p, a, b in ((0.25, 1, 1), (0.75, 2, -1))]
        assert [x / sum(tilted) for x in tilted] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("t", "weights"), [(0.1, (0.182432, 0.287678, 0.529890)), (1, (0.068132, 0.168497, 0.763371))]
)
def test_three_given_clients(t: float, weights: tuple, cohort: str) -> None:
    """Their updates are (0.1, 0), (0, 0.2) and (0.3, 0.1), from (1, 1)."""
    ran = run("term", three(), {"t": t}, rounds=1, training=ONE_STEP, cohort=cohort)
    expected = [1 - 0.1 * weights[0] - 0.3 * weights[2], 1 - 0.2 * weights[1] - 0.1 * weights[2]]
    assert ran.server("model") == [pytest.approx(expected, abs=1e-6)]


@pytest.mark.parametrize(("t", "ten", "hundred"), [(0.1, 3.9613, 4.0135), (1, 5.0737, 5.0737)])
def test_tilt_pulls_towards_the_worst_client(t: float, ten: float, hundred: float) -> None:
    models = run("term", outlier(), {"t": t}, training=ONE_STEP, rounds=100).server("model")
    assert (models[9], models[-1]) == (pytest.approx(ten, abs=1e-4), pytest.approx(hundred, abs=1e-4))


@pytest.mark.parametrize(("t", "model"), [(1e4, -0.04), (-1e4, 0.595)], ids=["worst", "best"])
def test_an_endless_tilt_follows_one_client(t: float, model: float) -> None:
    assert run("term", quadratics(), {"t": t}, rounds=1).server("model") == pytest.approx([model])


@pytest.mark.parametrize("fedavg", [{}, {"weighting": "uniform", "server_lr": 0.5}], ids=["", "uniform"])
def test_term_without_tilt_is_fedavg(federation: Federation, fedavg: dict, cohort: str) -> None:
    settings: dict[str, Any] = {"participation": 0.5, "training": {"batch_size": 8}, "cohort": cohort}
    ran, plain = (
        run(*which, **settings)
        for which in (("term", federation, {"t": 0} | fedavg), ("fedavg", federation, fedavg))
    )
    assert torch.equal(ran.servers[-1]["model"], plain.servers[-1]["model"])
