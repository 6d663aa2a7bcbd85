"""Flows over many runs."""

import re
from pathlib import Path
from typing import Any

import pytest
from support import refused

from fedflow.errors import FedflowError
from fedflow.methods.personal.ditto import Ditto
from fedflow.stages.driver import Busy


def test_a_sweep_lists_its_runs_under_one_parent(api, root, mlflow_runs, seen):
    from flows.sweep import sweep

    metrics = sweep(root=str(root), name="both", settings=["run.rounds=1"])
    assert [m["method"] for m in metrics] == ["fedavg", "ditto"]
    runs = mlflow_runs(root)
    parent = next(run for run in runs if "mlflow.parentRunId" not in run.data.tags)
    children = [run for run in runs if run is not parent]
    assert parent.info.run_name == "both"
    assert parent.data.params["grid.methods"] == '["fedavg", "ditto"]'
    assert sorted(run.data.tags["method"] for run in children) == ["ditto", "fedavg"]
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parent.info.run_id}
    assert [(a.key, a.type) for a in seen("sweep").artifacts] == [("both-comparison", "table")]


def test_a_cell_that_raises_does_not_end_the_others(api, root, monkeypatch, mlflow_runs):
    from flows.sweep import sweep

    def aggregate(*_):
        raise RuntimeError("a mistake in a method")

    monkeypatch.setattr(Ditto, "aggregate", aggregate)
    with refused("^1 of 2 runs failed: digits-6 · ditto · seed 0$", FedflowError):
        sweep(root=str(root), name="both", settings=["run.rounds=1", "training.momentum=0.3"])
    ends = {
        run.data.tags["method"]: run.info.status for run in mlflow_runs(root) if "method" in run.data.tags
    }
    assert ends == {"ditto": "FAILED", "fedavg": "FINISHED"}


def test_cells_that_another_process_runs_come_last(api, root, monkeypatch):
    from flows import sweep as flow

    federate, methods = flow.federate, list[str]()

    def busy_at_first(*, method: str, **parameters: Any) -> dict[str, Any]:
        methods.append(method)
        if methods == ["fedavg"]:
            raise Busy("already running in another process")
        return federate(method=method, **parameters)

    monkeypatch.setattr(flow, "federate", busy_at_first)
    flow.sweep(root=str(root), name="both", settings=["run.rounds=1"])
    assert methods == ["fedavg", "ditto", "fedavg"]


@pytest.mark.full
def test_names_with_dots_and_capitals_have_pages_too(api, root, seen):
    from flows.sweep import sweep

    file = root / "params.yaml"
    file.write_text(file.read_text().replace("digits-6", "My.part_6"))
    sweep(root=str(root), name="three_seeds.v2", settings=["run.rounds=1", "grid.methods=[fedavg]"])
    (comparison,) = seen("sweep").artifacts
    assert re.fullmatch("three-seeds-v2-comparison-[0-9a-f]{6}", comparison.key)
    keys = sorted({artifact.key for artifact in seen("federate").artifacts})  # a slow run has two tables
    for key, what in zip(keys, ("accuracy", "mlflow", "rounds", "summary"), strict=True):
        assert re.fullmatch(f"my-part-6-fedavg-0-{what}-[0-9a-f]{{6}}", key)


def test_the_pipeline_ends_with_the_report(api, root, seen, mlflow_runs):
    from flows.pipeline import pipeline

    central = ["central.expert={dataset: digits}", "partitions.digits-6.difficulty={expert: expert}"]
    page = pipeline(root=str(root), settings=["run.rounds=1", "grid.methods=[fedavg]", *central])
    assert page == str(root / "report" / "index.html")
    assert "digits-6" in (root / "report" / "index.html").read_text()
    assert [a.key for a in seen("pipeline").artifacts] == ["report"]
    (parent,) = (run for run in mlflow_runs(root) if run.info.run_name == "pipeline")
    folder = Path(parent.info.artifact_uri.removeprefix("file://"))
    recorded = {str(file.relative_to(folder)) for file in folder.rglob("*.*")}
    assert recorded == {"comparison.json", "comparison.png", "report/index.html"}
