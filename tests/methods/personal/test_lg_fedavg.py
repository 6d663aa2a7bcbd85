"""LG-FedAvg on the test-bed T2, its neighbors FedAvg and Local, its two phases, and the shared layers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import (
    Workers,
    failing,
    near,
    prepare_run,
    products,
    refused,
    run,
    same,
    with_cohorts,
    with_newcomers,
)

from fedflow.methods import build_method
from fedflow.models import build
from fedflow.models.flat import FlatModel
from fedflow.simulation.federation import Federation

HALF: dict[str, Any] = {
    "training": {"epochs": 2, "batch_size": 8, "lr": 0.1, "momentum": 0.5},
    "participation": 0.5,
}


def test_lg_fedavg(cohort: str) -> None:
    ran = run("lg_fedavg", products(), rounds=2, cohort=cohort)
    assert ran.server("head") == near([0.7410921875, 0.9363029393])
    assert ran.kept("body") == near([[1.04899375, 1.15958125], [1.0796703112, 1.3238897478]])


def test_sharing_everything_is_fedavg(federation: Federation, cohort: str) -> None:
    shared = run("lg_fedavg", federation, {"shared": ["*"]}, cohort=cohort, **HALF)
    plain = run("fedavg", federation, cohort=cohort, **HALF)
    assert torch.equal(shared.servers[-1]["head"], plain.servers[-1]["model"])


def test_sharing_nothing_is_local(federation: Federation, cohort: str) -> None:
    private = run("lg_fedavg", federation, {"shared": []}, cohort=cohort, **HALF)
    local = run("local", federation, cohort=cohort, **HALF)
    assert all(map(torch.equal, private.clients[-1]["body"], local.clients[-1]["model"]))
    assert private.values("bytes_down")[-1] == private.values("bytes_up")[-1] == 0


def test_the_first_phase_is_fedavg(federation: Federation, cohort: str) -> None:
    """Then the heads alone are averaged, and bodies stay with the clients."""
    ran = run("lg_fedavg", federation, {"fedavg": 0.5}, cohort=cohort, rounds=4, evaluate_every=1, **HALF)
    plain = run("fedavg", federation, cohort=cohort, rounds=4, evaluate_every=1, **HALF)
    for name in ("local_accuracy", "train_loss", "bytes_up", "bytes_down"):
        assert ran.values(name)[:2] == plain.values(name)[:2]
    part = federation.model.part(*federation.model.shared_patterns)
    second, last = ran.servers[1], ran.servers[3]
    assert torch.equal(part.join(second["head"], second["body"]), plain.servers[1]["model"])
    assert torch.equal(last["body"], second["body"]) and not torch.equal(last["head"], second["head"])
    took_part = {k for report in ran.rounds[2:] for k in report.cohort}
    assert last["informed"].nonzero().squeeze(1).tolist() == sorted(took_part)
    for k, body in enumerate(ran.clients[3]["body"]):
        assert torch.equal(body, ran.clients[1]["body"][k]) is (k not in took_part)


def test_a_client_receives_the_body_once_after_the_switch(federation: Federation, cohort: str) -> None:
    """Bytes of a run: the whole model in the first phase, then the head, and the body where it is missing."""
    method = with_cohorts(build_method("lg_fedavg", {"fedavg": 0.25}), [[0, 1], [0, 2], [0, 1], [2, 1]])
    ran = run(method, federation, cohort=cohort, rounds=4, **HALF)
    head, whole = 4 * len(ran.servers[0]["head"]), 4 * federation.model.size
    assert ran.values("bytes_down") == [2 * whole, 4 * whole, 5 * whole + head, 5 * whole + 3 * head]
    assert ran.values("bytes_up") == [
        2 * whole,
        2 * whole + 2 * head,
        2 * whole + 4 * head,
        2 * whole + 6 * head,
    ]
    formula = method.published_bytes(federation.model, 4, 2)
    once = 3 * (whole - head)  # what published costs leave out: clients 0, 1 and 2 receive the body
    assert ran.values("bytes_down")[-1] + ran.values("bytes_up")[-1] == formula + once


def test_both_phases_resume(federation: Federation, tmp_path: Path) -> None:
    """From a checkpoint before, at and after the switch, with other workers; newcomers get the body."""
    settings: dict[str, Any] = {"rounds": 4, "checkpoint_every": 1, "evaluate_every": 1, **HALF}
    joined = with_newcomers(federation, 2)
    whole = run("lg_fedavg", joined, {"fedavg": 0.5}, **settings)
    for stop in (1, 2, 3):
        first = prepare_run(
            "lg_fedavg", joined, {"fedavg": 0.5}, checkpoints=tmp_path / str(stop), **settings
        )
        for report in first.rounds():
            if report.round == stop:
                break
        again = run(
            "lg_fedavg",
            joined,
            {"fedavg": 0.5},
            checkpoints=tmp_path / str(stop),
            executor=Workers(3),
            **settings,
        )
        assert [report.replayed for report in again.rounds].count(True) == stop
        assert same(again.state(), whole.state())
        assert again.outcome().metrics == whole.outcome().metrics


def test_the_last_round_of_fedavg_may_fail(federation: Federation) -> None:
    """The body is still sent once, and clients keep their own from then on."""
    settings = HALF | {"participation": 1.0, "rounds": 4}
    with pytest.warns(UserWarning, match="every client failed"):
        ran = run(failing("lg_fedavg", 2, fedavg=0.5), federation, **settings)
    down = np.diff(ran.values("bytes_down"))
    assert down[1] == down[0] > down[2]  # rounds 3, 2 and 4
    assert same({"body": ran.servers[3]["body"]}, {"body": ran.servers[0]["body"]})
    assert not torch.equal(ran.clients[3]["body"][0], ran.clients[2]["body"][0])


@pytest.mark.parametrize("share", [0.1, 0.95])
def test_a_phase_without_a_round_is_refused(federation: Federation, share: float) -> None:
    with refused(rf"method\.fedavg: {share} .* 0, or a share that leaves a round of each phase in 4 rounds"):
        prepare_run("lg_fedavg", federation, {"fedavg": share}, rounds=4)


def test_all_or_nothing_shared_in_two_phases(federation: Federation) -> None:
    """All shared is FedAvg to the end; with nothing shared, clients train alone from the model of FedAvg."""
    plain = run("fedavg", federation, rounds=4, **HALF)
    shared = run("lg_fedavg", federation, {"shared": ["*"], "fedavg": 0.5}, rounds=4, **HALF)
    assert torch.equal(shared.servers[-1]["head"], plain.servers[-1]["model"])
    assert shared.values("bytes_down") == plain.values("bytes_down")
    private = run("lg_fedavg", federation, {"shared": [], "fedavg": 0.5}, rounds=4, **HALF)
    assert torch.equal(private.servers[-1]["body"], plain.servers[1]["model"])
    assert private.values("bytes_up")[1:] == [private.values("bytes_up")[1]] * 3


@pytest.mark.parametrize(
    ("network", "shape", "classes", "options", "parameters"),
    [
        ("lenet5", (3, 32, 32), 10, {}, 11_014),
        ("lenet5_bn", (3, 32, 32), 10, {}, 11_014),
        ("resnet9", (3, 32, 32), 100, {}, 1_024 + 51_300),
        ("cnn_mnist", (1, 28, 28), 10, {}, 21_840 - 5_280),
        ("cnn_feddyn", (3, 32, 32), 10, {}, 385 * 192 + 193 * 10),
        ("cnn", (1, 28, 28), 10, {"hidden": ()}, 10_250),
        ("mlp", (1, 28, 28), 10, {}, 2_010),
        ("mlp", (1, 28, 28), 10, {"hidden": (200, 50), "dropout": 0.5}, 201 * 50 + 51 * 10),
        ("twonn", (1, 28, 28), 10, {}, 200 * 200 + 2_000),
        ("logistic", (1, 28, 28), 10, {}, 7_850),
    ],
)
def test_the_layers_shared_by_default(
    network: str, shape: tuple[int, ...], classes: int, options: dict, parameters: int
) -> None:
    """The published counts: 11,014 of LeNet-5, 52,324 of ResNet-9, all but 5,280 of the MNIST CNN."""
    model = FlatModel(lambda: build(network, shape, classes, **options))
    assert len(model.part(*model.shared_patterns).index) == parameters


def test_parts_are_made_once() -> None:
    model = FlatModel(lambda: build("lenet5", (3, 32, 32), 10))
    assert model.part("fc3.*") is model.head()
    assert model.part("fc2.*") is not model.head()
