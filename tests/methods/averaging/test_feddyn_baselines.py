"""The methods that FedDyn is compared with, on its problem of two quadratics: minima 0 and 4, optimum 3.

F_1 = w^2 / 2 and F_2 = 3 (w - 4)^2 / 2, equally many samples, from w = 0. Their traffic on its CIFAR network.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import support
import torch
from support import alike, consecutive, prepare_run, quadratics, run, with_cohorts

from fedflow.data import Examples
from fedflow.local.client import Client, Update
from fedflow.methods import build_method
from fedflow.methods.averaging.scaffold import Scaffold, State
from fedflow.methods.method import Cohort, Diagnostics, Round
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.simulation.federation import Federation

TWO = quadratics(((1, 0), (3, 4)), (10, 10), start=0)
ALL = ["fedavg", "fedprox", "fedsgd", "scaffold", "feddyn", "fedsplit"]


near = partial(support.near, tolerance=1e-6)


def exact(mu: float) -> dict[str, float]:
    """Gradient steps for curvatures 1 + mu and 3 + mu that leave at most half of the distance."""
    return {"epochs": 25, "lr": 1 / (2 + mu)}


def test_fedprox_is_biased(cohort: str) -> None:
    ran = run("fedprox", TWO, {"mu": 1}, rounds=40, training=exact(1), cohort=cohort)
    assert ran.server("model")[:4] == near([1.5, 2.0625, 2.2734375, 2.3525390625])
    assert ran.server("model")[-1] == near(2.4)


@pytest.mark.parametrize(
    ("mu", "end"),
    [(0, 2.0), (0.01, 2.006623), (10, 2.869565), pytest.param(100, 2.985222, marks=pytest.mark.full)],
)
def test_fedprox_nears_the_optimum_as_mu_grows(mu: float, end: float) -> None:
    rounds = 20 + int(8 * mu)
    training = exact(mu) | {"epochs": 25 if mu < 10 else 8}
    ran = run("fedprox", TWO, {"mu": mu}, rounds=rounds, training=training)
    assert ran.server("model")[-1] == near(end)


def test_fedavg_is_biased(cohort: str) -> None:
    ran = run("fedavg", TWO, rounds=60, cohort=cohort)
    assert ran.server("model")[:3] == near([1.02, 1.683, 2.11395])
    assert ran.server("model")[-1] == near(2.914286)


def test_scaffold_is_unbiased(cohort: str) -> None:
    ran = run("scaffold", TWO, rounds=90, keep_trained=True, cohort=cohort)
    assert ran.server("model")[:3] == near([1.02, 1.734, 2.19504])
    assert ran.server("c")[:3] == near([-5.1, -3.57, -2.3052])
    own = [[0, -10.2], [1.224, -8.364], [1.887, -6.4974]]
    trained = [[0, 2.04], [1.7952, 1.6728], [2.3154, 2.07468]]
    assert ran.kept("c")[:3] == [near(each) for each in own]
    assert ran.kept("trained")[:3] == [near(each) for each in trained]
    assert (ran.server("model")[-1], ran.server("c")[-1]) == (near(3), near(0))
    assert ran.kept("c")[-1] == near([3, -3])


def test_scaffold_with_partial_participation(cohort: str) -> None:
    method = with_cohorts(build_method("scaffold"), [[0], [1], [0], [1]])
    ran = run(method, TWO, rounds=4, cohort=cohort)
    assert ran.server("model") == near([0, 2.04, 2.6214, 2.271081])
    assert ran.server("c") == near([0, -5.1, -4.0035, -1.125953])
    assert ran.kept("c")[-1] == near([2.193, -4.444905])


# Reductions


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("clients", [pytest.param(1, marks=pytest.mark.full), 3])
def test_equal_clients_and_a_single_one_reach_their_optimum(name: str, clients: int) -> None:
    alike = quadratics(((2, -1),) * clients, (4,) * clients)
    assert run(name, alike, rounds=150).server("model")[-1] == near(-1)


def test_one_full_step_of_everyone_is_gradient_descent(cohort: str) -> None:
    """Of SCAFFOLD too: its corrections sum to 0. l' = (w + 3 (w - 4)) / 2 shrinks by 1 - 2 lr."""
    one: dict[str, Any] = {"training": {"epochs": 1}, "rounds": 6, "cohort": cohort}
    descent = [3 - 3 * 0.8**t for t in range(1, 7)]
    for name in ("fedavg", "fedsgd", "scaffold"):
        assert run(name, TWO, **one).server("model") == near(descent)


def test_scaffold_without_control_variates_is_fedavg(federation: Federation, cohort: str) -> None:
    class Stateless(Scaffold):
        def local(self, client: Client) -> Update:
            sent = super().local(client)
            return replace(sent, keep={"c": torch.zeros_like(sent.keep["c"])})

        def aggregate(self, now: Round, server: State, cohort: Cohort) -> tuple[State, Diagnostics]:
            after, numbers = super().aggregate(now, server, cohort)
            return replace(after, c=torch.zeros_like(after.c)), numbers

    more: dict[str, Any] = {"participation": 0.5, "cohort": cohort}
    ran = run(Stateless(), federation, **more)
    plain = run("fedavg", federation, {"weighting": "uniform"}, **more)
    torch.testing.assert_close(ran.servers[-1]["model"], plain.servers[-1]["model"], rtol=0, atol=1e-6)


# Other settings of the chapter, in every way of running

CLIPPED = {"epochs": 2, "batch_size": 8, "lr_decay": 0.9, "clip_norm": 0.5, "weight_decay": 0.01}
SWITCHES = [
    ("feddyn", {"clip": "replicate", "weighting": "samples", "served": "mean"}),
    ("scaffold", {"clip": "whole", "control_lr": "initial"}),
    ("fedsplit", {"server": "active", "relax": 0.5}),
]


@pytest.mark.parametrize(("name", "hyper"), SWITCHES, ids=["feddyn", "scaffold", "fedsplit"])
def test_loop_vmap_workers_and_a_resumed_run_agree(
    name: str, hyper: dict, federation: Federation, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = partial(prepare_run, name, federation, hyper, training=CLIPPED, participation=0.5)
    alike(start, tmp_path, monkeypatch, every=1, tolerance=1e-5)


# Traffic


@pytest.mark.parametrize("name", ALL)
def test_bytes_are_those_of_the_closed_formula(name: str) -> None:
    """Rounds x cohort x 4 x (down + up): 10 of 100 clients, 797,962 parameters, one image each."""
    x = torch.randn(100, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    examples = Examples(x, torch.arange(100) % 10)
    model = FlatModel(partial(build, "cnn_feddyn", (3, 32, 32), 10))
    clients = Federation(model, examples, examples, consecutive([1] * 100))
    assert model.size == 797_962
    ran = run(name, clients, rounds=2, participation=0.1, training={"epochs": 1, "batch_size": 1})
    sent = [down + up for down, up in zip(ran.values("bytes_down"), ran.values("bytes_up"))]
    each = 127_673_920 if name == "scaffold" else 63_836_960
    assert [len(report.cohort) for report in ran.rounds] == [10, 10]
    assert sent == [each, 2 * each]
    assert ran.values("bytes_down") == ran.values("bytes_up")
