"""Every method on federations whose rounds can be computed by hand.

Test-bed T1: F_k(w) = a_k / 2 (w - b_k)^2 with (a, b) = (1, 1), (2, -1) and 10 and 30 samples, from w = 0.5,
two gradient steps of 0.1 a round, everyone takes part. Two plain steps of a client from w end at
``b + (1 - 0.1 a)**2 (w - b)``: 0.595 and -0.04 in the first round, so FedAvg's first model is
0.25 * 0.595 - 0.75 * 0.04 = 0.11875. Test-bed T2: see `support.products`.
The numbers have up to ten digits, hence the tolerance.
"""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from support import Ran, follow, near, one_client, prepare_run, products, quadratics, run, with_cohorts
from torch import nn

from fedflow.methods import build_method
from fedflow.methods.averaging.fednova import work
from fedflow.methods.averaging.fedprox_as_published import distances
from fedflow.models.flat import FlatModel

# FedAvg


@pytest.mark.parametrize(
    ("weighting", "models"),
    [("samples", [0.11875, -0.141453125, -0.3190417578125]), ("uniform", [0.2775, 0.1161875, -0.0007640625])],
)
def test_fedavg(weighting: str, models: list[float], cohort: str) -> None:
    assert run("fedavg", quadratics(), {"weighting": weighting}, cohort=cohort).server("model") == near(
        models
    )


def test_fedavg_with_one_of_two_clients_is_that_client(cohort: str) -> None:
    method = with_cohorts(build_method("fedavg"), [[1]])
    assert run(method, quadratics(), rounds=1, cohort=cohort).server("model") == near([-0.04])


def test_fedavg_with_one_step_is_a_step_on_the_weighted_loss(cohort: str) -> None:
    """0.5 - 0.1 * (0.25 * -0.5 + 0.75 * 3)"""
    ran = run("fedavg", quadratics(), rounds=1, training={"epochs": 1}, cohort=cohort)
    assert ran.server("model") == near([0.2875])


def test_fedavg_ends_off_the_optimum_when_clients_drift() -> None:
    assert run("fedavg", quadratics(), rounds=70).server("model")[-1] == near(-0.7007874015748)


def test_server_learning_rate_scales_the_mean_update(cohort: str) -> None:
    ran = run("fedavg", quadratics(), {"server_lr": 0.1}, rounds=1, cohort=cohort)
    assert ran.server("model") == near([0.5 - 0.1 * (0.5 - 0.11875)])


def test_server_learning_rate_on_two_given_clients(cohort: str) -> None:
    """w = 2, local models 1.0 and 1.6 of 30 and 10 samples: 1.15, or 1.915 with server_lr 0.1."""
    clients = quadratics(((10, 1), (10, 1.6)), (30, 10), start=2)
    one_step = {"rounds": 1, "training": {"epochs": 1}, "cohort": cohort}
    assert run("fedavg", clients, **one_step).server("model") == near([1.15])
    assert run("fedavg", clients, {"server_lr": 0.1}, **one_step).server("model") == near([1.915])


# FedProx


def test_fedprox(cohort: str) -> None:
    ran = run("fedprox", quadratics(), {"mu": 0.5}, cohort=cohort)
    assert ran.server("model") == near([0.129375, -0.1268195313, -0.3039140010])


def test_fedprox_with_a_strong_pull(cohort: str) -> None:
    ran = run("fedprox", quadratics(), {"mu": 10}, rounds=1, keep_trained=True, cohort=cohort)
    assert ran.kept("trained") == near([[0.545, 0.26]])
    assert ran.server("model") == near([0.33125])


def test_two_proximal_steps_of_one_client(cohort: str) -> None:
    """F = (w - 3)^2 / 2 from 1, mu 1 (SuPerFed, 3.2)."""
    ran = run("fedprox", quadratics(((1, 3),), (4,), 1), {"mu": 1}, rounds=1, cohort=cohort)
    assert ran.server("model") == near([1.36])


def test_fedprox_trained_to_the_end_reaches_the_proximal_point(cohort: str) -> None:
    """(a b + mu w_0) / (a + mu) = 0.5 for a = b = mu = 1 and w_0 = 0."""
    client = quadratics(((1, 1),), (4,), start=0)
    ran = run("fedprox", client, {"mu": 1}, rounds=1, training={"epochs": 150}, cohort=cohort)
    assert ran.server("model") == near([0.5])


