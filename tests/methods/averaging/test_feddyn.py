"""FedDyn on quadratics F_k(w) = a_k / 2 (w - b_k)^2, whose client step has a closed form.

Exact: theta_k = (a_k b_k + g_k + alpha theta) / (a_k + alpha), reached by gradient steps of a length lr
that leaves |1 - lr (a_k + alpha)| of the distance, 1/4 or 1/3: 10 digits need about 20 steps.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support import Ran, near, prepare_run, quadratics, run, with_cohorts

from fedflow.local.client import Client, Update
from fedflow.methods import build_method
from fedflow.methods.averaging.feddyn import FedDyn, State
from fedflow.methods.method import Cohort, Diagnostics, Round
from fedflow.simulation.federation import Federation

EXACT = {"epochs": 20, "lr": 0.5}
T1 = {  # (theta, h, g_1, g_2) after each round, alpha 0.5
    "exact": [
        (-0.3666666667, 0.2166666667, -0.1666666667, 0.6),
        (-0.2666666667, 0.0833333333, -0.5666666667, 0.7333333333),
        (-0.26, 0.04, -0.8, 0.88),
    ],
    "two steps": [
        (0.0675, 0.108125, -0.04625, 0.2625),
        (-0.31248125, 0.1490578125, -0.128228125, 0.42634375),
        (-0.5575314531, 0.1357914570, -0.2377715391, 0.5093544531),
    ],
}
TRAINING: dict[str, dict] = {"exact": EXACT, "two steps": {}}


def states(ran: Ran) -> list[tuple[float, ...]]:
    return [(x, h, *g) for x, h, g in zip(ran.server("model"), ran.server("h"), ran.kept("g"))]


@pytest.mark.parametrize("solver", T1)
def test_feddyn(solver: str, cohort: str) -> None:
    ran = run("feddyn", quadratics(), {"alpha": 0.5}, training=TRAINING[solver], cohort=cohort)
    assert states(ran) == [near(expected) for expected in T1[solver]]


@pytest.mark.parametrize("solver", T1)
def test_feddyn_ends_at_the_unweighted_optimum(solver: str) -> None:
    """Also with inexact clients: w = -1/3, where the gradients are -4/3 and 4/3."""
    ran = run("feddyn", quadratics(), {"alpha": 0.5}, training=TRAINING[solver], rounds=150)
    assert states(ran)[-1] == pytest.approx((-1 / 3, 0, -4 / 3, 4 / 3), abs=1e-6)


PARTIAL = [[0], [1], [0, 1]]


def test_feddyn_with_partial_participation(cohort: str) -> None:
    method = with_cohorts(build_method("feddyn", {"alpha": 0.5}), PARTIAL)
    ran = run(method, quadratics(), training=EXACT, cohort=cohort)
    assert ran.server("model") == near([1.0, -1.2333333333, 0.0177777778])
    assert ran.server("h") == near([-0.0833333333, 0.3166666667, -0.1544444444])
    assert ran.kept("g")[-1] == near([-0.8555555556, 0.5466666667])


# Three clients with alpha = 2, optimum 2

THREE = quadratics(((1, 0), (2, 1), (4, 3)), (10, 10, 10), start=0)
FULL = [  # (theta_k), (g_k), h, mean of theta_k, theta
    ((0, 0.5, 2), (0, -1, -4), -1.666667, 0.833333, 1.666667),
    ((1.111111, 1.083333, 1.888889), (1.111111, 0.166667, -4.444444), -1.055556, 1.361111, 1.888889),
    ((1.629630, 1.486111, 1.888889), (1.629630, 0.972222, -4.444444), -0.614198, 1.668210, 1.975309),
    ((1.860082, 1.730710, 1.917695), (1.860082, 1.461420, -4.329218), -0.335905, 1.836163, 2.004115),
]
SOME = [
    ((0, 0.5, 0), (0, -1, 0), -0.333333, 0.250000, 0.416667),
    ((0, 0.458333, 2.138889), (0, -1.083333, -3.444444), -1.509259, 1.298611, 2.053241),
    ((1.368827, 0.458333, 2.110340), (1.368827, -1.083333, -3.558642), -1.091049, 1.739583, 2.285108),
    ((1.979681, 1.371721, 2.110340), (1.979681, 0.743441, -3.558642), -0.278507, 1.675701, 1.814954),
]
PAIRS = [[0, 1], [1, 2], [0, 2], [0, 1]]


def three(cohorts: list[list[int]], cohort: str = "loop", epochs: int = 25) -> Ran:
    method = with_cohorts(build_method("feddyn", {"alpha": 2}), cohorts)
    exact = {"training": {"epochs": epochs, "lr": 2 / 9}, "keep_trained": True}
    return run(method, THREE, rounds=len(cohorts), cohort=cohort, **exact)


@pytest.mark.parametrize(
    ("cohorts", "rounds"), [([[0, 1, 2]] * 4, FULL), (PAIRS, SOME)], ids=["full", "partial"]
)
def test_feddyn_of_three_clients(cohorts: list[list[int]], rounds: list, cohort: str) -> None:
    ran = three(cohorts, cohort)
    columns = [*map(ran.kept, ("trained", "g")), *map(ran.server, ("h", "mean", "model"))]
    for got, expected in zip(zip(*columns), rounds):
        assert [torch.tensor(x).tolist() for x in got] == [
            pytest.approx(x, abs=1e-6) for x in map(list_or_number, expected)
        ]


def list_or_number(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def test_feddyn_of_three_clients_ends_at_the_optimum() -> None:
    assert states(three([[0, 1, 2]] * 40))[-1] == pytest.approx((2, 0, 2, 2, -4), abs=1e-6)
    assert three(PAIRS[:3] * 20).server("model")[-1] == pytest.approx(2, abs=1e-5)


def test_invariants_of_feddyn() -> None:
    """h is the mean of all g_k, theta + h / alpha the mean of the cohort's models; others keep g_k."""
    for epochs in (25, 2):  # exact, and inexact
        ran = three(PAIRS, epochs=epochs)
        for t, (theta, h, *g) in enumerate(states(ran)):
            trained = ran.kept("trained")[t]
            assert h == near(sum(g) / 3)
            assert theta + h / 2 == near(sum(trained[k] for k in PAIRS[t]) / 2)
            if t:
                (absent,) = {0, 1, 2} - set(PAIRS[t])
                for name in ("g", "trained"):
                    assert torch.equal(ran.clients[t][name][absent], ran.clients[t - 1][name][absent])
            if epochs == 25:
                seen = {k for pair in PAIRS[: t + 1] for k in pair}
                gradients = [a * (w - b) for w, (a, b) in zip(trained, ((1, 0), (2, 1), (4, 3)))]
                assert [g[k] for k in seen] == near([gradients[k] for k in seen])


