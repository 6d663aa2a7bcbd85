"""CC-FedAdagrad, CC-FedAdam and CC-FedAMS: server steps by hand, local steps, and stale updates."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lines import ONE_STEP, lines
from support import quadratics, run, with_cohorts

from fedflow.methods import build_method
from fedflow.methods.asynchronous.cc_fedadam import CCFedAdam
from fedflow.methods.method import Round
from fedflow.simulation.federation import Federation

METHOD_NAMES = ("cc_fedadagrad", "cc_fedadam", "cc_fedams")
TIMES = {"given": [[0, 2, 0], [0, 3, 0], [0, 7, 0]]}


def near(value: Any, tolerance: float = 1e-8) -> Any:
    return pytest.approx(value, rel=0, abs=tolerance)


# The server: updates of 0.4, 0.1 and -0.2 one after the other, from 1

STEPS: dict[str, tuple[dict[str, Any], list[float]]] = {
    "fedavg": ({}, [0.96, 0.95, 0.97]),
    "fedavgm": ({"beta": 0.5, "form": "damped"}, [0.98, 0.965, 0.9675]),
    "fedadam": ({"beta1": 0.5, "beta2": 0.5, "tau": 1e-3, "v0": 0}, [0.92953844, 0.85915953, 0.87122777]),
    "cc_fedadagrad": ({"beta": 0.5, "eps": 1e-3}, [0.95012469, 0.91383237, 0.91927593]),
    "cc_fedadam": ({"beta": 0.5, "gamma": 0.5, "eps": 1e-3}, [0.92953844, 0.85915953, 0.87122777]),
    "cc_fedams": ({"beta": 0.5, "gamma": 0.5, "eps": 1e-3}, [0.92953844, 0.87669227, 0.88549997]),
}


@pytest.mark.parametrize("name", STEPS)
def test_three_steps_of_the_server(name: str, cohort: str) -> None:
    hyper, models = STEPS[name]
    method = with_cohorts(build_method(name, hyper | {"server_lr": 0.1}), [[0], [1], [2]])
    federation = lines((0, 0, 0), ((0.4,), (0.1,), (-0.2,)))
    assert run(method, federation, training=ONE_STEP, cohort=cohort).server("model") == near(models)


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_the_divisor_shrinks_for_cc_fedadam_only(name: str) -> None:
    """And CC-FedAMS is CC-FedAdam as long as its own second moment does not."""
    method, adam = build_method(name), build_method("cc_fedadam")
    start = torch.zeros(1)
    server, plain = SimpleNamespace(v=start, u=start), SimpleNamespace(v=start)
    squares = torch.tensor([[1.0], [2.0], [4.0], [0.0], [0.0]])
    seen = []
    for t, square in enumerate(squares):
        vars(server).update(method.second(server, square))  # type: ignore[attr-defined]
        vars(plain).update(adam.second(plain, square))  # type: ignore[attr-defined]
        seen.append(float(server.v))
        if name == "cc_fedams" and t < 3:
            assert torch.equal(server.v, plain.v)
    assert (seen == sorted(seen)) == (name != "cc_fedadam")


# The client: F = (x - b)^2 / 2 from x = 2, steps of 0.1


@pytest.mark.parametrize(
    ("steps", "raw", "normalized"), [(1, 0.2, 0.2), (2, 0.38, 0.19), (4, 0.6878, 0.17195)]
)
def test_updates_are_divided_by_the_number_of_steps(
    steps: int, raw: float, normalized: float, cohort: str
) -> None:
    alone, training = quadratics(((1, 0),), (5,), start=2), {"epochs": steps}
    for normalize, d in ((False, raw), (True, normalized)):
        hyper = {"beta": 0, "normalize": normalize}
        ran = run("cc_fedadam", alone, hyper, rounds=1, training=training, cohort=cohort)
        assert ran.server("m") == near([d])


@pytest.mark.parametrize(("normalize", "mean"), [(True, 0.014025), (False, -0.2439)])
def test_a_long_running_client_does_not_dominate(normalize: bool, mean: float, cohort: str) -> None:
    """One step towards 0 and four steps towards 4, from 2."""

    class Own(CCFedAdam):
        def epochs(self, now: Round, server: Any, client: int) -> int:
            return (1, 4)[client]

    method = Own.parse({"beta": 0, "normalize": normalize})
    ran = run(method, quadratics(((1, 0), (1, 4)), (5, 5), start=2), rounds=1, cohort=cohort)
    assert ran.server("m") == near([mean])


def test_clients_draw_up_to_most_epochs() -> None:
    """Clock and delay show them: an epoch of the only client takes 1."""
    alone = quadratics(((1, 0),), (5,), start=2)
    ran = run("cc_fedadam", alone, {"most_epochs": 3}, rounds=20, timing={"given": [[0, 1, 0]]})
    clocks = [0.0, *ran.values("clock")]
    assert {b - a for a, b in itertools.pairwise(clocks)} == {1, 2, 3}


# Who comes when


@pytest.mark.parametrize(
    ("name", "plain", "hyper"),
    [("cc_fedadagrad", "fedadagrad", {"beta1": 0.9}), ("cc_fedadam", "fedadam", {"beta2": 0.99})],
)
def test_without_delays_the_server_is_that_of_fedopt(name: str, plain: str, hyper: dict, cohort: str) -> None:
    """All clients train, are equally fast, and take 2 steps, which the second moment cancels."""
    clients = quadratics(((1, 1), (2, -1), (3, 2)), (10, 10, 10))
    ran = run(name, clients, {"eps": 1e-20, "server_lr": 0.1}, timing={"speeds": [[1, 1]]}, cohort=cohort)
    other = run(plain, clients, hyper | {"tau": 1e-20, "v0": 0, "server_lr": 0.1}, cohort=cohort)
    assert [r.cohort for r in ran.rounds] == [[0, 1, 2]] * 3
    assert ran.values("delay") == [0] * 3
    assert ran.server("model") == near(other.server("model"))


def test_stale_updates_are_of_the_model_that_was_received(cohort: str) -> None:
    """Each update is half of the way from b = 0, 4, 8 to the received model, see `test_timing`; x is 0.

    Round 2: d = -2, v = 4, x = 1. Round 3: client 0 received 0, d = 0. Round 4: it received 1, d = 1/2.
    Round 5: client 1 received x = 1 two rounds ago, d = -3/2, v = 6.5.
    """
    clients = quadratics(((1, 0), (1, 4), (1, 8)), (10, 10, 10), start=0)
    hyper = {"beta": 0, "server_lr": 1, "concurrency": 3}
    ran = run(
        "cc_fedadagrad",
        clients,
        hyper,
        training={"epochs": 1, "lr": 0.5},
        participation=0.34,
        rounds=5,
        timing=TIMES,
        cohort=cohort,
    )
    assert [r.cohort for r in ran.rounds] == [[0], [1], [0], [0], [1]]
    assert ran.values("delay") == [0, 1, 1, 0, 2]
    models = [0, 1, 1, 1 - 0.5 / 4.25**0.5, 1 - 0.5 / 4.25**0.5 + 1.5 / 6.5**0.5]
    assert ran.server("model") == near(models)


@pytest.mark.parametrize("concurrency", [0, 0.5, 2, 9])
def test_concurrency_is_the_number_of_clients_in_training(federation: Federation, concurrency: float) -> None:
    """Three of eight clients make a server step."""
    ran = run("cc_fedams", federation, {"concurrency": concurrency}, participation=0.4, rounds=6)
    assert all(len(r.cohort) == len(set(r.cohort)) == 3 for r in ran.rounds)
    busy = len(ran.simulation.state.busy)
    assert busy == {0: 0, 0.5: 1, 2: 5, 9: 5}[concurrency]
    assert any(ran.values("delay")) == (concurrency > 0)


def test_asynchronous_steps_are_faster_than_synchronous_rounds(federation: Federation) -> None:
    clocks = [
        run("cc_fedadam", federation, {"concurrency": c}, participation=0.4, rounds=12)
        .rounds[-1]
        .values["clock"]
        for c in (0, 2)
    ]
    assert clocks[1] < clocks[0] / 2
