"""Every method with a number of steps, with rates that change within a round, and with Adam."""

from typing import Any

import numpy as np
import pytest
import torch
from profiles import abilities
from support import forbid_fallback, images, prepare_run, quadratics, refused, run, same, suited

from fedflow.data import Dataset
from fedflow.methods import METHODS
from fedflow.simulation.federation import Federation

STEPS, RATES, ADAM = {"steps": 3}, {"lr_within": [0.5, 0.75]}, {"optimizer": "adam"}
FULL_GRADIENTS = [STEPS, RATES, ADAM]
REFUSED: dict[str, list[dict[str, Any]]] = {
    "apfl": [ADAM],
    "fedeff": [STEPS],
    "fednova": [ADAM],
    "fedsgd": FULL_GRADIENTS,
    "l2gd": [ADAM],
    "pfedme": [ADAM],
    "pflscaf": [ADAM],
    "qfedavg": [ADAM],
    "qfedsgd": FULL_GRADIENTS,
    "scaffold": [ADAM],
    "subfedavg_hy": [STEPS],
    "subfedavg_un": [STEPS],
}
QUICK: dict[str, dict[str, Any]] = {
    "flt": {"encoder": "pixels"},  # without an encoder to train
    # Prototypes shift with all features: that gradient is 0 up to rounding, which Adam would magnify.
    "pavg": {"adaptation": {"name": "maml"}},
    "pfldyn": {"adaptation": {"name": "maml"}},
}
FEW: dict[str, Any] = {"participation": 0.5, "rounds": 2}
PLAIN = {"epochs": 1, "batch_size": 8, "lr": 0.05, "lr_decay": 0.5}


@pytest.fixture(scope="module")
def exact(digits: Dataset) -> Federation:
    """In float64: Adam would magnify the rounding of gradients that are nearly 0."""
    return images(digits, dtype=torch.float64)


@pytest.mark.by_profile(kind=abilities, also=REFUSED)
@pytest.mark.parametrize("name", METHODS)
def test_what_a_method_accepts_is_the_same_in_loop_and_cohort(
    name: str, exact: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact, refusals = suited(name, exact), REFUSED.get(name, [])
    for settings in refusals:
        with refused(rf"^training\.{next(iter(settings))}: .* {name}\b"):
            prepare_run(name, exact, QUICK.get(name), training=PLAIN | settings)
    accepted = [settings for settings in FULL_GRADIENTS if settings not in refusals]
    training = {key: value for settings in (PLAIN, *accepted) for key, value in settings.items()}
    loop = run(name, exact, QUICK.get(name), training=training, **FEW)
    forbid_fallback(monkeypatch)
    vmapped = run(name, exact, QUICK.get(name), training=training, cohort="vmap", **FEW)
    torch.testing.assert_close(vmapped.state(), loop.state(), rtol=0, atol=1e-9)
    if accepted:
        plain = run(name, exact, QUICK.get(name), training=PLAIN, **FEW)
        assert not same(plain.state(), loop.state())


@pytest.mark.by_profile(kind=abilities)
@pytest.mark.parametrize("name", sorted(METHODS.keys() - {"fedsgd", "qfedsgd"}))
def test_neutral_values_change_no_bit(name: str, digits: Dataset) -> None:
    """Two steps on 16 samples in batches of 8 are an epoch; rates of (1 + 0 i)^-3 are constant."""
    equal = suited(name, images(digits, (16,) * 6))
    steps = {} if STEPS in REFUSED.get(name, []) else {"steps": 2}
    one, other = (
        run(name, equal, QUICK.get(name), training=PLAIN | more, **FEW)
        for more in ({}, {"lr_within": [0, 3], **steps})
    )
    assert same(one.state(), other.state())
    for column in ("clock", "gradients"):
        assert one.values(column) == other.values(column)


@pytest.mark.parametrize(
    ("name", "hyper"),
    [("ditto", {"personal_epochs": 2}), ("fedrep", {"head_epochs": 2}), ("fedbuff", {"most_epochs": 3})],
)
def test_steps_with_other_numbers_of_epochs_are_refused(name: str, hyper: dict, exact: Federation) -> None:
    with refused(rf"^(training\.steps: 3|method\.most_epochs: 3) .* null with (training\.steps|{name})"):
        prepare_run(name, exact, hyper, training=PLAIN | STEPS)


def test_fixed_mixtures_of_apfl_take_adam(exact: Federation) -> None:
    prepare_run("apfl", exact, {"adaptive": False}, training=PLAIN | ADAM)


def test_a_decision_maker_refuses_what_its_host_refuses(exact: Federation) -> None:
    with refused(r"^training\.steps: 3 .* null with aaggff_d, which trains on full gradients"):
        prepare_run("aaggff_d", exact, {"host": {"name": "fedsgd"}}, training=PLAIN | STEPS)


@pytest.mark.parametrize("control_lr", ["current", "initial"])
def test_scaffold_divides_by_the_sum_of_rates(control_lr: str, cohort: str) -> None:
    """By hand, with rates of 0.1 and 0.05, halved in the second round; client 2 takes both steps."""
    training = {"epochs": 1, "batch_size": 10, "lr_within": [1, 1], "lr_decay": 0.5}
    clients, hyper = quadratics(sizes=(10, 20)), {"control_lr": control_lr}
    ran = run("scaffold", clients, hyper, training=training, cohort=cohort)
    x, c, own, expected = 0.5, 0.0, np.zeros(2), []
    for t in range(3):
        ends, controls = [], []
        for k, (a, b, tau) in enumerate(((1, 1, 1), (2, -1, 2))):
            rates, y = [0.1 * 0.5**t / (1 + i) for i in range(tau)], x
            for rate in rates:
                y -= rate * (a * (y - b) - own[k] + c)
            divisor = sum(rates) * (2**t if control_lr == "initial" else 1)
            ends.append(y)
            controls.append(own[k] - c + (x - y) / divisor)
        x, c = np.mean(ends), c + np.mean(controls - own)
        own = np.array(controls)
        expected.append(x)
    assert ran.server("model") == pytest.approx(expected, abs=1e-12)


def test_client_centric_methods_divide_by_the_sum_of_rates(cohort: str) -> None:
    """By hand, with rates of 0.1, 0.05 and 0.1 / 3; the server's step is d / (|d| + 1)."""
    training = {"epochs": 1, "batch_size": 10, "lr_within": [1, 1]}
    hyper = {"concurrency": 0, "beta": 0, "gamma": 0, "server_lr": 1, "eps": 1}
    ran = run("cc_fedadam", quadratics(), hyper, training=training, rounds=1, cohort=cohort)
    moved = []
    for a, b, tau in ((1, 1, 1), (2, -1, 3)):
        w = 0.5
        for i in range(tau):
            w -= 0.1 / (1 + i) * a * (w - b)
        moved.append((0.5 - w) / sum(1 / (1 + i) for i in range(tau)))
    d = np.mean(moved)
    assert ran.server("model") == pytest.approx([0.5 - d / (abs(d) + 1)], abs=1e-12)
