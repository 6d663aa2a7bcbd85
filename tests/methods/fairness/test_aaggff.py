"""AAggFF-S and AAggFF-D: tables and worked rounds of the thesis, the toy, regret, hosts, and bad input."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lines import ONE_STEP, lines, outlier, three
from support import Workers, prepare_run, quadratics, refused, run, same, with_cohorts

from fedflow.config import load_params
from fedflow.methods import METHODS, build_method
from fedflow.methods.fairness import aaggff_s_as_published
from fedflow.methods.fairness._aaggff import CDFS, respond
from fedflow.methods.fairness._decisions import exponentiated, hindsight
from fedflow.methods.fairness._simplex import minimize
from fedflow.methods.fairness._weighing import HOSTS, Weighing, divergence
from fedflow.methods.method import Cohort, Diagnostics, Round
from fedflow.project import code
from fedflow.simulation.federation import Federation
from fedflow.simulation.loop import Simulation
from fedflow.stages.experiment import Experiment

S, D = "aaggff_s", "aaggff_d"
ROOT = Path(__file__).parents[3]


def near(values: Any, digits: int = 6) -> Any:
    """Printed numbers, up to half a unit of their last digit."""
    return pytest.approx(values, rel=0, abs=0.5001 * 10**-digits)


@dataclass
class Losses:
    """A cohort that sends losses only."""

    ids: list[int]
    losses: Sequence[float]

    def scalars(self, name: str) -> np.ndarray:
        return np.array(self.losses, dtype=np.float64)


@dataclass
class Decided:
    """One round: the weights p(t+1), and the state and the numbers after it."""

    p: np.ndarray
    own: Any
    numbers: Mapping[str, float]


def play(name: str, hyper: Mapping[str, Any], rounds: Sequence[Any], clients: int) -> list[Decided]:
    """The decisions in rounds of losses: lists of all clients' losses, or by client."""
    method: Any = build_method(name, hyper)
    own, played = method.first(), []
    for t, losses in enumerate(rounds, 1):
        named = losses if isinstance(losses, Mapping) else dict(enumerate(losses))
        cohort: Any = Losses([*named], [*named.values()])
        p, own, numbers = method.decide(SimpleNamespace(t=t, clients=clients), own, cohort)
        played.append(Decided(p, own, numbers))
    return played


# Responses (section 2)

TABLE_3_3 = {
    "weibull": (0.051861, 0.995134, 0.191858),
    "frechet": (0.013124, 0.648344, 0.114559),
    "gumbel": (0.115544, 0.763041, 0.180258),
    "exponential": (0.206077, 0.900509, 0.369687),
    "logistic": (0.316646, 0.787127, 0.368546),
    "normal": (0.220878, 0.904511, 0.295129),
}
AT_THE_MEAN = {"weibull": 1 - np.exp(-1), "exponential": 1 - np.exp(-1), "frechet": np.exp(-1)}
AT_THE_MEAN |= {"gumbel": np.exp(-1), "normal": 0.5, "logistic": 0.5}


@pytest.mark.parametrize("cdf", CDFS)
def test_responses(cdf: str) -> None:
    """They grow with the loss, whatever its unit; equal losses have the response of the mean loss."""
    losses = np.array([0.01, 0.10, 0.02])
    u = respond(cdf, losses)
    assert u == near(TABLE_3_3[cdf])
    assert respond(cdf, 1000 * losses) == pytest.approx(u, abs=1e-12)
    assert respond(cdf, np.full(3, 7.0)) == pytest.approx([AT_THE_MEAN[cdf]] * 3)
    assert respond(cdf, np.zeros(2)) == pytest.approx([AT_THE_MEAN[cdf]] * 2)
    many = respond(cdf, np.array([0, 0.5, 1, 2, 3]))
    assert (np.diff(many) > 0).all() and many.min() >= 0 and many.max() <= 1


def test_weibull_spreads_most_and_logistic_least() -> None:
    """Claim 6: the distance of the highest to the lowest response in Table 3.3."""
    spread = {cdf: max(responses) - min(responses) for cdf, responses in TABLE_3_3.items()}
    assert (max(spread, key=spread.__getitem__), min(spread, key=spread.__getitem__)) == (
        "weibull",
        "logistic",
    )


