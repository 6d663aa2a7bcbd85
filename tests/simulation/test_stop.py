"""`run.stop_at`: where a run ends, what it leaves as it is, and which metrics are refused."""

import json
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from command import fedflow, make_project
from generating import blend
from support import Ran, follow, images, prepare_run, refused, reports, run, same, with_newcomers, with_pixels

from fedflow.claims.measures import parse
from fedflow.config import load_params
from fedflow.finished.collect import collect_runs
from fedflow.local.local_training import LocalTraining
from fedflow.methods import build_method
from fedflow.simulation.federation import Federation
from fedflow.simulation.settings import RunSettings, decisive
from fedflow.stages.experiment import Experiment
from fedflow.stages.tune import Search

SETTINGS = {"training": {"epochs": 1, "lr": 0.3, "lr_decay": 0.8}, "rounds": 8, "evaluate_every": 2}


def losses(ran: Ran) -> list[float]:
    return [report.values["train_loss"] for report in ran.rounds]


@pytest.mark.parametrize("method", ["fedavg", "superfed", "ditto", "ifca", "fedbuff"])
def test_a_run_ends_where_it_reaches_the_value_and_is_the_same_up_to_there(
    method: str, federation: Federation
) -> None:
    """SuperFed starts to mix after a share of the planned rounds, and the rate decays by round."""
    whole = run(method, federation, **SETTINGS)
    stop = {"metric": "train_loss", "value": losses(whole)[3]}
    at = next(t for t in (2, 4, 6, 8) if losses(whole)[t - 1] <= stop["value"])
    ran = run(method, federation, **SETTINGS, stop_at=stop)
    assert len(ran.rounds) == at < 8 and reports(ran) == reports(whole)[:at]
    assert same(ran.servers[-1], whole.servers[at - 1])
    metrics = ran.outcome().metrics
    assert (metrics["rounds"], metrics["stopped_in"]) == (at, at)
    assert metrics["bytes_up"] == ran.rounds[-1].values["bytes_up"]
    evaluated = ran.rounds[-1].values.get("local_accuracy")
    assert metrics["local_accuracy"] == evaluated  # the end scores the models of this round


def test_a_value_that_only_a_round_without_evaluation_reaches_ends_nothing(federation: Federation) -> None:
    settings = SETTINGS | {"evaluate_every": 3, "rounds": 4, "stop_at": {"metric": "train_loss", "value": 9}}
    ran = run("fedavg", federation, **settings)
    assert len(ran.rounds) == 3 and "round 3 of 4 reached run.stop_at: train_loss" in ran.simulation.stopped


def test_a_value_that_is_never_reached_ends_nothing(federation: Federation) -> None:
    ran = run("fedavg", federation, **SETTINGS, stop_at={"metric": "local_accuracy", "value": 1.0})
    assert len(ran.rounds) == 8 and ran.outcome().metrics["stopped_in"] is None and not ran.simulation.stopped
    assert "stopped_in" not in run("fedavg", federation, **SETTINGS).outcome().metrics


@pytest.mark.parametrize("interrupted", [1, 3, 4])
def test_a_resumed_run_ends_in_the_same_round(
    interrupted: int, federation: Federation, tmp_path: Path
) -> None:
    whole = run("scaffold", federation, **SETTINGS)
    settings = SETTINGS | {
        "stop_at": {"metric": "train_loss", "value": losses(whole)[3]},
        "checkpoint_every": 1,
        "checkpoints": tmp_path,
    }
    list(islice(prepare_run("scaffold", federation, **settings).rounds(), interrupted))
    resumed = follow(prepare_run("scaffold", federation, **settings))
    assert [report.replayed for report in resumed.rounds].count(True) == interrupted
    assert reports(resumed) == reports(whole)[:4] and resumed.outcome().metrics["stopped_in"] == 4
    assert resumed.simulation.done == 4


def test_the_end_is_in_the_checkpoint_of_a_run_that_saves_rarely(
    federation: Federation, tmp_path: Path
) -> None:
    stop = {"metric": "train_loss", "value": 100.0}
    settings = SETTINGS | {"stop_at": stop, "checkpoint_every": 5, "checkpoints": tmp_path}
    first = run("fedavg", federation, **settings)
    again = prepare_run("fedavg", federation, **settings)
    assert all(report.replayed for report in again.rounds()) and again.done == len(first.rounds) == 2


def test_newcomers_and_images_are_those_of_the_last_round(federation: Federation, digits) -> None:
    ran = run(
        "fedavg", with_newcomers(federation, 2), **SETTINGS, stop_at={"metric": "train_loss", "value": 9}
    )
    metrics = ran.outcome().metrics
    assert len(ran.rounds) == 2 and metrics["newcomers"] == 2
    short = run("fedavg", with_newcomers(federation, 2), **SETTINGS | {"rounds": 2})
    assert metrics["newcomer_accuracy"] == short.outcome().metrics["newcomer_accuracy"]
    generating = with_pixels(images(digits))
    ran = run(blend(), generating, rounds=6, evaluate_every=2, stop_at={"metric": "fid", "value": 1e9})
    assert len(ran.rounds) == 2 and {"fid_floor", "real_accuracy"} <= ran.outcome().metrics.keys()


