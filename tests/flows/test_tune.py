"""Tuning through the real server: tries are recorded, and the choice lands in params.yaml."""

import pandas as pd
import pytest
import yaml

from fedflow.config import load_params


@pytest.mark.full
def test_the_learning_rate_that_learns_is_chosen_and_used(api, root, mlflow_runs, seen):
    from flows.federate import federate
    from flows.tune import tune

    grid = "tuning={grid: {training.lr: [1.0e-06, 0.1]}, rounds: 2, widen: 0}"
    assert tune("digits-6", ["fedavg"], settings=[grid], root=str(root)) == {"fedavg": {"training.lr": 0.1}}
    recorded = seen("federate").flow_run.parameters
    settings, held_out = recorded["settings"], "digits-6-validation"
    assert (settings[0], settings[-1]) == (grid, "methods.fedavg.training.lr=0.1")
    again = load_params(root / "params.yaml", settings)  # the recorded try can be repeated
    assert again.partition(held_out).validation == 0.2
    assert (recorded["partition"], recorded["sweep"]) == (held_out, "tune")
    scores = pd.read_csv(root / "tuning" / "digits-6" / "fedavg.csv")
    assert scores["training.lr"].tolist() == [1e-6, 0.1]
    assert scores.accuracy.idxmax() == 1 and scores.chosen.tolist() == [False, True]
    tuned = yaml.safe_load((root / "params.yaml").read_text())["tuned"]
    assert tuned == {"digits-6": {"fedavg": {"training": {"lr": 0.1}}}}
    tried = [run.data.tags for run in mlflow_runs(root)]
    (parent,) = [tags for tags in tried if "fedflow.sweep" in tags]
    tried.remove(parent)
    assert {tags["partition"] for tags in tried} == {"digits-6-validation"}

    federate("digits-6", "fedavg", settings=["training.lr=1.0e-06", "run.rounds=1"], root=str(root))
    run = next(r for r in mlflow_runs(root) if r.data.tags.get("partition") == "digits-6")
    assert run.data.params["training.lr"] == "0.1"


def test_a_method_may_be_called_by_its_label(api, root, monkeypatch):
    """As in `fedflow tune` without a server."""
    import flows.tune

    monkeypatch.setattr(flows.tune, "choose_settings", lambda params, partition, run, methods, *_: methods)
    assert flows.tune.tune.fn("digits-6", ["FedAvg", "ditto"], root=str(root)) == ["FedAvg", "ditto"]