# The quadratic program and the best fixed decision


@given(seed=st.integers(0, 10**6), clients=st.sampled_from([1, 2, 5, 30, 100]), power=st.floats(-3, 2))
def test_the_quadratic_program_is_solved(seed: int, clients: int, power: float) -> None:
    """Sum 1, not negative, equal slopes where positive and no smaller ones elsewhere."""
    rng = np.random.default_rng(seed)
    g = rng.random((rng.integers(1, 300), clients)) / clients
    h = 4 * np.eye(clients) + clients / 4 * g.T @ g
    b = -g.sum(0) + 10**power * rng.normal(size=clients)
    x = minimize(h, b)
    assert x.sum() == pytest.approx(1, abs=1e-12) and x.min() >= 0
    slope = (h @ x + b) / np.abs(b).max()
    assert slope[x > 0] == pytest.approx(np.full((x > 0).sum(), slope @ x), abs=1e-12)
    assert slope[x == 0].min(initial=np.inf) >= slope @ x - 1e-12


@given(seed=st.integers(0, 10**6), clients=st.integers(1, 12), rounds=st.integers(1, 30))
def test_the_best_fixed_decision(seed: int, clients: int, rounds: int) -> None:
    """log(1 + <p, r>) is concave, so the largest slope bounds what another decision could gain."""
    r = np.random.default_rng(seed).integers(0, 2, (rounds, clients)) / 1.0
    p = hindsight(r)
    assert p.sum() == pytest.approx(1) and p.min() >= 0
    slope = (r / (1 + r @ p)[:, None]).sum(0)
    assert slope.max() - slope @ p <= 1e-12 * rounds


def test_turns_are_shared_by_the_best_fixed_decision() -> None:
    """Clients that respond in turns, n_1 and n_2 times: n_1 / (1 + p) = n_2 / (2 - p), if p is below 1."""
    assert hindsight(np.eye(2)[[0, 1, 0, 0]]) == pytest.approx([1, 0], abs=1e-12)
    assert hindsight(np.eye(3)[[0, 1, 0, 1, 1]]) == pytest.approx([0.2, 0.8, 0], abs=1e-9)


# AAggFF-S (section 3)

ROUNDS_S = [  # losses, r, g, l_t, p(t+1)
    ((0.5, 1, 2), (0.094618, 0.147734, 0.254158), (-0.081182, -0.126755, -0.218067), -0.153153,
     (0.318156, 0.329529, 0.352315)),
    ((0.4, 0.9, 1.8), (0.089990, 0.149555, 0.256979), (-0.077017, -0.127995, -0.219931), -0.155679,
     (0.302059, 0.326129, 0.371812)),
    ((0.6, 0.6, 1.5), (0.123147, 0.123147, 0.249169), (-0.105254, -0.105254, -0.212964), -0.157007,
     (0.293144, 0.317178, 0.389678)),
]  # fmt: skip


def test_worked_rounds_of_aaggff_s() -> None:
    losses, r, g, lost, p = zip(*ROUNDS_S)
    played = play(S, {}, losses, 3)
    assert [one.p for one in played] == [near(each) for each in p]
    assert [one.numbers["decision_loss"] for one in played] == [near(each) for each in lost]
    assert played[-1].own.incurred.item() == near(-0.465839)
    assert played[-1].own.responses.T.tolist() == [near(each) for each in r]
    assert played[-1].own.outer.numpy() == near(np.transpose(g) @ np.array(g), 6)


def test_equal_losses_and_other_orders() -> None:
    losses, *_ = zip(*ROUNDS_S)
    assert all(one.p == pytest.approx([1 / 3] * 3) for one in play(S, {}, [[2, 2, 2]] * 3, 3))
    turned = play(S, {}, [each[::-1] for each in losses], 3)[-1].p
    assert turned[::-1] == pytest.approx(play(S, {}, losses, 3)[-1].p, abs=1e-12)


