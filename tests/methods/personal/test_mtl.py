"""MTL: steps by hand, its fixed point, and Local without its penalties."""

from functools import partial

import numpy as np
import pytest
import torch
from support import Ran, quadratics, run

from fedflow.methods.personal.mtl import MTL
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.simulation.federation import Federation

LAM = 0.25


def by_hand(rounds: int) -> list[tuple[list[float], float]]:
    """T1: two steps of 0.1 along a (w - b) + 2 lambda (w + (w - mean)), then the mean."""
    w, mean, expected = [0.5, 0.5], 0.5, []
    for _ in range(rounds):
        for k, (a, b) in enumerate(((1, 1), (2, -1))):
            for _ in range(2):
                w[k] -= 0.1 * (a * (w[k] - b) + 2 * LAM * (w[k] + (w[k] - mean)))
        mean = sum(w) / 2
        expected.append((list(w), mean))
    return expected


def test_mtl(cohort: str) -> None:
    ran = run("mtl", quadratics(), {"lam": LAM}, cohort=cohort)
    expected = by_hand(3)
    assert ran.kept("model") == [pytest.approx(w, abs=1e-12) for w, _ in expected]
    assert ran.server("mean") == pytest.approx([mean for _, mean in expected], abs=1e-12)
    assert expected[0] == ([pytest.approx(0.545), pytest.approx(-0.0525)], pytest.approx(0.24625))


def test_mtl_ends_where_loss_and_penalties_balance() -> None:
    """a_k (w_k - b_k) + 2 lambda (2 w_k - mean) = 0 for both clients."""
    a, b = np.array([1.0, 2.0]), np.array([1.0, -1.0])
    balance = np.diag(a + 4 * LAM) - LAM  # 2 lambda / 2 clients
    ran = run("mtl", quadratics(), {"lam": LAM}, rounds=80)
    assert ran.kept("model")[-1] == pytest.approx(np.linalg.solve(balance, a * b).tolist(), abs=1e-9)


def test_mtl_without_penalties_is_local(federation: Federation, cohort: str) -> None:
    half = {"participation": 0.5, "training": {"batch_size": 8, "momentum": 0.5}, "cohort": cohort}
    ran, local = run("mtl", federation, {"lam": 0}, **half), run("local", federation, **half)
    assert torch.equal(torch.stack(ran.clients[-1]["model"]), torch.stack(local.clients[-1]["model"]))


def test_a_strong_pull_draws_models_together(federation: Federation) -> None:
    def spread(ran: Ran) -> float:
        return float(torch.stack(ran.clients[-1]["model"]).std(0).mean())

    weak, strong = (run("mtl", federation, {"lam": lam}) for lam in (0, 1))
    assert spread(strong) < spread(weak) / 2


@pytest.mark.parametrize(
    ("network", "shape", "lam"), [("lenet5", (3, 32, 32), 1e-6), ("mlp", (1, 28, 28), 1e-7)]
)
def test_the_default_weight_follows_the_size_of_the_network(network: str, shape: tuple, lam: float) -> None:
    """62,006 and 159,010 parameters"""
    model = FlatModel(partial(build, network, shape, 10))
    assert MTL.parse({}).penalty(model) == pytest.approx(lam)
    assert MTL.parse({"lam": 0.5}).penalty(model) == 0.5
