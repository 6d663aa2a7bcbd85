"""FedNova's proximal normalizer and its server momentum; the rest is in `test_oracles`."""

import pytest
import torch
from support import images, prepare_run, quadratics, refused, run

from fedflow.data import Dataset
from fedflow.methods.averaging.fednova import work, work_at

UNEVEN = {"epochs": 1, "batch_size": 10}  # one step of client 1 and three of client 2


@pytest.mark.parametrize(("tau", "pull"), [(3, 0.05), (1, 0.3), (10, 1.0), (7, 1e-7), (200, 1e-5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_proximal_work_is_the_weight_of_its_gradients(tau: int, pull: float, dtype: torch.dtype) -> None:
    """Later steps pull a gradient back: one of step s counts (1 - eta mu)^(tau - s) times."""
    a = float(work(torch.tensor(tau, dtype=dtype), 0.0, pull))
    assert a == pytest.approx(sum((1 - pull) ** (tau - s) for s in range(1, tau + 1)), rel=1e-7)
    if (tau, pull) == (3, 0.05):
        assert a == pytest.approx(2.8525, abs=1e-6)


def test_fednova_with_a_proximal_term(cohort: str) -> None:
    """T1 with eta mu = 0.05 by hand: a = (1, 2.8525), tau_eff = 0.25 * 1 + 0.75 * 3 = 2.5."""
    hyper = {"mu": 0.5}
    ran = run("fednova", quadratics(), hyper, training=UNEVEN, rounds=1, keep_trained=True, cohort=cohort)
    locals_ = []
    for a, b, tau in ((1, 1, 1), (2, -1, 3)):
        w = 0.5
        for _ in range(tau):
            w -= 0.1 * (a * (w - b) + 0.5 * (w - 0.5))
        locals_.append(w)
    assert ran.kept("trained")[0] == pytest.approx(locals_)
    d = 0.25 * (0.5 - locals_[0]) / 1 + 0.75 * (0.5 - locals_[1]) / 2.8525
    assert ran.server("model") == pytest.approx([0.5 - 2.5 * d], abs=1e-12)


def test_a_vanishing_proximal_term_changes_nothing(cohort: str) -> None:
    plain, pulled = (
        run("fednova", quadratics(), {"mu": mu}, training=UNEVEN, cohort=cohort) for mu in (0, 1e-9)
    )
    assert pulled.server("model") == pytest.approx(plain.server("model"), abs=1e-6)


def test_momentum_and_a_proximal_term_are_refused() -> None:
    training = UNEVEN | {"momentum": 0.9}
    with refused(r"^method\.mu: 0\.1 is not accepted; expected 0 where training\.momentum is not 0$"):
        prepare_run("fednova", quadratics(), {"mu": 0.1}, training=training)


def test_changing_rates_and_a_proximal_term_are_refused() -> None:
    with refused(r"^method\.mu: 0\.1 is not accepted; expected 0 where training\.lr_within is not null$"):
        prepare_run("fednova", quadratics(), {"mu": 0.1}, training=UNEVEN | {"lr_within": [1, 1]})


def test_work_at_changing_rates() -> None:
    """Worked numbers; at a constant rate it is the formula of the paper."""
    steps = torch.arange(1000, dtype=torch.float64)
    rates = (1 + 0.001 * steps) ** -0.75
    assert float(work_at(rates[:500], 0.9)) == pytest.approx(4179.19, abs=5e-3)
    assert float(work_at(rates[:250], 0.9) / work_at(rates, 0.9)) == pytest.approx(0.2949, abs=5e-5)
    for rho in (0.0, 0.9):
        constant = float(work_at(torch.ones(10, dtype=torch.float64), rho))
        assert constant == pytest.approx(float(work(torch.tensor(10.0, dtype=torch.float64), rho)), rel=1e-12)


def test_fednova_at_changing_rates(cohort: str) -> None:
    """T1 by hand: rates of 0.1, 0.05 and 0.1 / 3, momentum 0.5."""
    training = UNEVEN | {"lr_within": [1, 1], "momentum": 0.5}
    ran = run("fednova", quadratics(), training=training, rounds=1, cohort=cohort)
    d, work_done = 0.0, 0.0
    for p, a, b, tau in ((0.25, 1, 1, 1), (0.75, 2, -1, 3)):
        w, v, moved, share = 0.5, 0.0, 0.0, 0.0  # ``moved``: by gradients of 1
        for i in range(tau):
            v, moved = 0.5 * v + a * (w - b), 0.5 * moved + 1
            w, share = w - 0.1 / (1 + i) * v, share + moved / (1 + i)
        d, work_done = d + p * (0.5 - w) / share, work_done + p * share
    assert ran.server("model") == pytest.approx([0.5 - work_done * d], abs=1e-12)


def test_server_momentum_adds_up_the_normalized_steps(cohort: str) -> None:
    """Each step of T1 from w takes FedNova to F(w) = w - step(w); with gmf 0.9 steps pile up."""

    def step(w: float) -> float:
        after = 1 + 0.9 * (w - 1), -1 + 0.512 * (w + 1)
        return 2.5 * (0.25 * (w - after[0]) / 1 + 0.75 * (w - after[1]) / 3)

    w, v, expected = 0.5, 0.0, []
    for _ in range(3):
        v = 0.9 * v + step(w)
        w -= v
        expected.append(w)
    assert expected[0] == pytest.approx(0.07375)
    ran = run("fednova", quadratics(), {"gmf": 0.9}, training=UNEVEN, cohort=cohort)
    assert ran.server("model") == pytest.approx(expected, abs=1e-12)
    assert ran.server("v")[-1] == pytest.approx(v, abs=1e-12)


def test_server_momentum_with_equal_steps_is_fedavgm(digits: Dataset, cohort: str) -> None:
    equal = images(digits, (16, 16, 16, 16))
    sgd = {"training": {"batch_size": 8, "momentum": 0.5}, "participation": 0.5, "cohort": cohort}
    nova = run("fednova", equal, {"gmf": 0.7}, **sgd)
    plain = run("fedavgm", equal, {"beta": 0.7}, **sgd)
    torch.testing.assert_close(nova.servers[-1]["model"], plain.servers[-1]["model"], rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*to reach all samples")
def test_fednova_with_lazy_epochs(cohort: str) -> None:
    """T1 by hand, momentum 0.5: prefixes of 2 and 7 of 10 samples, and of 6, 13 and 28 of 30."""
    training = UNEVEN | {"momentum": 0.5, "curriculum": {"mode": "lazy_epoch"}}
    ran = run("fednova", quadratics(), training=training, rounds=1, cohort=cohort)
    d, work_done = 0.0, 0.0
    for p, a, b, tau in ((0.25, 1, 1, 2), (0.75, 2, -1, 6)):
        w, v, moved, total = 0.5, 0.0, 0.0, 0.0
        for _ in range(tau):
            v, moved = 0.5 * v + a * (w - b), 0.5 * moved + 1
            w, total = w - 0.1 * v, total + moved
        d, work_done = d + p * (0.5 - w) / total, work_done + p * total
    assert ran.server("model") == pytest.approx([0.5 - work_done * d], abs=1e-12)