def test_fedprox_with_an_endless_pull_stays_where_it_is(cohort: str) -> None:
    """Its second step undoes the first when lr * mu = 1, up to the second gradient step of 1e-7."""
    ran = run("fedprox", quadratics(), {"mu": 1e7}, rounds=1, training={"lr": 1e-7}, cohort=cohort)
    assert ran.server("model") == pytest.approx([0.5], abs=1e-6)


# FedNova: batches of 10 make one step of client 1 and three of client 2.

UNEVEN = {"epochs": 1, "batch_size": 10}


def test_fednova(cohort: str) -> None:
    nova = run("fednova", quadratics(), training=UNEVEN, cohort=cohort).server("model")
    assert nova == near([0.07375, -0.195853125, -0.3663771016])
    plain = run("fedavg", quadratics(), training=UNEVEN, cohort=cohort).server("model")
    assert plain == near([-0.0365, -0.3632285, -0.5622061565])


def test_fednova_ends_nearer_the_optimum_than_fedavg() -> None:
    """Fixed points; the weighted optimum is -0.7142857143."""
    ends = [
        run(method, quadratics(), training=UNEVEN, rounds=70).server("model")[-1]
        for method in ("fednova", "fedavg")
    ]
    assert ends == near([-0.6598639456, -0.8721227621])


def test_fednova_with_momentum(cohort: str) -> None:
    training = UNEVEN | {"momentum": 0.9}
    ran = run("fednova", quadratics(), training=training, rounds=1, keep_trained=True, cohort=cohort)
    assert ran.kept("trained") == near([[0.55, -0.907]])
    assert ran.server("model") == near([-0.2827441511])


@pytest.mark.parametrize(
    ("momentum", "tau", "a"),
    [(0.9, 1, 1), (0.9, 2, 2.9), (0.9, 3, 5.61), (0.9, 5, 13.1441), (0.9, 10, 41.381059609), (0.5, 2, 2.5)]
    + [(0.0, tau, tau) for tau in (1, 2, 5, 10)],
)
def test_work_of_a_client_is_the_weight_of_its_gradients(momentum: float, tau: int, a: float) -> None:
    """With momentum, gradient s of tau counts 1 + rho + ... + rho^(tau - s) times."""
    assert float(work(torch.tensor(float(tau), dtype=torch.float64), momentum)) == near(a)
    assert sum(momentum**i for s in range(tau) for i in range(s + 1)) == near(a)


@pytest.mark.parametrize(
    ("method", "momentum", "model"),
    [
        ("fednova", 0.9, 0.688512931),
        ("fednova", 0.0, 0.69375),
        ("fedavg", 0.9, 0.675),
        ("fedavg", 0.0, 0.675),
    ],
)
def test_fednova_on_three_given_numbers(method: str, momentum: float, model: float, cohort: str) -> None:
    """From 1, client 1 (30 samples) takes 2 steps to 0.6, client 2 (10 samples) one step to 0.9.

    Two steps of 0.1 on (w - b)^2 / 2 move by 0.19 (1 - b), with momentum 0.9 by 0.28 (1 - b).
    """
    b = 1 - 0.4 / (0.28 if momentum else 0.19)
    ran = run(
        method,
        quadratics(((1, b), (1, 0)), (30, 10), start=1),
        training={"epochs": 1, "batch_size": 15, "momentum": momentum},
        rounds=1,
        keep_trained=True,
        cohort=cohort,
    )
    assert ran.kept("trained") == near([[0.6, 0.9]])
    assert ran.server("model") == near([model])


# SCAFFOLD

SCAFFOLD = {  # variate -> (x, c, c_1, c_2) after each round
    "I": [
        (0.2775, 1.25, -0.5, 3.0),
        (0.1074375, 0.91625, -0.7225, 2.555),
        (-0.0153015625, 0.66115625, -0.8925625, 2.214875),
    ],
    "II": [
        (0.2775, 1.1125, -0.475, 2.7),
        (0.10825, 0.84625, -0.76575, 2.45825),
        (-0.01457875, 0.61414375, -0.9277625, 2.15605),
    ],
}


def test_scaffold_with_given_variates(cohort: str) -> None:
    """F = (w - 3)^2 / 2 from 1, c_i = 0.5, c = -0.2, two steps (SuPerFed, 3.3)."""
    simulation = prepare_run(
        "scaffold", quadratics(((1, 3),), (4,), 1), {"variate": "II"}, rounds=1, cohort=cohort
    )
    state = simulation.state
    state.server = replace(state.server, c=torch.full((1,), -0.2, dtype=torch.float64))
    state.store.first["c"] = torch.full((1,), 0.5, dtype=torch.float64)
    ran = follow(simulation)
    assert (ran.server("model"), ran.kept("c")) == (near([1.513]), near([[-1.865]]))


