"""FedSplit on quadratics: F_1 = x^2 / 2 and F_2 = 9 (x - 10)^2 / 2, whose sum is least at 9.

A gradient step of 2 / (1 + 9 + 2/s) leaves at most 8 / (10 + 2/s) of the distance to the exact proximal
step; 40 of them leave 1e-12 of it for s = 1/3. Limits need fewer, because every round starts nearer.
"""

import functools
import math
from typing import Any

import numpy as np
import pytest
import torch
from support import by_hand, images, near, quadratics, run, with_cohorts
from torch import Tensor, nn

from fedflow.data import Dataset
from fedflow.methods import build_method
from fedflow.simulation.federation import Federation

TWO = quadratics(((1, 0), (9, 10)), (1, 1), start=0)


def exact(s: float, steps: int = 40, low: float = 1, high: float = 9) -> dict[str, Any]:
    return {"epochs": steps, "lr": 2 / (low + high + 2 / s)}


def test_fedsplit(cohort: str) -> None:
    ran = run("fedsplit", TWO, {"s": 1 / 3}, rounds=6, training=exact(1 / 3), cohort=cohort)
    assert ran.server("model") == near([7.5, 11.25, 9.375, 8.4375, 8.90625, 9.140625])
    assert ran.kept("z")[:2] == [near([0, 15]), near([7.5, 15])]


@pytest.mark.parametrize(("s", "z"), [(0.05, [8.55, 9.45]), (1 / 3, [6, 12]), (2, [-9, 27])])
def test_the_limit_is_optimal_for_any_step_size(s: float, z: list[float]) -> None:
    ran = run("fedsplit", TWO, {"s": s}, rounds=150, training=exact(s, 6))
    assert ran.server("model")[-1] == near(9, 1e-6)
    assert ran.kept("z")[-1] == near(z, 1e-6)


@pytest.mark.parametrize(
    ("s", "end"), [(0.05, 8.669725), (1 / 3, 7.5), (2, 5.869565)], ids=["0.05", "1/3", "2"]
)
def test_fedprox_ends_elsewhere_for_every_step_size(s: float, end: float) -> None:
    """sum q b / sum q with q = s a / (1 + s a) for curvatures a and minima b."""
    ran = run("fedprox", TWO, {"mu": 1 / s}, rounds=120, training=exact(s, 6))
    assert ran.server("model")[-1] == near(end, 1e-6)


@pytest.mark.parametrize(("steps", "end"), [(1, 9), (2, 8.773585), (5, 8.076190), (20, 6.091922)])
def test_fedavg_ends_elsewhere_except_with_one_step(steps: int, end: float) -> None:
    """sum q b / sum q with q = 1 - (1 - 0.05 a)^steps."""
    ran = run("fedavg", TWO, rounds=80, training={"epochs": steps, "lr": 0.05})
    assert ran.server("model")[-1] == near(end, 1e-6)


def test_inexact_steps_converge_as_in_theory() -> None:
    """(L - l) / (L + l + 2/s) of the distance is left by a step: here 1/2 for both clients."""
    first = [run("fedsplit", TWO, {"s": 1 / 3}, rounds=1, training=exact(1 / 3, e)) for e in (1, 2, 3, 40)]
    moved = [ran.kept("z")[0][1] / 2 for ran in first]
    assert [moved[-1] - x for x in moved[:-1]] == near([-7.5 / 2, 7.5 / 4, -7.5 / 8])


@pytest.mark.parametrize("curve", [(2, -1), (9, 10)])
def test_equal_clients_are_one_client_and_reach_its_optimum(curve: tuple[float, float]) -> None:
    ends = [
        run("fedsplit", quadratics((curve,) * n, (3,) * n), {"s": 0.2}, rounds=30, training=exact(0.2, 20))
        for n in (1, 3)
    ]
    assert ends[0].server("model") == near(ends[1].server("model"))
    assert ends[0].server("model")[-1] == near(curve[1], 1e-6)


@pytest.mark.parametrize(("weighting", "end"), [("uniform", 9), ("samples", 270 / 28)])
def test_weighting_chooses_the_objective(weighting: str, end: float, cohort: str) -> None:
    federation = quadratics(((1, 0), (9, 10)), (10, 30), start=0)
    hyper = {"s": 0.2, "weighting": weighting}
    ran = run("fedsplit", federation, hyper, rounds=60, training=exact(0.2, 8, 0.5, 13.5), cohort=cohort)
    assert ran.server("model")[-1] == near(end, 1e-6)


def test_a_pull_towards_the_first_model_makes_flat_losses_convex() -> None:
    """Clients that are flat, or have their minimum at 10: x^2 + 9 (x - 10)^2 / 2 is least at 90 / 11."""
    federation = quadratics(((0, 0), (9, 10)), (1, 1), start=0)
    hyper = {"s": 1 / 3, "reg": 1.0}
    ran = run("fedsplit", federation, hyper, rounds=60, training=exact(1 / 3, 10, 1, 10))
    assert ran.server("model")[-1] == near(90 / 11, 1e-6)


def test_douglas_rachford_takes_the_mean_of_old_and_reflected() -> None:
    """z <- (z + reflected z) / 2: the first of 0 and 15 is 7.5, the mean 3.75."""
    half = {"s": 1 / 3, "relax": 0.5}
    first = run("fedsplit", TWO, half, rounds=1, training=exact(1 / 3))
    assert (first.server("model"), first.kept("z")) == (near([3.75]), [near([0, 7.5])])
    last = run("fedsplit", TWO, half, rounds=60, training=exact(1 / 3, 10))
    assert (last.server("model")[-1], last.kept("z")[-1]) == (near(9, 1e-6), near([6, 12], 1e-6))