def test_a_missing_client_has_the_mean_response() -> None:
    """As if it had reported it; without it the regret is unknown, and stays so."""
    u = respond("normal", np.array([1.0, 3.0]))
    (one,) = play(S, {}, [{0: 1.0, 2: 3.0}], 3)
    g = np.array([u[0], u.mean(), u[1]]) / 3
    g = -g / (1 + g.mean())
    expected = minimize(4 * np.eye(3) + 0.75 * np.outer(g, g), g - 0.75 * g.mean() * g)
    assert one.p == pytest.approx(expected, abs=1e-12)
    for name in (S, D):
        known = ["regret" in each.numbers for each in play(name, {}, [[1, 2, 3], {0: 1, 2: 3}, [1, 2, 3]], 3)]
        assert known == [True, False, False]


AS_PUBLISHED = {  # p(2), p(3), p(4) for the losses above, by whether the Normal response is the published one
    True: ((0.337753, 0.334441, 0.327805), (0.344303, 0.335825, 0.319873), (0.347936, 0.339463, 0.312601)),
    False: ((0.327132, 0.331779, 0.341089), (0.318890, 0.330038, 0.351072), (0.314318, 0.325457, 0.360225)),
}


@pytest.mark.parametrize("response", AS_PUBLISHED)
def test_rounds_of_aaggff_s_as_published(response: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Worked numbers of the authors' program from p(1) = 1, with erfc in place of erf, or without."""
    if not response:
        monkeypatch.setattr(aaggff_s_as_published, "as_published", lambda _, u: u)
    played = play(f"{S}_as_published", {}, [losses for losses, *_ in ROUNDS_S], 3)
    assert [one.p for one in played] == [near(each, 5.9) for each in AS_PUBLISHED[response]]


def test_the_published_normal_response_falls() -> None:
    """Table 3.3's losses: 1.279, 0.595, 1.205."""
    u = respond("normal", np.array([0.01, 0.10, 0.02]))
    assert aaggff_s_as_published.as_published("normal", u) == near((1.279122, 0.595489, 1.204871))
    assert aaggff_s_as_published.as_published("weibull", u) is u


# AAggFF-D (section 4)


def test_a_round_of_aaggff_d_as_published() -> None:
    """Without "rbar +" in the response, from p(1) = C."""
    r, mean = np.array([0.07392811, 0.46134763]), 0.26763787  # of clients 0 and 2
    r = (r - mean) / 0.5
    (one,) = play(f"{D}_as_published", {"cdf": "weibull"}, [{0: 0.5, 2: 2.0}], 4)
    assert one.p == near((0.222797, 0.256814, 0.263574, 0.256814))
    assert one.numbers["decision_loss"] == pytest.approx(-np.log1p(0.5 * (r.sum() + 2 * mean)))


def test_worked_rounds_of_aaggff_d() -> None:
    """Of four clients two report: r (doubly robust), g, and p(t+1)."""
    method: Any = build_method(D, {"cdf": "weibull"})
    own, p, total = method.first(), np.full(4, 0.25), np.zeros(4)
    for t, (losses, doubly, g, new, on_cohort) in enumerate(
        [
            (
                {0: 0.5, 2: 2.0},
                (-0.11978166, 0.26763787, 0.65505739, 0.26763787),
                (0.09449202, -0.21113117, -0.51675436, -0.21113117),
                (0.22522346, 0.24935368, 0.27606918, 0.24935368),
                (0.4492854, 0.5507146),
            ),
            (
                {1: 1.0, 2: 1.6},
                (0.30669235, 0.13993076, 0.47345394, 0.30669235),
                (-0.23390869, -0.10628753, -0.36152984, -0.23390869),
                (0.22942334, 0.24080071, 0.28047239, 0.24930357),
                (0.46194732, 0.53805268),
            ),
        ],
        1,
    ):
        now, ids = SimpleNamespace(t=t, clients=4), [*losses]
        u = respond("weibull", np.array([*losses.values()]))
        r, p, fields = method.step(now, own, p, ids, u)
        assert r == near(doubly, 8)
        assert fields["total"] - total == near(g, 7.5)
        assert p == near(new, 8)
        assert p[ids] / p[ids].sum() == near(on_cohort, 7)
        own, total = own.next(p=p, **fields), fields["total"]


@pytest.mark.parametrize("cdf", CDFS)
def test_only_deviations_from_the_mean_response_matter(cdf: str) -> None:
    """p is in proportion to exp(sqrt(log K) / ((2 + C) sqrt(t + 1)) sum (u_i - ubar) / (1 + C ubar))."""
    rng, clients = np.random.default_rng(0), 9
    cohorts = [sorted(rng.choice(clients, 3, replace=False).tolist()) for _ in range(12)]
    rounds = [dict(zip(ids, rng.exponential(size=3).tolist())) for ids in cohorts]
    total, share = np.zeros(clients), 3 / clients
    for t, (losses, one) in enumerate(zip(rounds, play(D, {"cdf": cdf}, rounds, clients)), 1):
        u = respond(cdf, np.array([*losses.values()]))
        total[[*losses]] += (u - u.mean()) / (1 + share * u.mean())
        p = np.exp(np.sqrt(np.log(clients) / (t + 1)) / (2 + share) * total)
        assert one.p == pytest.approx(p / p.sum(), abs=1e-14)


def test_the_doubly_robust_response_shrinks_towards_the_mean() -> None:
    """Enumerated over all cohorts of 2 of 4 clients; with everyone it is the response itself."""
    method: Any = build_method(D)
    now, r, p = SimpleNamespace(t=1, clients=4), np.array([0.1, 0.2, 0.3, 0.4]), np.full(4, 0.25)

    def expected(m: int) -> np.ndarray:
        cohorts = [[*ids] for ids in combinations(range(4), m)]
        return np.mean([method.step(now, method.first(), p, ids, r[ids] * 4 / m)[0] for ids in cohorts], 0)

    assert expected(2) == near([0.15, 0.21666667, 0.28333333, 0.35], 8)
    for m in (1, 2, 3, 4):
        assert expected(m) == pytest.approx(r - (r - r.mean()) * (4 - m) / (m * 3), abs=1e-12)


def test_one_report_says_nothing_and_one_client_has_all_weight() -> None:
    assert play(D, {}, [{2: 9.0}, {0: 1.0}], 3)[-1].p == pytest.approx([1 / 3] * 3)
    for name in (S, D):
        (one,) = play(name, {}, [[2.0]], 1)
        assert one.p.tolist() == [1] and one.numbers["regret"] == pytest.approx(0, abs=1e-12)


# Regret (section 5)


@pytest.fixture
def given_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses are the responses u themselves."""
    monkeypatch.setattr("fedflow.methods.fairness._aaggff.respond", lambda cdf, losses: losses)


def random_responses(clients: int, rounds: int, seed: int) -> np.ndarray:
    u = np.random.default_rng(seed).random((rounds, clients))
    u[:, 0] = np.minimum(u[:, 0] + 0.5, 1)
    return u


@pytest.mark.parametrize(
    ("name", "clients", "rounds", "seed", "regret", "bound"),
    [
        (S, 5, 200, 1, 1.692, 4.506),
        (S, 7, 100, 2, 1.821, 3.276),
        (D, 5, 200, 1, 1.7009, 7.176),
        (D, 7, 100, 2, 1.3203, 3.986),
    ],
)
def test_regret(
    given_responses: None, name: str, clients: int, rounds: int, seed: int, regret: float, bound: float
) -> None:
    hyper = {"largest": "1/K", "lipschitz": 1 / clients} if name == D else {}
    played = play(name, hyper, random_responses(clients, rounds, seed), clients)
    numbers = played[-1].numbers
    assert numbers["regret"] == near(regret, 4 if name == D else 3)
    assert numbers["regret_bound"] == pytest.approx(bound, abs=1e-3)
    assert all(one.numbers["regret"] <= one.numbers["regret_bound"] for one in played)
    late = [played[t].numbers["regret"] for t in (rounds // 2 - 1, rounds - 1)]
    assert late[1] < 2 * late[0]  # less than linear


@pytest.mark.parametrize(
    ("clients", "rounds", "published", "halved"),
    [
        (6, 1500, (8.988, 7.622), (-4.789, 12.955)),
        (7, 1600, (10.448, 7.454), (-3.475, 13.379)),
        (11, 1000, (7.059, 5.799), (0.515, 9.805)),
    ],
)
def test_the_published_beta_breaks_the_bound_and_one_half_keeps_it(
    given_responses: None, clients: int, rounds: int, published: tuple, halved: tuple
) -> None:
    """One client responds in the first 40 % of the rounds, then another."""
    u = np.eye(clients)[(np.arange(rounds) >= 0.4 * rounds).astype(int)]
    for hyper, expected in (({}, published), ({"beta": 0.5}, halved)):
        numbers = play(S, hyper, u, clients)[-1].numbers
        assert (numbers["regret"], numbers["regret_bound"]) == near(expected, 3)


# The toy (section 6): five equal clients, F_i = (theta - c_i)^2 / 2, c = (0, 0, 0, 0, 10), from 1

TOY = [  # theta after 10 and 100 rounds, p_5 and max F after 100
    *[(S, {"cdf": cdf}, *row) for cdf, row in {
        "weibull": (3.0916, 4.9839, 0.4981, 12.581), "exponential": (2.9095, 5.0088, 0.5020, 12.544),
        "frechet": (2.8604, 5.0132, 0.5021, 12.566), "normal": (2.8406, 5.0162, 0.5024, 12.581),
        "gumbel": (2.9466, 5.0119, 0.5024, 12.560), "logistic": (2.6435, 4.9742, 0.4987, 12.629),
    }.items()],
    *[(D, {"cdf": cdf, "largest": "1/K", "lipschitz": 0.2}, *row) for cdf, row in {
        "weibull": (4.9439, 4.9048, 0.4912, 12.981), "normal": (4.4810, 4.8144, 0.4818, 13.445),
        "logistic": (3.9918, 4.7351, 0.4742, 13.860),
    }.items()],
    *[(D, {"cdf": cdf}, *row) for cdf, row in {
        "weibull": (2.6258, 4.5324, 0.4552, None), "exponential": (2.4407, 4.1420, 0.4170, None),
        "frechet": (2.4652, 4.2787, 0.4302, None), "normal": (2.3488, 4.3575, 0.4377, None),
        "gumbel": (2.4738, 4.3624, 0.4382, None), "logistic": (2.1888, 4.0654, 0.4095, None),
    }.items()],
]  # fmt: skip


def recursion(name: str, cdf: str, largest: float, lipschitz: float, rounds: int) -> tuple[list, np.ndarray]:
    """theta after every round, and the last p; the program of AAggFF-S without bounds, which are inactive."""
    c, k, theta, thetas = np.array([0, 0, 0, 0, 10.0]), 5, 1.0, []
    p, outer, linear, total = np.full(k, 1 / k), np.zeros((k, k)), np.zeros(k), np.zeros(k)
    for t in range(1, rounds + 1):
        losses = (theta - c) ** 2 / 2
        r = CDFS[cdf](losses / losses.mean()) * largest
        if name == S:
            g = -r / (1 + p @ r)
            outer, linear = outer + np.outer(g, g), linear + g - k / 4 * (g @ p) * g
            system = np.ones((k + 1, k + 1))
            system[:k, :k], system[k, k] = 4 * np.eye(k) + k / 4 * outer, 0
            p = np.linalg.solve(system, [*-linear, 1])[:k]
            assert (p > 0).all()
        else:
            total += (r - r.mean()) / (1 + r.mean())
            p = np.exp(np.sqrt(np.log(k) / (t + 1)) / lipschitz * total)
            p /= p.sum()
        theta = p @ (theta - 0.1 * (theta - c))
        thetas.append(theta)
    return thetas, p


@pytest.mark.parametrize(
    ("name", "hyper", "ten", "hundred", "share", "worst"),
    [
        pytest.param(*row, marks=() if row[1]["cdf"] in ("weibull", "normal") else pytest.mark.full)
        for row in TOY
    ],
)
def test_toy(name: str, hyper: dict, ten: float, hundred: float, share: float, worst: float | None) -> None:
    ran = run(name, outlier(), hyper, training=ONE_STEP, rounds=100)
    models, p = ran.server("model"), ran.server("weighing/p")[-1]
    largest = 0.2 if name == S or "largest" in hyper else 1
    thetas, last = recursion(name, hyper["cdf"], largest, hyper.get("lipschitz", 3), 100)
    assert models == pytest.approx(thetas, rel=0, abs=1e-9) and p == pytest.approx(last, rel=0, abs=1e-9)
    assert (models[9], models[99], p[4]) == near((ten, hundred, share), 4)
    if worst is not None:
        assert max(models[-1] ** 2, (models[-1] - 10) ** 2) / 2 == near(worst, 3)


def test_the_toy_ends_at_the_minimax_point_and_not_with_fedavg() -> None:
    assert run(S, outlier(), training=ONE_STEP, rounds=400).server("model")[-1] == near(5, 4)
    plain = run("fedavg", outlier(), training=ONE_STEP, rounds=100).server("model")
    assert (plain[9], plain[99]) == near((1.6513, 2), 4)


def test_what_is_recorded(cohort: str) -> None:
    """Of the first round of two clients with 10 and 30 samples, losses 0.125 and 2.25."""
    ran = run(S, quadratics(), rounds=1, cohort=cohort)
    values, p = ran.rounds[0].values, np.array(ran.server("weighing/p")[0])
    expected = {
        "objective": p @ [0.125, 2.25],
        "kl": p @ np.log(p / [0.25, 0.75]),
        "p_min": p[0],
        "p_max": p[1],
        "decision_loss": -np.log1p(respond("normal", np.array([0.125, 2.25])).mean() / 2),
    }
    assert {name: values[f"method/{name}"] for name in expected} == pytest.approx(expected)
    assert ran.rounds[0].series == {"method/p": p.tolist()}
    assert ran.server("model") == pytest.approx([p @ [0.595, -0.04]])
    assert divergence(np.array([1, 0]), np.array([1, 3])) == pytest.approx(np.log(4))


# The unification table (section 1): exponentiated-gradient steps from w = n_i / n

W, F = np.array([0.2, 0.3, 0.5]), np.array([0.5, 1, 2])
Row = Callable[[np.ndarray], tuple[np.ndarray, float]]  # response and rate 1 / eta, from the losses
RATIOS: list[tuple[Row, tuple[float, ...], tuple[str, dict[str, Any]] | None]] = [
    (lambda f: (0 * f, 1), (0.2, 0.3, 0.5), ("fedavg", {})),
    (lambda f: (1 * np.log(f), 1), (0.071429, 0.214286, 0.714286), None),
    (lambda f: (2 * np.log(f), 1), (0.021277, 0.127660, 0.851064), None),
    (lambda f: (5 * np.log(f), 1), (0.000383, 0.018398, 0.981219), None),
    (lambda f: (900 * np.log(f), 1), (0, 0, 1), ("afl", {"lambda_lr": 1.0})),
    (lambda f: (f, 0.1), (0.182432, 0.287678, 0.529890), ("term", {"t": 0.1})),
    (lambda f: (f, 1), (0.068132, 0.168497, 0.763371), ("term", {"t": 1})),
    (
        lambda f: (-np.log(3 - f), 1),
        (0.109589, 0.205479, 0.684932),
        ("propfair", {"applied": "weights", "baseline": 3}),
    ),
    (
        lambda f: (-np.log(5 - f), 1),
        (0.155340, 0.262136, 0.582524),
        ("propfair", {"applied": "weights", "baseline": 5}),
    ),
]


class Stateless(Weighing):
    """A row of the table as a method."""

    row: ClassVar[Row]

    def decide(self, now: Round, own: Any, cohort: Cohort) -> tuple[np.ndarray, Any, Diagnostics]:
        p, response = np.zeros(now.clients), type(self).row(cohort.scalars("loss"))
        p[cohort.ids] = exponentiated(now.sizes[cohort.ids] / now.sizes.sum(), *response)
        return p, own, {}


@pytest.mark.parametrize(("row", "weights", "method"), RATIOS)
def test_methods_are_exponentiated_gradient_steps(
    row: Row, weights: tuple[float, ...], method: tuple[str, dict[str, Any]] | None
) -> None:
    p = exponentiated(W, *row(F))
    assert p == near(weights)
    one: Any = type("One", (Stateless,), {"row": staticmethod(row)})()
    settings: dict[str, Any] = {"rounds": 1, "training": ONE_STEP}
    (found,) = run(one, three(), **settings).server("model")
    assert found == pytest.approx([1 - 0.1 * p[0] - 0.3 * p[2], 1 - 0.2 * p[1] - 0.1 * p[2]], abs=1e-12)
    if method is not None:
        (theirs,) = run(method[0], three(), method[1], **settings).server("model")
        assert found == pytest.approx(theirs, abs=1e-12)


@pytest.mark.parametrize("name", [S, D])
def test_weights_with_a_memory_move_slowly(name: str) -> None:
    """Claim 4: where losses change sides in every round, TERM's weights, and those of q = 1, jump."""
    losses = [[1.0, 3.0], [3.0, 1.0]] * 10
    weights = np.array([one.p for one in play(name, {}, losses, 2)])
    for response in (np.array, np.log):
        jumping = np.array([exponentiated(np.full(2, 0.5), response(f), 1) for f in losses])
        moves, jumps = (np.abs(np.diff(p, axis=0)).sum(1) for p in (weights, jumping))
        assert moves.max() < 0.5 * jumps.min() and moves[-1] < moves[0]


def test_weights_in_proportion_to_losses_on_the_toy() -> None:
    one: Any = type("One", (Stateless,), {"row": staticmethod(lambda f: (np.log(f), 1))})()
    models = run(one, outlier(), training=ONE_STEP, rounds=100).server("model")
    assert (models[9], models[99]) == near((3.7958, 3.8649), 4)


# Hosts

HALF: dict[str, Any] = {"training": {"epochs": 1, "batch_size": 8, "lr": 0.1}, "participation": 0.5}


class HostWeights(Weighing):
    """The weights that the host itself has."""

    def decide(self, now: Round, own: Any, cohort: Cohort) -> tuple[np.ndarray, Any, Diagnostics]:
        return now.sizes.astype(np.float64), own, {}


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.full), 2])
@pytest.mark.parametrize("host", HOSTS)
def test_with_its_own_weights_a_host_is_itself(
    federation: Federation, host: str, workers: int, cohort: str, tmp_path: Path
) -> None:
    """Bit for bit, with a resume in the middle."""
    settings = HALF | {"rounds": 5, "checkpoint_every": 2, "cohort": cohort, "executor": Workers(workers)}
    hyper = {"mu": 0.1} if host == "fedprox" else {"server_lr": 0.5}
    plain = run(host, federation, hyper, **settings)
    method, folder = HostWeights(host={"name": host, **hyper}), {"checkpoints": tmp_path}
    rounds = prepare_run(method, federation, **settings, **folder).rounds()
    for _ in range(3):
        next(rounds)
    wrapped = run(method, federation, **settings, **folder)
    assert [r.replayed for r in wrapped.rounds] == [True, True, False, False, False]
    assert same(wrapped.state(), plain.state())
    assert same(*({str(k): w for k, w in ran.outcome().models.items()} for ran in (wrapped, plain)))
    for name in ("train_loss", "bytes_down", "gradients"):
        assert wrapped.values(name) == plain.values(name)
    assert (
        wrapped.values("bytes_up")[-1] == plain.values("bytes_up")[-1] + 5 * 4 * 4
    )  # a scalar, four clients


