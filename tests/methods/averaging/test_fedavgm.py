"""FedAvgM on the test-bed T1 (see `test_oracles`), and without momentum."""

import pytest
import torch
from support import quadratics, run

from fedflow.simulation.federation import Federation

FORMS = {
    "polyak": [0.11875, -0.484578125, -1.0962198828],
    "nesterov": [-0.224375, -0.8205832812, -1.1487690262],
    "damped": [0.461875, 0.3906479687, 0.2918905676],
}


@pytest.mark.parametrize("form", FORMS)
def test_fedavgm(form: str, cohort: str) -> None:
    ran = run("fedavgm", quadratics(), {"form": form}, cohort=cohort)
    assert ran.server("model") == pytest.approx(FORMS[form], abs=1e-9)


def test_momentum_adds_up_the_mean_updates() -> None:
    """From 0.5 with FedAvg's first model 0.11875, and a second update from there."""
    ran = run("fedavgm", quadratics(), {"server_lr": 0.5, "beta": 0.5}, rounds=2)
    first = 0.5 - 0.11875
    w = 0.5 - 0.5 * first
    second = w - (0.25 * (1 + 0.81 * (w - 1)) + 0.75 * (-1 + 0.64 * (w + 1)))
    assert ran.server("v") == pytest.approx([first, 0.5 * first + second])
    assert ran.server("model") == pytest.approx([w, w - 0.5 * (0.5 * first + second)])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("fedavg", [{}, {"weighting": "uniform", "server_lr": 0.3}], ids=["", "uniform"])
def test_fedavgm_without_momentum_is_fedavg(federation: Federation, form: str, fedavg: dict) -> None:
    """w - (w - mean) is rounded where mean is not: equal within rounding."""
    sgd = {"training": {"batch_size": 8, "momentum": 0.5}, "participation": 0.5}
    ran = run("fedavgm", federation, {"beta": 0, "form": form} | fedavg, **sgd)
    plain = run("fedavg", federation, fedavg, **sgd)
    torch.testing.assert_close(ran.servers[-1]["model"], plain.servers[-1]["model"], rtol=0, atol=1e-6)
