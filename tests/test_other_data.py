"""What is no image, from an entry of params.yaml to results, record and report."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command import fedflow, recorded

from fedflow.metrics.predictions import by_client

PARAMS = """
data:
  mixture: {source: mixed_regression, clients: 8, dimension: 10, samples: 20}
  plays: {source: tinyshakespeare, length: 10, stride: 2}
  heart:
    source: table
    path: HERE/heart.csv
    target: disease
    user: hospital
    within: user
    dummies: [cp_1, cp_2]
  speech: {source: npz, path: HERE/speech.npz}
models:
  mixture: {name: linear, options: {bias: false, init: bernoulli}}
  plays: {name: char_lstm, options: {hidden: 8}}
  heart: logistic_one_logit
  speech: {name: m5, options: {base: 4}}
partitions:
  machines: {dataset: mixture, scheme: natural, groups: group}
  roles: {dataset: plays, scheme: natural}
  hospitals: {dataset: heart, scheme: natural}
  kept_back: {dataset: heart, scheme: natural, holdout: 0.2}
  speakers: {dataset: speech, scheme: natural, min_samples: 3, holdout: 0.2}
training: {epochs: 5, batch_size: 0, lr: 0.1}
run: {rounds: 12, participation: 1.0, evaluate_every: 4}
methods: {fedavg: {}, ifca: {clusters: 2}}
grid: {datasets: [mixture, plays], partitions: [machines, roles], methods: [fedavg, ifca], seeds: [0]}
engine: {executor: inline, device: cpu}
"""
PAGE = (Path(__file__).parents[1] / "docs" / "howto" / "tables.md").read_text().split("## Start from")[1]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("project")
    (folder / "params.yaml").write_text(PARAMS.replace("HERE", str(folder)))
    rng = np.random.default_rng(0)
    age, pressure, kind = rng.normal(50, 9, 200), rng.normal(130, 20, 200), rng.integers(3, size=200)
    heart = pd.DataFrame(
        {
            "hospital": np.repeat(["Basel", "Cleveland", "Budapest", "Long Beach"], [90, 60, 30, 20]),
            "age": age,
            "trestbps": pressure,
            "cp_1": kind == 1,
            "cp_2": kind == 2,
            "disease": ((age - 50) / 9 + (pressure - 130) / 20 + (kind == 2) > 0.3).astype(int),
        }
    )
    heart.to_csv(folder / "heart.csv", index=False)
    waves, words = rng.normal(size=(60, 1, 1100)).astype(np.float32), np.arange(60) % 3
    user = np.repeat([4, 7, 8, 9], [2, 20, 20, 18])
    np.savez(
        folder / "speech.npz",
        x_train=waves,
        y_train=words,
        user_train=user,
        x_test=waves[:3],
        y_test=words[:3],
        user_test=user[:3],
    )
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
    ("partition", "test_samples"), [("hospitals", [18, 6, 12, 4]), ("kept_back", [14, 5, 10, 3])]
)
def test_hospitals_of_a_table_are_clients(capsys, project: Path, partition: str, test_samples: list) -> None:
    """Test rows drawn in the table, or held out of its training rows, by the partition."""
    settings = (
        "--set",
        "training={epochs: 1, batch_size: 20, lr: 0.3}",
        "--set",
        "run={rounds: 25, participation: 1.0, keep_predictions: true}",
    )
    drawn = len(list((project / "mlruns").rglob("calibration/reliability.png")))
    done = fedflow(
        capsys, "run", "--root", project, "--partition", partition, "--method", "fedavg", *settings
    )
    assert (done.code, done.err) == (0, "")
    assert len(list((project / "mlruns").rglob("calibration/reliability.png"))) == drawn + 1
    (folder,) = (project / "runs" / partition / "fedavg").iterdir()
    clients = pd.read_parquet(folder / "clients.parquet")
    assert np.abs(clients["test_samples"] - test_samples).max() <= 1
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["clients"] == 4 and metrics["local_accuracy"] > 0.8
    areas = by_client(pd.read_parquet(folder / "predictions.parquet"), "auroc")
    assert areas.max() > 0.9


def test_the_use_of_every_column_is_printed_whenever_a_table_is_prepared(capsys, project: Path) -> None:
    for _ in range(2):
        done = fedflow(capsys, "prepare", "heart", "--root", project)
        words = "4 features: age, trestbps, cp_1, cp_2; target: disease (2 classes: 0, 1); user: hospital"
        assert done.code == 0 and words in done.out.splitlines()


def test_speakers_of_waves_are_clients(capsys, project: Path) -> None:
    """M5, with BatchNorm; the speaker of two clips is left out."""
    settings = ("--set", "training={epochs: 1, batch_size: 5, lr: 0.1}", "--set", "run.rounds=2")
    done = fedflow(
        capsys, "run", "--root", project, "--partition", "speakers", "--method", "fedavg", *settings
    )
    assert (done.code, done.err) == (0, "")
    (folder,) = (project / "runs" / "speakers" / "fedavg").iterdir()
    assert json.loads((folder / "metrics.json").read_text())["clients"] == 3


@pytest.mark.parametrize(
    ("partition", "network", "words"),
    [
        ("roles", "logistic", r"int32 inputs \[10\] and int64 targets \[\]"),
        ("roles", "stacked_lstm", r"int32 inputs \[10\] and int64 targets \[\]"),
        ("machines", "char_lstm", r"float32 inputs \[10\] and float32 targets \[\]"),
    ],
)
def test_a_network_for_other_data_is_refused_in_one_line(capsys, project, partition, network, words) -> None:
    dataset = {"roles": "plays", "machines": "mixture"}[partition]
    arguments = ("--partition", partition, "--method", "fedavg", "--set", f"models.{dataset}={network}")
    done = fedflow(capsys, "run", "--root", project, *arguments)
    assert done.code == 2 and done.err.count("\n") == 1
    assert re.search(f"model.name: '{network}' is not accepted; expected a network for {words}", done.err)


def test_tables_that_ship_inside_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The five sources on the page: errors are far below guesses of the top class or the mean target."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (code,), (params,) = (re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL) for kind in ("python", "yaml"))
    exec(compile(code, "tables.md", "exec"), {})
    (tmp_path / "params.yaml").write_text(f"{params}engine: {{executor: inline, device: cpu}}\n")
    found = {}
    for partition in re.findall(r"^  ([\w-]+): {dataset", params, re.M):
        done = fedflow(capsys, "run", "--partition", partition, "--method", "fedavg")
        assert done.code == 0, (partition, done.err)
        found[partition] = json.loads(
            (tmp_path / "results" / partition / "fedavg/0/metrics.json").read_text()
        )
    assert len(found) == 5
    for name, least in {"iris-iid": 0.8, "wine-iid": 0.9, "breast_cancer-dirichlet": 0.85}.items():
        assert found[name]["global_accuracy"] > least, name
    for name in ("diabetes", "boston"):
        variance = pd.read_csv(f"{name}.csv")["target"].var()
        assert found[f"{name}-iid"]["loss"] < 0.7 * variance, name


def test_a_relative_path_is_in_the_folder_of_params_yaml(tmp_path, capsys, monkeypatch):
    """Not in the working directory, also within a mix."""
    project, rng = tmp_path / "project", np.random.default_rng(0)
    project.mkdir()
    for folder, rows in ((project, 100), (tmp_path, 40)):
        for name in ("a.csv", "b.csv"):
            table = pd.DataFrame({"x": rng.normal(size=rows), "y": [0, 1] * (rows // 2)})
            table.to_csv(folder / name, index=False)
    entry = "{source: table, path: a.csv, test_path: b.csv, target: y}"
    mix = f"{{source: mix, parts: [{entry}]}}"
    sections = [
        f"data: {{d: {entry}, m: {mix}}}",
        "models: {d: mlp, m: mlp}",
        "partitions: {p: {dataset: d, scheme: iid, clients: 2}}",
        "grid: {datasets: [d], partitions: [p], methods: [fedavg], seeds: [0]}",
    ]
    (project / "params.yaml").write_text("\n".join(sections))
    monkeypatch.chdir(tmp_path)
    for name in ("d", "m"):
        assert fedflow(capsys, "prepare", name, "--root", "project").code == 0
        meta = json.loads((project / "data" / "prepared" / name / "meta.json").read_text())
        assert {split: shape[0] for split, shape in meta["shapes"].items()} == {"train": 100, "test": 100}
        assert sorted(meta["origin_files"]) == ["a.csv", "b.csv"]
    before = (project / "data" / "prepared" / "d" / "meta.json").read_bytes()
    monkeypatch.chdir(project)
    assert fedflow(capsys, "prepare", "d").code == 0
    assert (project / "data" / "prepared" / "d" / "meta.json").read_bytes() == before