@pytest.mark.parametrize("variate", SCAFFOLD)
def test_scaffold(variate: str, cohort: str) -> None:
    ran = run("scaffold", quadratics(), {"variate": variate}, cohort=cohort)
    rounds = [(x, c, *own) for x, c, own in zip(ran.server("model"), ran.server("c"), ran.kept("c"))]
    assert rounds == [near(expected) for expected in SCAFFOLD[variate]]


@pytest.mark.parametrize("variate", SCAFFOLD)
def test_scaffold_ends_at_the_unweighted_optimum(variate: str, cohort: str) -> None:
    ran = run("scaffold", quadratics(), {"variate": variate}, rounds=90, cohort=cohort)
    assert ran.server("model")[-1] == near(-1 / 3)


def test_scaffold_with_weights_ends_at_the_weighted_optimum(cohort: str) -> None:
    ran = run("scaffold", quadratics(), {"weighting": "samples"}, rounds=120, cohort=cohort)
    assert ran.server("model")[0] == near(0.11875)  # FedAvg's
    assert ran.server("model")[-1] == near(-5 / 7)


PARTIAL = [[0], [1], [0, 1]]


def test_weighted_server_control_variate_is_the_weighted_mean(cohort: str) -> None:
    method = with_cohorts(build_method("scaffold", {"weighting": "samples"}), PARTIAL)
    ran = run(method, quadratics(), cohort=cohort)
    assert ran.server("c") == near([0.25 * own[0] + 0.75 * own[1] for own in ran.kept("c")])


def test_scaffold_with_partial_participation(cohort: str) -> None:
    method = with_cohorts(build_method("scaffold"), PARTIAL)
    ran = run(method, quadratics(), cohort=cohort)
    assert ran.server("model") == near([0.595, 0.06355, -0.047350625])
    assert ran.server("c") == near([-0.2375, 1.209875, 0.554503125])
    assert ran.kept("c")[-1] == near([-0.97387125, 2.0828775])


@pytest.mark.parametrize("variate", SCAFFOLD)
def test_server_control_variate_is_the_mean_of_the_clients(variate: str, cohort: str) -> None:
    method = with_cohorts(build_method("scaffold", {"variate": variate}), PARTIAL)
    ran = run(method, quadratics(), cohort=cohort)
    assert ran.server("c") == near([sum(own) / 2 for own in ran.kept("c")])


def test_scaffold_cancels_the_drift_of_fedavg(cohort: str) -> None:
    """f_1 = (x - 1)^2 / 2, f_2 = (x + 1)^2 from 0, equal weights."""
    clients = quadratics(sizes=(10, 10), start=0)
    ran = run("scaffold", clients, rounds=90, cohort=cohort)
    assert ran.server("model")[:3] == near([-0.085, -0.1535, -0.2034975])
    assert ran.server("c")[0] == near(0.425)
    assert ran.server("model")[-1] == near(-1 / 3)
    assert run("fedavg", clients, rounds=90, cohort=cohort).server("model")[-1] == near(-0.3090909091)


# Local, Ditto, FedPer


def test_local(cohort: str) -> None:
    ran = run("local", quadratics(), rounds=2, cohort=cohort)
    assert ran.kept("model") == near([[0.595, -0.04], [0.67195, -0.3856]])


def test_local_trains_the_cohort() -> None:
    ran = run("local", quadratics(), rounds=1, participation=0.5)
    assert sum(w != 0.5 for w in ran.kept("model")[0]) == 1


@pytest.mark.parametrize(
    ("name", "hyper"), [("fedprox", {"mu": 1}), ("ditto", {"lam": 1, "personal_epochs": 2})]
)
def test_pulls_as_published_are_by_norms(name: str, hyper: dict, cohort: str) -> None:
    """F = (w - 3)^2 / 2 from 1: the norm has the gradient 0 at the start, then 1: 1.2 and 1.28."""
    one = quadratics(((1, 3),), (4,), 1)
    ran = run(f"{name}_as_published", one, hyper, rounds=1, keep_trained=True, cohort=cohort)
    assert ran.kept("trained") == near([[1.28]])


