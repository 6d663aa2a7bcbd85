"""FedAdagrad, FedAdam and FedYogi on the test-bed T1 (see `test_oracles`), and without adaptation."""

import math

import pytest
from support import quadratics, run

T1 = {  # method -> v_0 -> models
    "fedadagrad": {
        0: [0.4002616089, 0.3328086364, 0.2793246303],
        1e-6: [0.4002619511, 0.3328090930, 0.2793251466],
    },
    "fedadam": {
        0: [0.4025559105, 0.2708112654, 0.1177441473],
        1e-6: [0.4025882311, 0.2708671269, 0.1178197022],
    },
    "fedyogi": {
        0: [0.4025559105, 0.2711621439, 0.1189473030],
        1e-6: [0.4025885574, 0.2712186085, 0.1190236980],
    },
}


@pytest.mark.parametrize("v0", [0, 1e-6])
@pytest.mark.parametrize("method", T1)
def test_optimizers_of_the_server(method: str, v0: float, cohort: str) -> None:
    ran = run(method, quadratics(), {"server_lr": 0.1, "v0": v0}, cohort=cohort)
    assert ran.server("model") == pytest.approx(T1[method][v0], abs=1e-9)


@pytest.mark.parametrize("method", T1)
def test_the_second_moment_starts_at_tau_squared(method: str) -> None:
    ran = run(method, quadratics(), {"server_lr": 0.1})
    assert ran.server("model") == pytest.approx(T1[method][1e-6], abs=1e-9)


@pytest.mark.parametrize(
    ("method", "beta2", "m", "v"),
    [
        ("fedadam", 0.999, 0.05, 2.5000999e-4),
        ("fedyogi", 0.999, 0.05, 2.5001e-4),
        ("fedadagrad", None, 0.5, 0.25000001),
    ],
)
def test_one_step_of_an_update_of_one_half(method: str, beta2: float | None, m: float, v: float) -> None:
    """A client that goes from 0 to 0.5: one gradient step of 0.1 towards 5."""
    hyper = {"tau": 1e-4, "server_lr": 0.01} | ({"beta2": beta2} if beta2 else {})
    client = quadratics(((1, 5),), (1,), start=0)
    ran = run(method, client, hyper, rounds=1, training={"epochs": 1})
    assert (ran.server("m"), ran.server("v")) == (pytest.approx([m]), pytest.approx([v], rel=1e-9))
    assert ran.server("model") == pytest.approx([0.01 * m / (math.sqrt(v) + 1e-4)])
    assert ran.server("model")[0] == pytest.approx(0.0099980 if m == 0.5 else 0.0314234, abs=1e-7)


@pytest.mark.parametrize("method", T1)
def test_without_adaptation_it_is_fedavg(method: str, cohort: str) -> None:
    """eta_s / (sqrt(v) + tau) -> 1; sqrt(v) is below 3 after three rounds."""
    hyper = {"beta1": 0, "tau": 1e8, "server_lr": 1e8, "v0": 0}
    ran, plain = (
        run(*which, cohort=cohort) for which in ((method, quadratics(), hyper), ("fedavg", quadratics()))
    )
    assert ran.server("model") == pytest.approx(plain.server("model"), abs=1e-6)


@pytest.mark.parametrize("method", T1)
def test_without_adaptation_but_with_v_of_tau_squared_the_step_is_about_a_half(method: str) -> None:
    hyper = {"beta1": 0, "tau": 1e8, "server_lr": 1e8}
    ran, plain = run(method, quadratics(), hyper, rounds=1), run("fedavg", quadratics(), rounds=1)
    (w,), (mean,) = ran.server("model"), plain.server("model")
    decay = 0.99**0.5 if method == "fedadam" else 1
    assert w - 0.5 == pytest.approx((mean - 0.5) / (1 + decay), abs=1e-6)


@pytest.mark.parametrize("method", T1)
def test_a_model_that_fits_all_clients_does_not_change(method: str) -> None:
    """Also where v_0 is 0: 0 / (0 + tau) is 0."""
    ran = run(method, quadratics(((1, 0.5), (2, 0.5))), {"v0": 0})
    assert ran.server("model") == [0.5] * 3