REFUSED = {
    "accuracy": ("metric", 0.9, r"'accuracy' .* expected one of"),
    "bytes_up": ("metric", 1e6, "'bytes_up' is not accepted"),  # no direction
    "clock": ("metric", 1e6, "'clock' is not accepted"),  # time only grows
    "tuned_accuracy": ("metric", 0.9, "'tuned_accuracy' is not accepted"),  # not in rounds
    "all_accuracy": ("metric", 0.9, r"set run.reports: \[all\]"),
    "proto_accuracy": ("metric", 0.9, r"set run.adapt: \[proto\]"),
    "local_accuracy": ("value", 90, "90.0 is not accepted; expected a number from 0 to 1"),
}


@pytest.mark.parametrize("metric", REFUSED)
def test_a_metric_that_a_run_does_not_record_is_refused(metric: str) -> None:
    field, value, words = REFUSED[metric]
    with refused(rf"^run.stop_at.{field}: .*{words}"):
        RunSettings.parse({"stop_at": {"metric": metric, "value": value}})


def test_a_metric_that_a_method_or_the_data_do_not_have_is_refused(federation: Federation) -> None:
    with refused("^run.stop_at.metric: 'global_accuracy' .* another metric with ditto"):
        prepare_run("ditto", federation, stop_at={"metric": "global_accuracy", "value": 0.9})
    ran = prepare_run("fedavg", federation, **SETTINGS, stop_at={"metric": "ari", "value": 0.9})
    with refused("^run.stop_at.metric: 'ari' .* expected one of global_accuracy, .*local_accuracy"):
        list(ran.rounds())
    diverged = prepare_run("fedavg", federation, **SETTINGS, stop_at={"metric": "global_loss", "value": 0.1})
    diverged.federation.test.x[:] = np.nan
    assert len(list(diverged.rounds())) == 8  # measured, although no number


def test_settings_without_a_stop_have_the_digest_of_earlier_versions() -> None:
    method, training = build_method("fedavg"), LocalTraining.parse({})
    plain = decisive(method, training, RunSettings())["run"]
    stop = {"metric": "local_accuracy", "value": 0.9}
    assert "stop_at" not in plain
    assert decisive(method, training, RunSettings.parse({"stop_at": stop}))["run"] == plain | {
        "stop_at": stop
    }


PARAMS = """
data: {digits: {source: digits}}
models: {digits: {name: mlp, options: {hidden: [16]}}}
partitions: {even: {dataset: digits, scheme: iid, clients: 4}}
training: {epochs: 2, batch_size: 16, lr: 0.1}
run: {rounds: 9, participation: 1.0, evaluate_every: 1, fine_tune: false,
  stop_at: {metric: local_accuracy, value: 0.8}}
methods: {fedavg: {}, fedprox: {run: {stop_at: {value: 0.85}}}, ditto: {run: {stop_at: null}}}
procedures: {coreset: {picks: 2, stop_at: {metric: loss, value: 1}}}
grid: {datasets: [digits], partitions: [even], methods: [fedavg, fedprox], seeds: [0]}
engine: {executor: inline, device: cpu}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = PARAMS.replace(", stop_at: {metric: loss, value: 1}", "")
    return make_project(tmp_path_factory.mktemp("stop") / "project", text)


def test_terminal_record_measures_and_report_show_the_stop(project: Path, capsys) -> None:
    said = fedflow(capsys, "run", "--partition", "even", "--method", "fedavg", "--root", project)
    assert said.code == 0, said.err
    facts = json.loads((project / "results/even/fedavg/0/metrics.json").read_text())
    t = facts["stopped_in"]
    assert t == facts["rounds"] < 9 and f"round {t} of 9 reached run.stop_at: local_accuracy 0." in said.out
    assert f"stopped_in {t}, " in said.out
    (found,) = collect_runs(project / "results")
    assert found.params["run"]["stop_at"] == {"metric": "local_accuracy", "value": 0.8}
    reached = parse("rounds_to(local_accuracy, 0.8)")
    assert reached.of(found) == t and reached.least(found) is None
    beyond = parse("rounds_to(local_accuracy, 0.99)")
    assert beyond.of(found) is None and beyond.least(found) == t  # at least as many
    assert fedflow(capsys, "report", "--root", project).code == 0
    page = (project / "report" / "index.html").read_text()
    assert f"{t} rounds, at most 9, until local_accuracy 0.8" in page and "Stopped in round" in page
    again = fedflow(capsys, "sweep", "--set", "grid.methods=[fedavg]", "--dry-run", "--root", project)
    assert "0 of 1 runs to do" in again.out


def test_methods_have_their_own_stop_and_tries_of_tuning_have_none(project: Path) -> None:
    params = load_params(project / "params.yaml")
    assert [params.run_of(m).stop_at and params.run_of(m).stop_at.value for m in params.methods] == [
        0.8, 0.85, None,
    ]  # fmt: skip
    plain, other = (Experiment(params, "even", method, 0).effective["run"] for method in ("fedavg", "ditto"))
    assert "stop_at" in plain and "stop_at" not in other
    tried = Search(params, "even", "fedavg", project).experiment({"training.lr": 0.1})
    assert tried.run.stop_at is None and tried.run.rounds == 9


def test_a_procedure_has_no_stop(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text(PARAMS)
    with refused("^procedures.coreset.stop_at: "):
        load_params(tmp_path / "params.yaml").procedure("coreset")