def test_norms_are_summed_over_weights() -> None:
    """Their gradient is a unit vector per tensor, and 0 where nothing has moved, in biases and in buffers."""
    model = FlatModel(lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), dtype=torch.float64)
    moved = torch.tensor([3, 4, 0, 0, 5, 5, 6, 8, 7, 7, *[9] * (model.size - 10)], dtype=torch.float64)
    slope, value = torch.func.grad_and_value(lambda w: distances(model, w, model.init(0)))(
        model.init(0) + moved
    )
    assert float(value) == pytest.approx(15)
    assert slope.tolist() == near([0.6, 0.8, 0, 0, 0, 0, 0.6, 0.8, 0, 0, *[0] * (model.size - 10)])


def test_ditto(cohort: str) -> None:
    ran = run("ditto", quadratics(), {"lam": 1}, rounds=2, cohort=cohort)
    assert ran.kept("personal") == near([[0.59, -0.01], [0.578975, -0.3247125]])
    assert ran.server("model") == near([0.11875, -0.141453125])


def test_a_personal_model_of_ditto_in_balance(cohort: str) -> None:
    """F = (w - 3)^2 / 2: v = 2 stays between w = 1 and the optimum, lambda 1 (SuPerFed, 3.9)."""
    simulation = prepare_run("ditto", quadratics(((1, 3),), (4,), 1), {"lam": 1}, rounds=1, cohort=cohort)
    simulation.state.store.first["personal"] = torch.full((1,), 2, dtype=torch.float64)
    ran = follow(simulation)
    assert (ran.kept("personal"), ran.server("model")) == (near([[2]]), near([1.38]))


def test_ditto_trained_to_the_end_reaches_the_personal_optimum(cohort: str) -> None:
    """(a b + lambda w) / (a + lambda) at w = 0.5"""
    ran = run("ditto", quadratics(), {"lam": 1, "personal_epochs": 150}, rounds=1, cohort=cohort)
    assert ran.kept("personal") == near([[0.75, -0.5]])
    assert ran.server("model") == near([0.11875])  # whose clients took two steps as before


def test_ditto_without_pull_is_local(cohort: str) -> None:
    ditto, local = (
        run(*method, rounds=2, cohort=cohort)
        for method in (("ditto", quadratics(), {"lam": 0}), ("local", quadratics()))
    )
    assert ditto.kept("personal") == near(local.kept("model"))


def test_ditto_with_an_endless_pull_serves_the_received_model(cohort: str) -> None:
    hyper = {"lam": 1e7, "personal_lr": 1e-7, "personal_epochs": 1}
    ran = run("ditto", quadratics(), hyper, rounds=2, cohort=cohort)
    assert ran.kept("personal")[-1] == pytest.approx([0.11875] * 2, abs=1e-6)


def test_fedper(cohort: str) -> None:
    ran = run("fedper", products(), rounds=2, cohort=cohort)
    assert ran.server("body") == near([1.131934375, 1.2673023259])
    assert ran.kept("head") == near([[0.594715625, 0.789884375], [0.6631038023, 1.022883514]])


def test_fedper_without_private_parameters_is_fedavg_of_both(cohort: str) -> None:
    ran = run("fedper", products(), {"private": []}, rounds=2, cohort=cohort)
    assert ran.server("body") == near([[1.131934375, 0.7410921875], [1.2632873128, 0.9336038533]])


# IFCA on F_k(theta) = (theta - c_k)^2 / 2

FOUR = ((1, 0), (1, 0.4), (1, 5), (1, 5.6))
GRADIENT = {"averaging": "gradient", "server_lr": 0.5}


def ifca(
    theta: list[float],
    hyper: dict[str, Any],
    curves: tuple = FOUR,
    cohorts: list[list[int]] | None = None,
    **more: Any,
) -> Ran:
    """IFCA from given initial models, with clients of ten samples each."""
    method = build_method("ifca", {"clusters": len(theta)} | hyper)
    if cohorts:
        method = with_cohorts(method, cohorts)
    simulation = prepare_run(method, quadratics(curves, (10,) * len(curves)), **{"rounds": 1} | more)
    models = torch.tensor(theta, dtype=torch.float64)[:, None]
    simulation.state.server = replace(simulation.state.server, models=models)
    return follow(simulation)