# Two clients with optimum 3, or 3.6 where the second has three times as many samples

TWO = ((1, 0), (3, 4))


def test_feddyn_with_two_steps_is_unbiased(cohort: str) -> None:
    ran = run("feddyn", quadratics(TWO, (10, 10), 0), {"alpha": 1}, rounds=100, cohort=cohort)
    assert states(ran)[:3] == [
        near((1.92, -0.96, 0, -1.92)),
        near((3.2256, -1.1328, 0.3456, -2.6112)),
        near((3.79392, -0.85056, 0.864, -2.56512)),
    ]
    assert ran.server("model")[-1] == pytest.approx(3, abs=1e-6)


@pytest.mark.parametrize(
    ("weighting", "models", "end"), [("samples", [3.272727, 3.818182], 3.6), ("uniform", None, 3)]
)
def test_weighting_chooses_the_objective(weighting: str, models: Any, end: float) -> None:
    hyper = {"alpha": 1, "weighting": weighting}
    clients = quadratics(TWO, (10, 30), 0)
    ran = run("feddyn", clients, hyper, rounds=60, training=EXACT | {"lr": 0.3})
    if models:
        assert ran.server("model")[:2] == pytest.approx(models, abs=1e-6)
        # The authors keep lambda_k = -g_k / alpha_k, with alpha_k = 2 and 2/3.
        lambdas = [[-g[0] / 2, -g[1] * 3 / 2] for g in ran.kept("g")[:2]]
        assert lambdas == [pytest.approx(x, abs=1e-6) for x in ([0, 3.272727], [-1.090909, 3.272727])]
        assert ran.server("h")[0] == pytest.approx(-1.636364, abs=1e-6)
    omega = (0.5, 1.5) if weighting == "samples" else (1, 1)
    for h, g in zip(ran.server("h"), ran.kept("g")):
        assert h == near(sum(o * own for o, own in zip(omega, g)) / 2)
    assert ran.server("model")[-1] == pytest.approx(end, abs=1e-6)


def test_a_single_client_reaches_its_optimum() -> None:
    assert run("feddyn", quadratics(((2, -1),), (4,)), rounds=150).server("model")[-1] == pytest.approx(
        -1, abs=1e-6
    )


# Clients that join or leave, and clients that fail


