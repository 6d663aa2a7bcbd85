"""The models of `run.reports`: the one that is broadcast, and means of trained ones."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import Ran, Workers, follow, prepare_run, refused, run
from torch import Tensor, nn

from fedflow.data import Examples
from fedflow.local.client import Client, Update
from fedflow.methods import build_method
from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.methods.method import GlobalModel, Message, Round
from fedflow.methods.protocols import Weighted
from fedflow.simulation.extensions.trained_means import TrainedMeans
from fedflow.simulation.federation import Federation
from fedflow.simulation.loop import Simulation

SGD = {"epochs": 2, "batch_size": 8, "lr": 0.1}
SETTINGS: dict[str, Any] = {
    "training": SGD,
    "participation": 0.4,
    "rounds": 5,
    "evaluate_every": 1,
    "reports": ["all", "server", "active"],
}
UNIFORM = {"weighting": "uniform"}


def means(simulation: Simulation) -> list[dict[str, Tensor]]:
    """The means after every round that is not replayed."""
    model = simulation.federation.model
    rounds = (report for report in simulation.rounds() if not report.replayed)
    return [simulation.extension(TrainedMeans).models(model.dtype) for _ in rounds]


def exact_mean(rows: list[Tensor], weights: list[int]) -> Tensor:
    """The weighted mean of float32 vectors, rounded once to float64, then divided."""
    weighted = [[n * x for x in row.double().tolist()] for n, row in zip(weights, rows)]
    sums = [math.fsum(column) for column in zip(*weighted)]
    return (torch.tensor(sums, dtype=torch.float64) / sum(weights)).float()


@pytest.mark.parametrize(
    ("name", "hyper", "by_samples", "sampling"),
    [
        ("fedavg", {}, True, "uniform"),
        ("fedavg", UNIFORM, False, "bernoulli"),
        ("scaffold", {}, False, "sweep"),
        ("feddyn", {}, False, "bernoulli"),
        ("fedcluster", {}, True, "uniform"),
        ("fedbuff", {}, False, "uniform"),
    ],
)
def test_means_are_those_of_the_kept_models_to_the_bit(
    federation: Federation, name: str, hyper: dict, by_samples: bool, sampling: str, cohort: str
) -> None:
    """SCAFFOLD uploads differences, FedBuff stale ones; in FedCluster two cohorts make a round."""
    simulation = prepare_run(name, federation, hyper, sampling=sampling, cohort=cohort, **SETTINGS)
    sizes = federation.partition.sizes.tolist() if by_samples else [1] * 8
    trained = []
    for report in simulation.rounds():
        rows = [simulation.state.store.get(k, ["trained"])["trained"] for k in range(8)]
        found = simulation.extension(TrainedMeans).models(torch.float32)
        assert torch.equal(found["all"], exact_mean(rows, sizes))
        active = [rows[k] for k in report.cohort], [sizes[k] for k in report.cohort]
        assert torch.equal(found["active"], exact_mean(*active))
        trained.append(np.count_nonzero(simulation.state.participations))
    assert len(trained) == 5 and trained[0] < 8  # at first, some have the initial model


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "feddyn"])
def test_means_do_not_depend_on_workers_or_on_a_kill(
    federation: Federation, name: str, tmp_path: Path
) -> None:
    settings = SETTINGS | {"sampling": "bernoulli", "checkpoint_every": 2}
    straight = prepare_run(name, federation, **settings)
    expected = means(straight)
    for workers in (2, 4):
        shared = prepare_run(name, federation, executor=Workers(workers), **settings)
        assert_same(means(shared), expected)
        assert values(shared) == values(straight)
    for stop in range(1, 5):
        folder = tmp_path / str(stop)
        killed = prepare_run(name, federation, checkpoints=folder, **settings).rounds()
        for _ in range(stop):
            next(killed)
        again = prepare_run(name, federation, checkpoints=folder, **settings)
        assert_same(means(again), expected[stop // 2 * 2 :])
        assert values(again) == values(straight)


def assert_same(found: list[dict[str, Tensor]], expected: list[dict[str, Tensor]]) -> None:
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected):
        assert one.keys() == other.keys() == {"active", "all"}
        assert all(torch.equal(one[name], other[name]) for name in one)


def values(simulation: Simulation) -> list[dict[str, float]]:
    return [report.values for report in simulation.state.history]


def test_a_client_that_fails_keeps_its_model(federation: Federation) -> None:
    """Client 4 fails from the third round on."""
    simulation = prepare_run("fedavg", federation, **SETTINGS | {"participation": 1.0})
    rounds = simulation.rounds()
    next(rounds), next(rounds)
    second = simulation.state.store.get(4, ["trained"])["trained"].clone()
    x = federation.train.x.clone()
    x[torch.as_tensor(federation.partition.train(4))] = torch.nan
    spoiled = replace(federation, train=Examples(x, federation.train.y))
    simulation.job = replace(simulation.job, federation=spoiled)
    sizes = federation.partition.sizes.tolist()
    for report in rounds:
        rows = [simulation.state.store.get(k, ["trained"])["trained"] for k in range(8)]
        assert list(report.failed) == [4] and torch.equal(rows[4], second)
        found = simulation.extension(TrainedMeans).models(torch.float32)
        assert torch.equal(found["all"], exact_mean(rows, sizes))
        assert torch.equal(found["active"], exact_mean(rows[:4] + rows[5:], sizes[:4] + sizes[5:]))
        assert torch.equal(found["active"], simulation.state.server.model)


def test_the_broadcast_model_is_the_mean_of_the_cohort_in_fedavg_and_not_in_feddyn(
    federation: Federation,
) -> None:
    everyone = SETTINGS | {"participation": 1.0}
    for hyper in ({}, UNIFORM):
        averaged = prepare_run("fedavg", federation, hyper, **everyone)
        for report in averaged.rounds():
            found = averaged.extension(TrainedMeans).models(torch.float32)
            assert torch.equal(found["active"], averaged.state.server.model)
            assert torch.equal(found["active"], found["all"])
            for what in ("accuracy", "loss"):
                assert len({report.values[f"{name}_{what}"] for name in ("server", "active", "all")}) == 1
            assert report.values["server_loss"] == report.values["global_loss"]
    dynamic = prepare_run("feddyn", federation, **SETTINGS)
    for report in dynamic.rounds():
        found, server = dynamic.extension(TrainedMeans).models(torch.float32), dynamic.state.server
        assert torch.equal(found["active"], server.mean) and not torch.equal(found["active"], server.model)
        assert len({report.values[f"{name}_loss"] for name in ("server", "active", "all")}) == 3


@pytest.mark.filterwarnings("ignore:superfed. mixing starts in round 1")
@pytest.mark.parametrize("name", ["superfed", "apfl", "ditto", "pfedme", "l2gd"])
def test_means_are_global_models_where_a_personal_method_serves_its_global_one(
    federation: Federation, name: str, cohort: str
) -> None:
    """They are what the clients sent, not what they keep."""
    reports = ["active", "all"]
    settings = SETTINGS | {"participation": 1.0, "rounds": 2, "reports": reports}
    simulation = prepare_run(name, federation, {"served": "global"}, cohort=cohort, **settings)
    for report in simulation.rounds():
        found, server = (
            simulation.extension(TrainedMeans).models(torch.float32),
            simulation.state.server.tensors(),
        )
        sent = server["mean" if name == "l2gd" else "model"]
        assert torch.equal(found["active"], sent) and torch.equal(found["all"], sent)
        assert {report.values[f"{of}_loss"] for of in reports} == {report.values["global_loss"]}


def test_reporting_models_are_scored_on_the_complete_test_set(federation: Federation) -> None:
    """In the rounds that are evaluated."""
    settings = SETTINGS | {"evaluate_every": 2, "rounds": 3}
    simulation = prepare_run("feddyn", federation, {"served": "mean"}, **settings)
    ran = follow(simulation)
    assert ran.values("all_loss")[0] is None and ran.values("all_loss")[1] is not None
    models = simulation.extension(TrainedMeans).models(torch.float32) | {
        "server": simulation.state.server.model
    }
    for name, w in models.items():
        with torch.no_grad():
            outputs, y = federation.model.to_module(w)(federation.test.x), federation.test.y
        accuracy = float((outputs.argmax(-1) == y).double().mean())
        assert ran.rounds[-1].values[f"{name}_accuracy"] == accuracy
        loss = float(nn.functional.cross_entropy(outputs, y))
        assert ran.rounds[-1].values[f"{name}_loss"] == pytest.approx(loss, abs=1e-5)
    assert ran.rounds[-1].values["global_loss"] == pytest.approx(ran.values("active_loss")[-1])


def test_a_loss_that_is_not_finite_is_null_in_the_final_metrics(federation: Federation) -> None:
    """Like the others: a number that is absent was not asked for."""
    x = federation.test.x.clone()
    x[0] = math.nan
    spoilt = replace(federation, test=Examples(x, federation.test.y))
    metrics = run("fedavg", spoilt, rounds=1, reports=["all"]).outcome().metrics
    assert metrics["all_loss"] is metrics["global_loss"] is None and metrics["all_accuracy"] > 0


def test_reports_change_no_result_and_cost_nothing_when_off(federation: Federation, tmp_path: Path) -> None:
    def state(ran: Ran) -> dict[str, Tensor]:
        return {name: w for name, w in ran.state().items() if name != "clients/trained"}

    plain = run("scaffold", federation, checkpoints=tmp_path / "plain", **SETTINGS | {"reports": []})
    for reports, kept in ((["server"], False), (["active"], False), (["all"], True)):
        ran = run(
            "scaffold", federation, checkpoints=tmp_path / reports[0], **SETTINGS | {"reports": reports}
        )
        assert state(ran).keys() == state(plain).keys()
        assert all(torch.equal(w, state(plain)[name]) for name, w in state(ran).items())
        assert ("trained" in ran.simulation.state.store.first) == kept
        more = ran.rounds[-1].values.keys() - plain.rounds[-1].values.keys()
        assert more == {f"{reports[0]}_accuracy", f"{reports[0]}_loss"}
        assert ran.outcome().metrics["local_final_accuracy"] is None
    assert not plain.simulation.job.keep_trained
    tensors, _ = plain.simulation.state.packed(torch.device("cpu"))
    assert not [name for name in tensors if "means" in name or "trained" in name]


@pytest.mark.parametrize("name", ["ifca", "ditto", "local", "fedper"])
def test_reports_need_one_global_model(federation: Federation, name: str) -> None:
    with refused(rf"^run\.reports: \['all'\] .* \[\] with {name}, whose clients do not train one common"):
        prepare_run(name, federation, reports=["all"])


class Silent(FedAvg):
    """Broadcasts its model under another name."""

    def broadcast(self, now: Round, server: GlobalModel, client: int) -> Message:
        return {"w": server.model}

    def local(self, client: Client) -> Update:
        return client.update(model=client.fit(start=client.received["w"]))

    def model_for(self, client: Client) -> Tensor:
        return client.received["w"]


class Untrained(FedAvg):
    """Sends a step that it computes itself."""

    def local(self, client: Client) -> Update:
        w = client.received["model"]
        return client.update(model=w - 0.1 * client.full_gradient(w))


def test_a_model_that_does_not_exist_is_refused_in_one_line(federation: Federation) -> None:
    for reports, message in (
        (["server", "server"], "run.reports: .* every name once"),
        (["mean"], r"run.reports\[0\]: 'mean' .* active, all, server"),
        ("all", "run.reports: 'all' "),
    ):
        with refused(message):
            prepare_run("fedavg", federation, reports=reports)
    with refused(r"run.reports: .* \[active, all\] with .*, which does not broadcast a `model`"):
        run(Silent(), federation, reports=["server"])
    assert "all_loss" in run(Silent(), federation, reports=["all"]).rounds[-1].values
    with refused(
        r"^run.reports, run.adapt_from: \['all'\] .* \[\] or \[server\], and served: .* train no model"
    ):
        run(Untrained(), federation, reports=["all"])
    weighs = [Weighted.of(build_method(name)).weighs_samples() for name in ("fedavg", "scaffold", "feddyn")]
    assert weighs == [True, False, False]
