"""A metric is a line of the table and its computation; diagnostics of a method need no line."""

import json
import re
import sqlite3

import pandas as pd
import pytest
from command import fedflow, make_project

from fedflow.metrics.table import DIAGNOSTICS, METRICS, NUMBER, SHARE, Metric, completed, recorded_name
from fedflow.simulation.loop import Simulation

VALUES = {"drift": (0.5, 0.125), "method/step": (2.0, 1.5), "client/alpha/mean": (0.25, 0.75)}


@pytest.fixture
def measured(monkeypatch):
    """A metric more in the table, and what a run measures of it and of a method that reports diagnostics."""
    about = {"rounds": True, "table": "fairness", "curves": ("round",), "headline": True}
    drift = Metric("drift", "Drift", "distance of a client's model", NUMBER, "lower", **about)
    monkeypatch.setitem(METRICS, "drift", drift)
    real = Simulation._round

    def measuring(self, t):
        report = real(self, t)
        report.values |= {name: values[t - 1] for name, values in VALUES.items()}
        return report

    monkeypatch.setattr(Simulation, "_round", measuring)


def test_a_line_and_a_value_reach_every_reader(measured, capsys, tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    root = make_project(tmp_path)
    done = fedflow(capsys, "run", "--root", root, "--partition", "skewed", "--method", "fedavg")
    assert (done.code, done.err) == (0, "")
    assert re.search(r"drift 0\.125\n", done.out) and "client/alpha" not in done.out
    folder = root / "results" / "skewed" / "fedavg" / "0"
    rounds = pd.read_csv(folder / "rounds.csv")
    assert list(rounds)[-4:] == ["drift", "failed", "client/alpha/mean", "method/step"]
    final = json.loads((folder / "metrics.json").read_text())
    with sqlite3.connect(root / "mlruns" / "mlflow.db") as store:
        query = "SELECT value FROM metrics WHERE key = ? ORDER BY step"
        recorded = {name: [row[0] for row in store.execute(query, [recorded_name(name)])] for name in VALUES}
    for name, values in VALUES.items():
        assert tuple(rounds[name]) == tuple(recorded[name]) == values and final[name] == values[-1]
    assert fedflow(capsys, "report", "--root", root).code == 0
    page = (root / "report" / "index.html").read_text()
    assert '<th scope="col" title="distance of a client&#39;s model">Drift</th>' in page
    assert 'data-sort="0.125"' in page and "<h4>Drift by round</h4>" in page
    assert "Diagnostics of FedAvg" in page and "In the last round: 1.5000" in page
    table = pd.read_csv(root / "report" / "fairness.csv").set_index("metric")
    assert table.loc["drift", "mean"] == pd.read_csv(root / "report" / "runs.csv")["drift"].item() == 0.125
    assert "drift" in pd.read_csv(root / "report" / "accuracy_curves.csv")


def test_reporting_models_are_columns_where_they_are_measured(capsys, tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    root = make_project(tmp_path)
    run = ("run", "--root", root, "--partition", "skewed", "--method", "fedavg", "--set")
    done = fedflow(capsys, *run, "run.reports=[all, server]")
    assert (done.code, done.err) == (0, "") and "all_accuracy 0." in done.out
    [folder] = (root / "runs" / "skewed" / "fedavg").iterdir()
    rounds, final = pd.read_csv(folder / "rounds.csv"), json.loads((folder / "metrics.json").read_text())
    with sqlite3.connect(root / "mlruns" / "mlflow.db") as store:
        recorded = {name for [name] in store.execute("SELECT DISTINCT key FROM metrics")}
    measured = {f"{name}_{what}" for name in ("all", "server") for what in ("accuracy", "loss")}
    for name in measured | {"global_loss", "gradients", "local_lowest"}:
        assert rounds[name].notna().all() and final[name] == pytest.approx(rounds[name].iloc[-1])
        assert recorded_name(name) in recorded
    assert rounds["participants"].tolist() == [3, 3] and "participants" not in final
    assert rounds["active_accuracy"].isna().all() and "active_accuracy" not in recorded | set(final)
    assert fedflow(capsys, "report", "--root", root).code == 0
    page = (root / "report" / "index.html").read_text()
    assert ">All-client mean, %<" in page and "<h4>All-client mean accuracy by traffic</h4>" in page
    assert ">Gap, points<" in page and ">Gradients, M<" in page
    assert ">Cohort mean, %<" not in page and "<h4>Cohort mean" not in page and ", loss<" not in page
    [line] = fedflow(capsys, *run, "run.sampling=sometimes").err.splitlines()
    assert line.endswith(
        "run.sampling: 'sometimes' is not accepted; "
        "expected one of bernoulli, easy_first, proportional, sweep, uniform"
    )


def test_prefect_shows_what_the_table_marks(measured):
    from fedflow.simulation.outcome import RoundReport
    from tasks.progress import evaluations, was_evaluated

    rounds = [
        RoundReport(5, values={"local_accuracy": 0.5, "bytes_up": 2_000_000, "drift": 0.5}),
        RoundReport(6, failed={1: "no"}, values={"local_accuracy": 0.75, "method/step": 1.5, "idle": 2.0}),
    ]
    regression = RoundReport(7, values={"train_loss": 2.0, "global_loss": 1.0})
    assert all(map(was_evaluated, [*rounds, regression])) and not was_evaluated(RoundReport(8))
    assert evaluations(rounds) == [
        {"round": 5, "Local, %": "50.0", "Up, MB": "2.0", "Drift": "0.5000", "method/step": "", "failed": 0},
        {"round": 6, "Local, %": "75.0", "Up, MB": "", "Drift": "", "method/step": "1.5000", "failed": 1},
    ]


def test_final_metrics_take_what_they_lack_from_the_last_round():
    last = {"idle": 1.0, "clock": 8.0, "local_accuracy": 0.5, "method/b": float("inf"), "client/a/min": 0.1}
    last |= {"level/train_loss/small": 2.0, "level/global_accuracy/small": 0.5}
    taken = {"client/a/min": 0.1, "clock": 8.0, "level/global_accuracy/small": 0.5, "method/b": None}
    assert completed({"local_accuracy": None}, last) == {"local_accuracy": None} | taken


def test_the_table_is_consistent():
    assert all(name == metric.name and not name.startswith(DIAGNOSTICS) for name, metric in METRICS.items())
    assert all(metric.table and metric.final for metric in METRICS.values() if metric.question)
    assert all(metric.rounds for metric in METRICS.values() if metric.curves)
    assert METRICS["local_accuracy"].unit is SHARE