@pytest.mark.parametrize("kind", ["loop", "vmap"])
@pytest.mark.parametrize("failed", ["exclude", "replace"])
def test_failed_clients_are_left_out_or_replaced_by_the_previous_mean(failed: str, kind: str) -> None:
    """Clients 1 and 3 always fail; their g_k stay 0."""
    nan = float("nan")
    five = quadratics(((1, 0), (nan, 1), (4, 3), (2, nan), (1, 2)), (10,) * 5, start=1)
    cohorts = [[0, 1, 2], [1, 2, 3], [0, 4]]
    method = with_cohorts(build_method("feddyn", {"alpha": 2, "failed": failed}), cohorts)
    ran = run(method, five, training={"epochs": 25, "lr": 2 / 9}, cohort=kind)
    assert [sorted(r.failed) for r in ran.rounds] == [[1], [1, 3], []]
    a, b, g = np.array([1, 0, 4, 0, 1]), np.array([0, 0, 3, 0, 2]), np.zeros(5)
    theta, h, mean = 1.0, 0.0, 1.0
    for t, drawn in enumerate(cohorts):
        came = [k for k in drawn if k not in (1, 3)]
        w = (a * b + g + 2 * theta) / (a + 2)
        g[came] -= 2 * (w - theta)[came]
        h -= 2 / 5 * (w - theta)[came].sum()
        models = [*w[came], *[mean] * (len(drawn) - len(came) if failed == "replace" else 0)]
        mean = float(np.mean(models))
        theta = mean - h / 2
        assert (ran.server("mean")[t], ran.server("h")[t], ran.server("model")[t]) == near((mean, h, theta))
        assert ran.kept("g")[t] == near(g.tolist())
        assert h == near(g.mean())


# Reductions


@pytest.mark.parametrize("alpha", [0.1, 1e-7])
def test_the_first_step_of_clients_is_that_of_fedprox(
    federation: Federation, alpha: float, cohort: str
) -> None:
    """And that of uniform FedAvg as alpha vanishes; served is the mean, which theta overshoots."""
    first: dict[str, Any] = {"rounds": 1, "participation": 0.5, "cohort": cohort}
    ran = run("feddyn", federation, {"alpha": alpha}, **first)
    prox = run("fedprox", federation, {"mu": alpha, "weighting": "uniform"}, **first)
    torch.testing.assert_close(ran.servers[0]["mean"], prox.servers[0]["model"], rtol=0, atol=1e-6)
    if alpha < 1e-6:
        plain = run("fedavg", federation, {"weighting": "uniform"}, **first)
        torch.testing.assert_close(ran.servers[0]["mean"], plain.servers[0]["model"], rtol=0, atol=1e-5)


def test_without_its_states_feddyn_is_fedprox(federation: Federation, cohort: str) -> None:
    """With g_k and h forced to 0, in every round."""

    class Stateless(FedDyn):
        def local(self, client: Client) -> Update:
            sent = super().local(client)
            return replace(sent, keep={"g": torch.zeros_like(sent.keep["g"])})

        def aggregate(self, now: Round, server: State, cohort: Cohort) -> tuple[State, Diagnostics]:
            mean = cohort.mean("model")
            return State(mean, torch.zeros_like(mean), mean), {}

    more: dict[str, Any] = {"participation": 0.5, "cohort": cohort}
    ran = run(Stateless(alpha=0.1), federation, **more)
    prox = run("fedprox", federation, {"mu": 0.1, "weighting": "uniform"}, **more)
    torch.testing.assert_close(ran.servers[-1]["model"], prox.servers[-1]["model"], rtol=0, atol=1e-6)


def test_a_round_without_local_steps_moves_theta_by_h(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = prepare_run("feddyn", THREE, {"alpha": 2}, rounds=2)
    next(rounds := simulation.rounds())
    before = simulation.state.server
    monkeypatch.setattr(Client, "fit", lambda self, *, start, pull: start)
    list(rounds)
    after = simulation.state.server
    assert float(before.h) != 0 and torch.equal(after.h, before.h)
    assert float(after.model) == near(float(before.model - before.h / 2))


@pytest.mark.parametrize("served", ["broadcast", "mean"])
def test_the_chosen_model_is_served(federation: Federation, served: str) -> None:
    ran = run("feddyn", federation, {"served": served}, rounds=2, participation=0.5)
    models = {name: ran.servers[-1][{"broadcast": "model"}.get(name, name)] for name in ("broadcast", "mean")}
    assert not torch.equal(*models.values())
    assert torch.equal(ran.outcome().models[0], models[served])