@pytest.mark.parametrize("name", [S, D])
@pytest.mark.parametrize("host", ["fedprox", "fedyogi"])
def test_a_killed_run_with_a_host_resumes(
    federation: Federation, name: str, host: str, cohort: str, tmp_path: Path
) -> None:
    settings = HALF | {"participation": 1.0, "rounds": 5, "checkpoint_every": 2, "cohort": cohort}
    straight = run(name, federation, {"host": {"name": host}}, **settings)
    rounds = prepare_run(
        name, federation, {"host": {"name": host}}, checkpoints=tmp_path, **settings
    ).rounds()
    for _ in range(3):
        next(rounds)
    again = run(name, federation, {"host": {"name": host}}, checkpoints=tmp_path, **settings)
    assert again.rounds[0].replayed and same(again.state(), straight.state())
    assert again.values("method/regret") == straight.values("method/regret")
    assert {"server/model", "server/weighing/p", "server/weighing/responses"} <= straight.state().keys()


@pytest.mark.parametrize(("name", "hyper"), [(S, {"alpha": 1e15}), (D, {"lipschitz": 1e15})])
def test_without_freedom_the_host_has_uniform_weights(federation: Federation, name: str, hyper: dict) -> None:
    host = {"name": "fedadam", "beta1": 0.5}
    ran = run(name, federation, hyper | {"host": host}, **HALF)
    plain = run("fedadam", federation, {"weighting": "uniform", "beta1": 0.5}, **HALF)
    torch.testing.assert_close(ran.servers[-1]["model"], plain.servers[-1]["model"], rtol=0, atol=1e-5)


