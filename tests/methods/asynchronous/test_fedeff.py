"""FedEff on three clients whose times are given: downloads 1, 1, 2, epochs 2, 4, 10, uploads 2, 3, 4."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from support import Ran, near, quadratics, run

from fedflow.errors import BadInput
from fedflow.methods.asynchronous.fedeff import FedEff, fitting, round_time
from fedflow.simulation.federation import Federation

TIMES = np.array([[1, 2, 2], [1, 4, 3], [2, 10, 4]], dtype=float)
GIVEN: dict[str, Any] = {"timing": {"given": TIMES.tolist()}}
THREE = quadratics(((1, 0), (2, 1), (4, 3)), (10, 20, 30), start=0.5)


def need(times: np.ndarray, epochs: Any) -> np.ndarray:
    """When clients are done [N]."""
    return times[:, 0] + epochs * times[:, 1] + times[:, 2]


def eff(hyper: dict[str, Any], rounds: int = 2, **kwargs: Any) -> Ran:
    return run("fedeff", THREE, {"base_epochs": 5} | hyper, rounds=rounds, **GIVEN | kwargs)


@pytest.mark.parametrize(
    ("tau", "expected", "epochs", "ends", "idle"),
    [
        (0.2, 10, [3, 1, 0], [9, 8, 6], [1, 2, 4]),
        (0.4, 15, [6, 2, 0], [15, 12, 6], [0, 3, 9]),
        (0.8, 26, [11, 5, 2], [25, 24, 26], [1, 2, 0]),
        (1.0, 31, [14, 6, 2], [31, 28, 26], [0, 3, 5]),
    ],
)
def test_the_epochs_that_fit_into_a_round(
    tau: float, expected: float, epochs: list[int], ends: list[int], idle: list[int]
) -> None:
    ert = round_time(TIMES, tau * 5)
    assert ert == expected
    assert fitting(TIMES, ert).tolist() == epochs
    assert need(TIMES, fitting(TIMES, ert)).tolist() == ends
    assert (ert - need(TIMES, fitting(TIMES, ert))).tolist() == idle


def test_no_client_waits_for_as_long_as_its_own_epoch() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        times = rng.uniform(0.1, [2, 10, 2], (20, 3))
        ert = round_time(times, rng.uniform(0.5, 20))
        epochs = fitting(times, ert)
        idle = (ert - need(times, epochs))[epochs >= 1]
        assert (idle >= -1e-9).all() and (idle < times[epochs >= 1, 1]).all()


def test_epochs_shrink_with_every_time_and_grow_with_tau() -> None:
    base = fitting(TIMES, 26)
    for i in range(3):
        later = TIMES.copy()
        later[:, i] += 1.5
        assert (fitting(later, 26) <= base).all()
    grown = [fitting(TIMES, round_time(TIMES, tau * 5)) for tau in np.linspace(0.1, 1, 10)]
    assert (np.diff(grown, axis=0) >= 0).all()


@pytest.mark.parametrize(("unit", "expected"), [(1, 10), (0.1, 9.7), (60, 60)])
def test_the_round_time_is_rounded_up_to_whole_units(unit: float, expected: float) -> None:
    assert round_time(TIMES, 1, unit) == near(expected)


def test_equal_clients_train_the_epochs_of_the_mean_client() -> None:
    equal = np.full((4, 3), (1.0, 3.0, 2.0))
    for epochs in (1, 4, 5):
        assert fitting(equal, round_time(equal, epochs)).tolist() == [epochs] * 4
    assert (fitting(equal, round_time(equal, 2.4)) == 2).all()


def model_after(epochs: list[int], w: float, lr: float = 0.1) -> float:
    """The weighted mean of w_k = b_k + (1 - lr a_k)^E_k (w - b_k)."""
    clients = zip(((1, 0), (2, 1), (4, 3)), (10, 20, 30), epochs)
    return sum(n * (b + (1 - lr * a) ** e * (w - b)) for (a, b), n, e in clients) / 60


def test_fedeff(cohort: str) -> None:
    """One epoch each, then 11, 5 and 2 epochs in rounds of 26 instead of 46."""
    ran = eff({"tau": 0.8}, cohort=cohort)
    models = [model_after([1, 1, 1], 0.5)]
    for _ in range(2):
        models.append(model_after([11, 5, 2], models[-1]))
    assert ran.server("model") == near(models[1:])
    assert ran.values("clock") == near([26, 52])
    assert ran.values("idle") == near([1, 1])
    assert ran.servers[-1]["times"].tolist() == TIMES.tolist()
    assert ran.outcome().metrics["onboarding_bytes_up"] == 3 * (8 + 3 * 4)


@pytest.mark.parametrize(
    ("slow", "epochs", "cohort", "clock"), [("clamp", [6, 2, 1], [0, 1, 2], 16), ("skip", [6, 2], [0, 1], 15)]
)
def test_clients_too_slow_for_an_epoch(slow: str, epochs: list[int], cohort: list[int], clock: float) -> None:
    ran = eff({"tau": 0.4, "slow": slow}, rounds=1)
    assert ran.rounds[0].cohort == cohort
    assert ran.values("clock")[0] == near(clock)
    if slow == "clamp":
        assert ran.server("model") == near([model_after(epochs, model_after([1, 1, 1], 0.5))])


def test_a_round_without_any_client_is_refused() -> None:
    with pytest.raises(BadInput, match=r"^method\.tau: .*no client"):
        eff({"tau": 0.01, "base_epochs": 1, "unit": 0.1, "slow": "skip"})


@pytest.mark.parametrize(("policy", "epochs"), [("UEC", [3, 3, 2]), ("EC", [3, 3, 3])])
def test_epochs_are_limited_to_most_epochs(policy: str, epochs: list[int]) -> None:
    ran = eff({"tau": 0.8, "policy": policy, "most_epochs": 3}, rounds=1)
    assert ran.server("model") == near([model_after(epochs, model_after([1, 1, 1], 0.5))])


@pytest.mark.parametrize(
    ("policy", "hyper"),
    [
        ("EC", {"slow": "skip"}),
        ("EIC", {"unit": 2.0}),
        ("random", {"slow": "skip"}),
        ("random", {"tau": 0.8}),
    ],
)
def test_options_of_other_policies_are_refused(policy: str, hyper: dict[str, Any]) -> None:
    (name,) = hyper
    with pytest.raises(BadInput, match=rf"^method\.{name}: .* its default, with policy: {policy}$"):
        eff({"policy": policy} | hyper)


def test_epochs_that_take_no_time_are_refused() -> None:
    """UEC divides by these times; EC does not need them."""
    times = {"given": [[1, 0, 2], *TIMES[1:].tolist()]}
    with pytest.raises(BadInput, match=r"^run\.timing: 0 .* times of an epoch > 0 with fedeff"):
        eff({}, timing=times)
    eff({"policy": "EC"}, timing=times)


@pytest.mark.parametrize(
    ("policy", "epochs"),
    [
        ("UEC", [[11, 5, 2], [11, 5, 2]]),  # ERT 26
        ("UEIC", [[11, 5, 2], [6, 2, 1]]),  # ERT 26 and 15
        ("EC", [[4, 4, 4], [4, 4, 4]]),
        ("EIC", [[4, 4, 4], [2, 2, 2]]),
    ],
)
def test_policies_let_epochs_vary_over_clients_and_rounds(
    policy: str, epochs: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FedEff, "tau_decay", 0.5)
    ran = eff({"tau": 0.8, "policy": policy})
    model, models = model_after([1, 1, 1], 0.5), []
    for own in epochs:
        models.append(model := model_after(own, model))
    assert ran.server("model") == near(models)
    clocks = np.cumsum([need(TIMES, np.array(own)).max() for own in epochs])
    assert ran.values("clock") == near(clocks)


def test_random_epochs_are_at_most_those_of_the_mean_client() -> None:
    ran = eff({"policy": "random", "base_epochs": 3}, rounds=20, timing={"given": [[0, 1, 0]] * 3})
    lengths = np.diff([0, *ran.values("clock")])
    assert set(lengths) == {2, 3} or set(lengths) == {1, 2, 3}
    limited = {"policy": "random", "base_epochs": 3, "most_epochs": 2}
    ran = eff(limited, rounds=20, timing={"given": [[0, 1, 0]] * 3})
    assert set(np.diff([0, *ran.values("clock")])) == {1, 2}


def test_equal_epochs_are_fedavg(federation: Federation, cohort: str) -> None:
    """After its round 0: one epoch, in which FedAvg trains all clients."""
    sgd = {"batch_size": 0, "lr": 0.1}
    first = run("fedavg", federation, rounds=1, training=sgd | {"epochs": 1}).servers[0]["model"]
    ran = run("fedeff", federation, {"policy": "EC", "tau": 0.4}, rounds=1, training=sgd, cohort=cohort)
    plain = run("fedavg", starting(federation, first), rounds=1, training=sgd | {"epochs": 2}, cohort=cohort)
    torch.testing.assert_close(ran.servers[0]["model"], plain.servers[0]["model"], rtol=0, atol=1e-6)


def starting(federation: Federation, w: torch.Tensor) -> Federation:
    """The same federation, whose first model is ``w``."""
    model = copy.copy(federation.model)
    model.init = lambda seed: w  # type: ignore[method-assign]
    return Federation(model, federation.train, federation.test, federation.partition, federation.public)
