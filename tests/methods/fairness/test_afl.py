"""AFL: the projection, worked numbers of both forms, the minimax point, and FedAvg with a fixed lambda."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lines import ONE_STEP, lines, outlier
from support import quadratics, run, with_cohorts

from fedflow.methods import build_method
from fedflow.methods.fairness._simplex import project
from fedflow.simulation.federation import Federation


@pytest.mark.parametrize(
    ("v", "nearest"),
    [
        ([0.5, 0.8, 0.1], [0.35, 0.65, 0]),
        ([1.5, -0.2, 0.3], [1, 0, 0]),
        ([0.2, 0.8], [0.2, 0.8]),
        ([-7], [1]),
    ],
)
def test_projection_onto_the_simplex(v: list[float], nearest: list[float]) -> None:
    assert project(np.array(v)).tolist() == pytest.approx(nearest, abs=1e-12)


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=20))
def test_the_projection_is_the_nearest_point(v: list[float]) -> None:
    """Sum 1, no negative entry, and one threshold subtracted from positive ones (optimality conditions)."""
    point = np.array(v)
    x = project(point)
    assert x.sum() == pytest.approx(1) and (x >= 0).all()
    threshold = (point - x)[x > 0]
    assert threshold == pytest.approx(threshold[0], abs=1e-9)
    assert (point[x == 0] <= threshold[0] + 1e-9).all()


T1 = {  # form -> (w, lambda_1, lambda_2) after each round
    "FedAvg": [
        (0.21003125, 0.39375, 0.60625),
        (-0.0286995612, 0.3361424844, 0.6638575156),
        (-0.2064219083, 0.3154268269, 0.6845731731),
    ],
    "gradient": [
        (0.375, 0.39375, 0.60625),
        (0.2328906250, 0.308984375, 0.691015625),
        (0.0862037690, 0.2476948302, 0.7523051698),
    ],
}
FORMS: dict[str, dict] = {
    "FedAvg": {"hyper": {}},
    "gradient": {"hyper": {"lambda_used": "old"}, "training": ONE_STEP},
}


@pytest.mark.parametrize("form", T1)
def test_afl(form: str, cohort: str) -> None:
    ran = run("afl", quadratics(), cohort=cohort, **FORMS[form])
    rounds = [(w, *lam) for w, lam in zip(ran.server("model"), ran.server("lam"))]
    assert rounds == [pytest.approx(expected, abs=1e-9) for expected in T1[form]]


@pytest.mark.parametrize(
    ("lambda_lr", "weights"), [(0.1, [0.266667, 0.316667, 0.416667]), (1, [0, 0, 1]), (0, [1 / 3] * 3)]
)
def test_three_given_losses(lambda_lr: float, weights: list[float], cohort: str) -> None:
    clients = lines((0.5, 1, 2), ((0.1, 0), (0, 0.2), (0.3, 0.1)))
    ran = run("afl", clients, {"lambda_lr": lambda_lr}, rounds=1, training=ONE_STEP, cohort=cohort)
    assert ran.server("lam") == [pytest.approx(weights, abs=1e-6)]
    moved = [0.1 * weights[0] + 0.3 * weights[2], 0.2 * weights[1] + 0.1 * weights[2]]
    assert ran.server("model") == [pytest.approx([1 - x for x in moved], abs=1e-6)]


@pytest.mark.parametrize(
    ("lambda_lr", "ten", "hundred", "share"), [(0.01, 6.3171, 5.0132, 0.5007), (0.1, 4.6009, 5.0037, 0.5005)]
)
def test_afl_ends_at_the_minimax_point(lambda_lr: float, ten: float, hundred: float, share: float) -> None:
    ran = run("afl", outlier(), {"lambda_lr": lambda_lr}, training=ONE_STEP, rounds=100)
    models = ran.server("model")
    assert (models[9], models[-1]) == (pytest.approx(ten, abs=1e-4), pytest.approx(hundred, abs=1e-4))
    assert ran.server("lam")[-1][4] == pytest.approx(share, abs=1e-4)


def test_the_average_of_all_rounds_can_be_served() -> None:
    settings: dict[str, Any] = {"rounds": 3, "training": ONE_STEP}
    ran = run("afl", quadratics(), {"lambda_used": "old", "served": "average"}, **settings)
    models = ran.server("model")
    assert ran.server("average") == pytest.approx([np.mean(models[: t + 1]) for t in range(3)])
    assert ran.outcome().models[0].tolist() == pytest.approx([np.mean(models)])
    last = run("afl", quadratics(), {"lambda_used": "old"}, **settings)
    assert last.outcome().models[0].tolist() == [models[-1]]


# Partial participation


def test_the_cohort_keeps_its_total_weight(cohort: str) -> None:
    """lambda of four clients; the second and third take part, with losses 1 and 2.

    Their (1/4, 1/4) are (1/2, 1/2) of the cohort; plus 0.1 * (1, 2) and projected (0.45, 0.55).
    """
    clients = lines((9, 1, 2, 9), ((0.1, 0), (0.3, 0), (0, 0.2), (0, 0)))
    method = with_cohorts(build_method("afl"), [[1, 2]])
    ran = run(method, clients, rounds=1, training=ONE_STEP, cohort=cohort)
    assert ran.server("lam") == [pytest.approx([0.25, 0.225, 0.275, 0.25])]
    assert ran.server("model") == [pytest.approx([1 - 0.45 * 0.3, 1 - 0.55 * 0.2])]


def test_a_cohort_without_weight_is_averaged_uniformly() -> None:
    """All weight goes to the last of three clients; then the others are the cohort."""
    hyper = {"lambda_lr": 10, "lambda_used": "old"}
    method = with_cohorts(build_method("afl", hyper), [[0, 1, 2], [0, 1]])
    clients = lines((0, 0, 5), ((0.1,), (0.2,), (0,)))
    ran = run(method, clients, rounds=2, training=ONE_STEP)
    assert ran.server("lam") == [[0, 0, 1]] * 2
    assert np.diff(ran.server("model")) == pytest.approx([-0.15])


@pytest.mark.parametrize("lambda_used", ["new", "old"])
def test_afl_with_a_fixed_lambda_is_fedavg(federation: Federation, lambda_used: str, cohort: str) -> None:
    """Equal up to the rounding of n_k / n."""
    settings: dict[str, Any] = {"participation": 0.5, "training": {"batch_size": 8}, "cohort": cohort}
    hyper = {"lambda_lr": 0, "prior": "samples", "lambda_used": lambda_used}
    ran, plain = run("afl", federation, hyper, **settings), run("fedavg", federation, **settings)
    torch.testing.assert_close(ran.servers[-1]["model"], plain.servers[-1]["model"], rtol=0, atol=1e-6)
    sizes = federation.partition.sizes
    assert ran.server("lam")[-1] == pytest.approx(sizes / sizes.sum())


def test_afl_with_a_fixed_lambda_and_one_full_batch_is_fedsgd(federation: Federation) -> None:
    hyper = {"lambda_lr": 0, "prior": "samples", "lambda_used": "old"}
    ran = run("afl", federation, hyper, training=ONE_STEP)
    plain = run("fedsgd", federation, training=ONE_STEP)
    torch.testing.assert_close(ran.servers[-1]["model"], plain.servers[-1]["model"], rtol=0, atol=1e-6)
