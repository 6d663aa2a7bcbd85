"""pFedMe on the test-bed T1, with inner steps and with exact ones, and its limits."""

import pytest
from support import near, quadratics, run

T1 = {"lam": 2, "inner_steps": 3, "personal_lr": 0.05}
EXACT = {"lam": 2, "inner_steps": 40, "personal_lr": 0.3}  # leaves 1/10 and 1/5 of the distance a step


def test_pfedme(cohort: str) -> None:
    """Two batches, three inner steps on each."""
    ran = run("pfedme", quadratics(), T1, rounds=2, keep_trained=True, cohort=cohort)
    assert ran.server("model") == near([0.3783204446, 0.2690840850])
    assert ran.kept("personal") == near([[0.6071172922, -0.0712528], [0.5115057058, -0.1465924976]])
    assert ran.kept("trained") == ran.kept("personal")


@pytest.mark.parametrize(("k", "w"), [(0, 0.5317134584), (1, 0.32718944)])
def test_the_local_models_that_are_averaged(k: int, w: float) -> None:
    curve = ((1, 1), (2, -1))[k]
    assert run("pfedme", quadratics((curve,), (4,)), T1, rounds=1).server("model") == near([w])


def test_beta_moves_the_server_beyond_the_mean(cohort: str) -> None:
    ran = run("pfedme", quadratics(), T1 | {"server_lr": 2}, rounds=2, cohort=cohort)
    assert ran.server("model") == near([0.2566408892, 0.0630545617])


def test_pfedme_with_exact_personal_models(cohort: str) -> None:
    """theta = (a b + lambda w) / (a + lambda)"""
    ran = run("pfedme", quadratics(), EXACT, rounds=2, cohort=cohort)
    assert ran.server("model") == near([0.3023611111, 0.1392541281])
    assert ran.kept("personal")[0] == near([0.6888888889, -0.325])


def test_the_gradient_of_the_envelope() -> None:
    """lambda (w - theta) at w = 1/2 is -1/3 and 3/2: w moves against it by eta."""
    for curve, gradient in (((1, 1), -1 / 3), ((2, -1), 1.5)):
        ran = run("pfedme", quadratics((curve,), (4,)), EXACT, rounds=1, training={"epochs": 1})
        assert ran.server("model") == near([0.5 - 0.1 * gradient])


def test_an_exact_step_of_one_client(cohort: str) -> None:
    """F = (w - 3)^2 / 2, lambda 15, eta 0.01 from 1: theta 1.125, w 1.01875 (SuPerFed, 3.8)."""
    hyper = {"inner_steps": 20, "personal_lr": 0.06}
    training = {"epochs": 1, "lr": 0.01}
    ran = run("pfedme", quadratics(((1, 3),), (4,), 1), hyper, training=training, rounds=1, cohort=cohort)
    assert (ran.kept("personal"), ran.server("model")) == (near([[1.125]]), near([1.01875]))


def test_personal_models_approach_the_global_one_as_lambda_grows() -> None:
    distances = [
        abs(ran.kept("personal")[-1][0] - ran.server("model")[-1])
        for lam in (1, 10, 100, 1000)
        for ran in [
            run(
                "pfedme",
                quadratics(((1, 1),), (4,)),
                {"lam": lam, "personal_lr": 1 / (1 + lam)},
                training={"lr": 0.1 / lam},
            )
        ]
    ]
    assert distances == sorted(distances, reverse=True) and distances[-1] < 1e-3


def test_with_one_inner_step_that_w_follows_it_is_fedavg(cohort: str) -> None:
    """eta lambda = 1 puts w on theta, where the pull vanishes: theta takes the steps of FedAvg."""
    hyper = {"lam": 10, "inner_steps": 1, "personal_lr": 0.05}
    ran = run("pfedme", quadratics(), hyper, cohort=cohort)  # eta = 0.1
    plain = run("fedavg", quadratics(), training={"lr": 0.05}, cohort=cohort)
    assert ran.server("model") == near(plain.server("model"))


def test_weight_decay_applies_to_inner_steps_only(cohort: str) -> None:
    """theta: 1/2 - 0.05 (-1/2 + 0.001 / 2), without a pull at first; then w by 0.2 of the way."""
    hyper = {"lam": 2, "inner_steps": 1, "personal_lr": 0.05}
    training = {"epochs": 1, "weight_decay": 0.001, "momentum": 0.9}
    ran = run("pfedme", quadratics(((1, 1),), (4,)), hyper, training=training, rounds=1, cohort=cohort)
    theta = 0.5 - 0.05 * (-0.5 + 0.0005)
    assert (ran.kept("personal"), ran.server("model")) == (near([[theta]]), near([0.5 + 0.2 * (theta - 0.5)]))