@pytest.mark.parametrize(
    ("hyper", "training", "cohorts", "models"),
    [
        (GRADIENT | {"denominator": "all"}, {}, None, [0.8, 4.325]),
        (GRADIENT | {"denominator": "cohort"}, {}, None, [0.8, 4.325]),
        (GRADIENT | {"denominator": "cluster"}, {}, None, [0.6, 4.65]),
        (GRADIENT | {"denominator": "all"}, {}, [[0, 2, 3]], [0.875, 4.325]),
        (GRADIENT | {"denominator": "cohort"}, {}, [[0, 2, 3]], [5 / 6, 4.43333333333]),
        ({}, {"lr": 0.5, "epochs": 1}, None, [0.6, 4.65]),
        ({}, {"lr": 0.5, "epochs": 2}, None, [0.4, 4.975]),
    ],
    ids=["I-all", "I-participants", "I-cluster", "I-all-partial", "I-participants-partial", "II-1", "II-2"],
)
def test_ifca(hyper: dict, training: dict, cohorts: Any, models: list[float], cohort: str) -> None:
    ran = ifca([1, 4], hyper, training=training, cohorts=cohorts, cohort=cohort)
    assert ran.server("models") == near([models])
    assert ran.outcome().scores.cluster.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("steps", "trained"), [(1, [0.5, 0.7, 4.5, 4.8]), (2, [0.25, 0.55, 4.75, 5.2])], ids=["1 step", "2 steps"]
)
def test_ifca_clients_train_the_model_that_fits_them_best(
    steps: int, trained: list[float], cohort: str
) -> None:
    ran = ifca([1, 4], {}, training={"lr": 0.5, "epochs": steps}, keep_trained=True, cohort=cohort)
    assert ran.kept("trained") == near([trained])


def test_ifca_clients_compare_their_losses() -> None:
    method, theta = build_method("ifca"), torch.tensor([[1.0], [4.0]], dtype=torch.float64)
    clients = [one_client(quadratics(FOUR, (10,) * 4), k, models=theta) for k in range(4)]
    losses = [[float(client.full_loss(model)) for model in theta] for client in clients]
    assert losses == near([[0.5, 8], [0.18, 6.48], [8, 0.5], [10.58, 1.28]])
    assert [int(method.choose(client)) for client in clients] == [0, 0, 1, 1]


def test_ifca_takes_the_first_of_equal_models() -> None:
    client = one_client(quadratics(), models=torch.full((3, 1), 2.0, dtype=torch.float64))
    assert int(build_method("ifca").choose(client)) == 0


def test_ifca_keeps_a_model_that_no_client_chose(cohort: str) -> None:
    assert ifca([1, 4, 1000], {}, cohort=cohort).server("models")[0][2] == 1000


TEN = ((1, 0), (1, 1), (1, 10), (1, 12))


def test_ifca_over_two_rounds(cohort: str) -> None:
    ran = ifca([2, 6], {}, TEN, rounds=2, cohort=cohort)
    assert ran.server("models") == near([[1.715, 6.95], [1.48415, 7.7195]])
    ran = ifca([2, 6], {"averaging": "gradient", "server_lr": 0.1}, TEN, cohort=cohort)
    assert ran.server("models") == near([[1.925, 6.25]])


def test_ifca_with_one_step_averages_gradients_or_models_alike(cohort: str) -> None:
    gradients = ifca([1, 4], GRADIENT | {"denominator": "cluster"}, rounds=3, cohort=cohort)
    models = ifca([1, 4], {}, rounds=3, training={"lr": 0.5, "epochs": 1}, cohort=cohort)
    assert gradients.server("models") == near(models.server("models"))


def test_ifca_with_permuted_models_gives_permuted_results(cohort: str) -> None:
    forth, back = (ifca(theta, {}, rounds=3, cohort=cohort) for theta in ([1, 4, 9], [9, 1, 4]))
    assert [[b, c, a] for a, b, c in back.server("models")] == forth.server("models")


def test_ifca_lowers_the_sum_of_best_losses() -> None:
    ran = ifca([1, 4], {"averaging": "gradient", "server_lr": 0.05}, TEN, rounds=40)
    best = [sum(min((theta - c) ** 2 for theta in models) for _, c in TEN) for models in ran.server("models")]
    assert all(later <= earlier for earlier, later in pairwise(best))


@pytest.mark.parametrize("averaging", ["model", "gradient"])
def test_ifca_with_one_model_is_uniform_fedavg(averaging: str, cohort: str) -> None:
    hyper = {"clusters": 1, "averaging": averaging}
    training = {"epochs": 1 if averaging == "gradient" else 2}  # gradients make it FedSGD
    ifca_run = run("ifca", quadratics(), hyper, training=training, cohort=cohort)
    fedavg_run = run("fedavg", quadratics(), {"weighting": "uniform"}, training=training, cohort=cohort)
    assert ifca_run.server("models") == near(fedavg_run.server("model"))