def test_a_cohort_without_weight_is_averaged_uniformly() -> None:
    """All weight goes to client 2, who is absent in the second round."""

    class Worst(Weighing):
        def decide(self, now: Round, own: Any, cohort: Cohort) -> tuple[np.ndarray, Any, Diagnostics]:
            return np.array([0.0, 0.0, 1.0]), own, {}

    clients = lines((1, 1, 5), ((0.1,), (0.2,), (0,)))
    ran = run(with_cohorts(Worst(), [[0, 1, 2], [0, 1]]), clients, rounds=2, training=ONE_STEP)
    assert ran.server("model") == pytest.approx([1, 0.85])


def test_weights_of_clients_that_never_took_part_move() -> None:
    clients = lines((1, 2, 3, 4), ((0.1,),) * 4)
    ran = run(with_cohorts(build_method(D), [[0, 1]] * 2), clients, rounds=2, training=ONE_STEP)
    p = ran.server("weighing/p")[-1]
    assert p[0] < p[2] == p[3] < p[1] and p[2] != 0.25


@pytest.mark.parametrize("name", [S, pytest.param(D, marks=pytest.mark.full)])
def test_the_code_of_the_host_is_part_of_the_identity(
    federation: Federation, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run, which is resumed only with the same code, and of a stage of ``dvc.yaml``."""

    def digests(host: str) -> list[str]:
        params = load_params(ROOT / "params.yaml", [f"methods.{name}.host.name={host}"])
        simulation: Simulation = prepare_run(name, federation, {"host": {"name": host}})
        return [simulation.fingerprint, Experiment(params, "mnist5k-dir", name, 0).identity.code]

    before = {host: digests(host) for host in HOSTS}
    content = code._content
    monkeypatch.setattr(code, "_content", lambda file: content(file) + "!" * (file.name == "fedadam.py"))
    after = {host: digests(host) for host in HOSTS}
    changed = {host for host in HOSTS for one, other in zip(before[host], after[host]) if one != other}
    assert changed == {"fedadam"}
    assert all(one != other for one, other in zip(before["fedadam"], after["fedadam"]))


# Bad input


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("fedavg", r"^X.host: 'fedavg' is not accepted; expected a mapping with `name` and parameters$"),
        ({}, r"^X.host.name: missing; expected one of fedadagrad, .*, fedyogi$"),
        ({"name": "fedavgg"}, r"^X.host.name: 'fedavgg' .* fedyogi$"),
        ({"name": "ditto"}, "; ditto serves personal models$"),
        ({"name": "ifca"}, "; ifca serves one model per cluster$"),
        ({"name": "fedbuff"}, "; fedbuff is asynchronous$"),
        ({"name": "fedcluster"}, "; fedcluster takes several server steps a round$"),
        ({"name": "afl"}, "; afl relies on its own weights$"),
        ({"name": "qfedavg"}, "; qfedavg relies on its own weights$"),
        ({"name": S}, "; aaggff_s relies on its own weights$"),
        ({"name": "fedprox", "mu": -1}, r"^X.host.mu: -1.0 is not accepted; expected a number >= 0$"),
        ({"name": "fedavg", "mu": 1}, r"^X.host.mu: 'mu' is not accepted; expected one of server_lr"),
        ({"name": "fedavg", "weighting": "uniform"}, r"^X.host.weighting: 'uniform' .* expected samples"),
        ({"name": "fedprox", "mu": 1, "parameters": {"mu": 2}}, r"^X.host.parameters: .* expected absent"),
    ],
)
@pytest.mark.parametrize("name", [S, D])
def test_a_bad_host_is_refused_in_one_line(name: str, host: Any, message: str) -> None:
    for section in ("method", f"methods.{name}"):
        with refused(message.replace("X", section)):
            METHODS[name].parse({"host": host}, section=section)


def test_a_host_is_written_with_all_its_hyper_parameters() -> None:
    method = build_method(S, {"host": {"name": "fedadam", "tau": 0.1}})
    written = method.as_dict()["host"]
    assert (
        written["name"] == "fedadam" and {"tau": 0.1, "beta1": 0.9}.items() <= written["parameters"].items()
    )
    assert build_method(S, method.as_dict()) == method == replace(method)
