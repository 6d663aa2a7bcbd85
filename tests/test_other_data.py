"""What is no image, from one line of params.yaml to results, record and report."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from command import fedflow, recorded

PARAMS = """
data:
  mixture: {source: mixed_regression, clients: 8, dimension: 10, samples: 20}
  plays: {source: tinyshakespeare, length: 10, stride: 2}
models:
  mixture: {name: linear, options: {bias: false, init: bernoulli}}
  plays: {name: char_lstm, options: {hidden: 8}}
partitions:
  machines: {dataset: mixture, scheme: natural, groups: group}
  roles: {dataset: plays, scheme: natural}
training: {epochs: 5, batch_size: 0, lr: 0.1}
run: {rounds: 12, participation: 1.0, evaluate_every: 4}
methods: {fedavg: {}, ifca: {clusters: 2}}
grid: {datasets: [mixture, plays], partitions: [machines, roles], methods: [fedavg], seeds: [0]}
engine: {executor: inline, device: cpu}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("project")
    (folder / "params.yaml").write_text(PARAMS)
    speech = "the quick brown fox jumps over the lazy dog\n" * 2
    (folder / "tinyshakespeare.txt").write_text(f"ANNA:\n{speech}\nBOB:\n{speech}")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.setenv("FEDFLOW_DATA", str(folder))
        yield folder


def test_a_mixture_of_regressions_is_run_recorded_and_reported(capsys, project: Path) -> None:
    losses, arguments = {}, ("--root", project, "--partition", "machines", "--method")
    for method in "fedavg", "ifca":
        done = fedflow(capsys, "run", *arguments, method)
        assert (done.code, done.err) == (0, "") and "loss " in done.out
        folder = project / "results" / "machines" / method / "0"
        metrics = json.loads((folder / "metrics.json").read_text())
        assert metrics["local_accuracy"] is metrics["global_accuracy"] is metrics["tuned_accuracy"] is None
        losses[method] = metrics["loss"]
        rounds = pd.read_csv(folder / "rounds.csv")
        assert rounds["train_loss"].iloc[-1] < rounds["train_loss"].iloc[0] / 2
    assert metrics["ari"] == 1 and losses["ifca"] < 0.1 * losses["fedavg"]
    assert [run[2] for run in recorded(project / "mlruns" / "mlflow.db")["runs"]] == ["FINISHED"] * 2
    assert fedflow(capsys, "report", "--root", project).code == 0
    assert "Smallest loss of the clients" in (project / "report" / "index.html").read_text()


def test_roles_of_plays_are_clients(capsys, project: Path) -> None:
    done = fedflow(capsys, "run", "--root", project, "--partition", "roles", "--method", "fedavg")
    assert (done.code, done.err) == (0, "")
    folder = project / "results" / "roles" / "fedavg" / "0"
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["clients"] == 2 and 0 <= metrics["local_accuracy"] <= 1
    rounds = pd.read_csv(folder / "rounds.csv")
    assert rounds["train_loss"].iloc[-1] < rounds["train_loss"].iloc[0]


@pytest.mark.parametrize(
    ("partition", "network", "words"),
    [
        ("roles", "logistic", r"int32 inputs \[10\] and int64 targets \[\]"),
        ("roles", "stacked_lstm", r"int32 inputs \[10\] and int64 targets \[\]"),
        ("machines", "char_lstm", r"float32 inputs \[10\] and float32 targets \[\]"),
        ("machines", "logistic", r"float32 inputs \[10\] and float32 targets \[\]"),
    ],
)
def test_a_network_for_other_data_is_refused_in_one_line(capsys, project, partition, network, words) -> None:
    dataset = {"roles": "plays", "machines": "mixture"}[partition]
    arguments = ("--partition", partition, "--method", "fedavg", "--set", f"models.{dataset}={network}")
    done = fedflow(capsys, "run", "--root", project, *arguments)
    assert done.code == 2 and done.err.count("\n") == 1
    assert re.search(f"model.name: '{network}' is not accepted; expected a network for {words}", done.err)