def test_the_model_is_the_mean_of_all_z_for_any_cohort(federation: Federation, cohort: str) -> None:
    ran = run("fedsplit", federation, rounds=4, participation=0.4, cohort=cohort)
    for server, clients in zip(ran.servers, ran.clients):
        torch.testing.assert_close(torch.stack(clients["z"]).mean(0), server["model"], rtol=0, atol=1e-6)


def test_partial_participation_ends_at_the_optimum() -> None:
    method = with_cohorts(build_method("fedsplit", {"s": 1 / 3}), [[0], [1], [0, 1], [1]] * 20)
    ran = run(method, TWO, rounds=80, training=exact(1 / 3, 10))
    assert (ran.server("model")[-1], ran.kept("z")[-1]) == (near(9, 1e-6), near([6, 12], 1e-6))


@pytest.mark.parametrize(("server", "participation"), [("all", 1.0), ("active", 0.5)])
def test_its_first_round_at_half_length_is_uniform_fedprox(
    federation: Federation, cohort: str, server: str, participation: float
) -> None:
    first: dict[str, Any] = {"rounds": 1, "cohort": cohort, "participation": participation}
    hyper = {"s": 4, "relax": 0.5, "weighting": "uniform", "server": server}
    ran = run("fedsplit", federation, hyper, **first)
    prox = run("fedprox", federation, {"mu": 0.25, "weighting": "uniform"}, **first)
    torch.testing.assert_close(ran.servers[0]["model"], prox.servers[0]["model"], rtol=0, atol=1e-6)


# The mean over the cohort: FedSplit Act


@pytest.mark.parametrize("server", ["all", "active"])
def test_the_server_averages_everyone_or_the_cohort(server: str, cohort: str) -> None:
    """Curvatures 1 and 3, minima 0 and 4; x = 3 with z = (0, 6) is optimal, and a cohort of one moves off."""
    two = quadratics(((1, 0), (3, 4)), (10, 30), start=0)
    hyper = {"s": 1, "weighting": "uniform", "server": server}
    everyone = run("fedsplit", two, hyper, training=exact(1, 40, 1, 3), cohort=cohort)
    assert everyone.server("model") == near([3, 3, 3])
    assert everyone.kept("z")[-1] == near([0, 6])
    method = with_cohorts(build_method("fedsplit", hyper), [[0], [1], [0]])
    ran = run(method, two, training=exact(1, 40, 1, 3), cohort=cohort)
    assert ran.server("model") == near([0, 3, 3] if server == "all" else [0, 6, 0])
    assert ran.kept("z")[-1] == near([0, 6])


def test_both_means_are_the_same_with_full_participation(padded: Dataset) -> None:
    """Running statistics too."""
    normed = images(padded, (5, 12, 9), "lenet5_bn")
    both = [run("fedsplit", normed, {"server": server}, rounds=2) for server in ("all", "active")]
    torch.testing.assert_close(*(ran.servers[-1]["model"] for ran in both), rtol=0, atol=1e-5)


# Random least squares in four dimensions: the rate of Theorem 1


class LeastSquares(nn.Module):
    """F(w) = 1 / 2 ||A (w - b)||^2 of a sample (A, b), from 0."""

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(dimensions, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        d = len(self.w)
        residual = x[:, : d * d].reshape(-1, d, d) @ (self.w - x[:, d * d :])[:, :, None]
        return residual.square().sum((1, 2)) / 2

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return outputs

    def hits(self, outputs: Tensor, y: Tensor) -> Tensor:
        return outputs < 1


def test_every_round_converges_as_in_theory() -> None:
    """||x_t - x*|| <= (1 - 2 / (sqrt(kappa) + 1))^t ||z_0 - z*|| / sqrt(m), and z -> x* - s grad F(x*)."""
    m, d, low, high = 5, 4, 1.0, 18.0
    rng = np.random.default_rng(0)
    bases = [np.linalg.qr(rng.normal(size=(d, d)))[0] for _ in range(m)]
    spectra = rng.uniform(low, high, (m, d))
    spectra[0, :2] = low, high
    minima = rng.normal(size=(m, d))
    roots = [np.sqrt(spectrum)[:, None] * basis for spectrum, basis in zip(spectra, bases)]
    hessians = [a.T @ a for a in roots]
    optimum = np.linalg.solve(sum(hessians), sum(h @ b for h, b in zip(hessians, minima)))
    s = 1 / math.sqrt(low * high)
    limit = np.stack([optimum - s * h @ (optimum - b) for h, b in zip(hessians, minima)])
    samples = [[*a.ravel(), *b] for a, b in zip(roots, minima)]
    federation = by_hand(functools.partial(LeastSquares, d), samples, [1] * m)
    ran = run("fedsplit", federation, {"s": s}, rounds=40, training=exact(s, 30, low, high))
    rate = 1 - 2 / (math.sqrt(high / low) + 1)
    for t, x in enumerate(ran.server("model"), 1):
        assert np.linalg.norm(x - optimum) <= rate**t * np.linalg.norm(limit) / math.sqrt(m) + 1e-9
    assert np.array(ran.kept("z")[-1]) == near(limit, 1e-6)
