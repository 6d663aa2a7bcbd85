"""q-FedAvg and q-FedSGD: worked numbers, fixed points, and their limits for q = 0."""

import pytest
import torch
from lines import ONE_STEP, outlier, three
from support import quadratics, run

from fedflow.simulation.federation import Federation


@pytest.mark.parametrize(
    ("q", "models"),
    [(0, [0.2775, 0.1161875]), (1, [0.2764227642, 0.1063970066]), (2, [0.3500624222, 0.2164379834])],
)
def test_qfedavg(q: float, models: list[float], cohort: str) -> None:
    """T1 (see `test_oracles`): for q = 1, D = (-0.11875, 12.15) and h = (2.1525, 51.66)."""
    ran = run("qfedavg", quadratics(), {"q": q}, rounds=2, cohort=cohort)
    assert ran.server("model") == pytest.approx(models, abs=1e-9)
    if q == 1:
        assert models[0] == pytest.approx(0.5 - (-0.11875 + 12.15) / (2.1525 + 51.66))


@pytest.mark.parametrize(
    ("hyper", "model"),
    [
        ({"q": 1, "weighting": "samples"}, [0.848039, 0.921569]),
        ({"q": 1}, [0.87, 0.92]),
        ({"q": 0, "weighting": "samples"}, [0.83, 0.89]),
        ({"q": 0}, [0.866667, 0.9]),
    ],
)
@pytest.mark.parametrize("method", ["qfedavg", "qfedsgd"])
def test_three_given_clients(method: str, hyper: dict, model: list[float], cohort: str) -> None:
    ran = run(method, three(), hyper, rounds=1, training=ONE_STEP, cohort=cohort)
    assert ran.server("model") == [pytest.approx(model, abs=1e-6)]


@pytest.mark.parametrize(("q", "ten", "hundred"), [(1, 3.7254, 3.8649), (5, 4.4764, 4.6853)])
@pytest.mark.parametrize("method", ["qfedavg", "qfedsgd"])
def test_higher_losses_pull_harder(method: str, q: float, ten: float, hundred: float) -> None:
    """The limit is where 4 w^(2q+1) = (10 - w)^(2q+1)."""
    models = run(method, outlier(), {"q": q}, training=ONE_STEP, rounds=100).server("model")
    assert (models[9], models[-1]) == (pytest.approx(ten, abs=1e-4), pytest.approx(hundred, abs=1e-4))
    limit = 10 / (1 + 4 ** (1 / (2 * q + 1)))
    assert limit == pytest.approx(hundred, abs=1e-4)


SGD = {"epochs": 2, "batch_size": 8, "lr": 0.1, "momentum": 0.5}


@pytest.mark.parametrize(("ours", "plain"), [("qfedavg", "fedavg"), ("qfedsgd", "fedsgd")])
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_without_fairness_it_is_plain(
    federation: Federation, ours: str, plain: str, weighting: str, cohort: str
) -> None:
    settings = {"training": SGD, "participation": 0.5, "cohort": cohort}
    ran = run(ours, federation, {"q": 0, "weighting": weighting}, **settings)
    reference = run(plain, federation, {"weighting": weighting}, **settings)
    torch.testing.assert_close(ran.servers[-1]["model"], reference.servers[-1]["model"], rtol=0, atol=1e-5)


def test_qfedsgd_is_qfedavg_with_one_full_batch(federation: Federation, cohort: str) -> None:
    settings = {"training": ONE_STEP, "participation": 0.5, "cohort": cohort}
    sgd, avg = (run(name, federation, {"q": 2}, **settings) for name in ("qfedsgd", "qfedavg"))
    torch.testing.assert_close(sgd.servers[-1]["model"], avg.servers[-1]["model"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("q", [0.1, 5, 15])
def test_a_perfect_model_stays(q: float) -> None:
    """Losses of 0, whose powers vanish, leave the model where it is."""
    perfect = quadratics(((1, 0.5), (2, 0.5)))
    assert run("qfedavg", perfect, {"q": q}).server("model") == [0.5] * 3


def test_small_powers_of_losses_do_not_stop_it() -> None:
    """Losses of about 0.005, whose 15th powers are about 1e-35."""
    curves, q, lipschitz, w = ((1, 0.4), (1, 0.61)), 15, 10, 0.5
    losses, dw = [a / 2 * (w - b) ** 2 + 1e-10 for a, b in curves], [a * (w - b) for a, b in curves]
    d = sum(f**q * g for f, g in zip(losses, dw))
    h = sum(q * f ** (q - 1) * g**2 + lipschitz * f**q for f, g in zip(losses, dw))
    assert 0 < h < 1e-30
    ran = run("qfedavg", quadratics(curves), {"q": q}, rounds=1, training=ONE_STEP)
    assert ran.server("model") == [pytest.approx(w - d / h, abs=1e-12)]
    assert abs(d / h) > 1e-3


def test_the_server_learning_rate_scales_the_step() -> None:
    half = run("qfedavg", quadratics(), {"q": 1, "server_lr": 0.5}, rounds=1).server("model")
    assert half == pytest.approx([0.5 - (0.5 - 0.2764227642) / 2], abs=1e-9)
