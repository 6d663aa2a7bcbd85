"""What the page says of where its numbers come from."""

import re

from result_folders import write_run
from support import open_run, refused

from fedflow.errors import FedflowError
from fedflow.finished.collect import collect_runs
from fedflow.report.compared import grouped
from fedflow.report.page import build_report
from fedflow.report.sections.lineage import _made, chain_of, made
from fedflow.stages.report import write_report
from fedflow.tracking.lineage import recorded_runs

FACTS = {
    "run_id": "0123456789abcdef",
    "experiment_id": "3",
    "ended": "2026-11-01 10:00 UTC",
    "commit": "c0ffee",
    "changed": True,
    "version": "0.1.0",
    "command": "fedflow run",
    "user": "ada",
    "clusters": "5ca1ab1e",
    "models": ["p.ifca.cluster-0 v2", "p.ifca.cluster-1 v2"],
    "served": False,
    "page": "http://127.0.0.1:5000/#/experiments/3/runs/0123456789abcdef?a=b",
    "experiment_page": "http://127.0.0.1:5000/#/experiments/3/runs?a=b",
    "pages": {
        f"p.ifca.cluster-{j} v2": f"http://127.0.0.1:5000/#/models/p.ifca.cluster-{j}/versions/2"
        for j in (0, 1)
    },
}


def test_the_chain_from_data_to_models(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / "results", "p", "ifca", seed)
    runs = collect_runs(tmp_path / "results")
    first = runs[0]
    recorded = {("p", "ifca", "0", first.settings): FACTS}
    steps = chain_of(grouped(runs).partitions[0], [FACTS])
    assert [step.kind for step in steps] == ["Data", "Partition", "Runs", "Clusters", "Models"]
    assert steps[0].digest == first.metrics["data_hash"]
    assert steps[1].digest == first.metrics["partition_hash"]
    assert steps[4].name == "2 registered versions"
    words = "2026-11-01 10:00 UTC, from commit c0ffee with changes, by fedflow 0.1.0, with fedflow run"
    assert made(recorded, runs) == words and made({}, runs) == ""
    page = build_report(tmp_path / "results", tmp_path, tmp_path / "out", recorded=recorded).read_text()
    assert words in page and page.count("not in the record") == 1
    models = "http://127.0.0.1:5000/#/models/p.ifca.cluster-1/versions/2"
    assert f'<a href="{models}">p.ifca.cluster-1 v2</a>' in page
    assert (
        "<code>fedflow partition p</code>" in page and "http://127.0.0.1:5000/#/experiments/3/runs?" in page
    )
    assert f'href="{FACTS["page"]}"' in page and "open while <code>fedflow ui</code> runs" in page
    served = {key: facts | {"served": True} for key, facts in recorded.items()}
    page = build_report(tmp_path / "results", tmp_path, tmp_path / "out", recorded=served).read_text()
    assert "<code>fedflow ui</code> runs" not in page
    assert len(re.findall('aria-label="Cluster of every client by round"', page)) == 2  # large, and small


def test_the_record_knows_the_newest_run_of_each_key(tmp_path):
    assert recorded_runs(tmp_path) == {} and not (tmp_path / "mlruns").exists()
    tags = {"partition": "p", "method": "ifca", "seed": 0, "settings": "abc"}
    runs = []
    for key in ("k1", "k2"):
        options = {"experiment": "d/p", "name": "n", "params": {}, "system_metrics": False}
        with open_run(tmp_path, key=key, tags=tags, **options) as record:
            record.end({"local_accuracy": 0.5}, 1, None, None, {})
        runs.append(record.run_id)
    (facts,) = recorded_runs(tmp_path).values()
    assert facts["run_id"] == runs[1] and facts["models"] == [] and facts["version"]
    assert f"/runs/{runs[1]}?" in facts["page"] and not facts["served"]


def test_a_record_that_cannot_be_read_is_one_line_and_the_report_is_written(tmp_path, capsys):
    write_run(tmp_path / "results", "p", "ifca", 0)
    (tmp_path / "mlruns").mkdir()
    (tmp_path / "mlruns" / "mlflow.db").write_bytes(b"\xff" * 5000)
    with refused("file is not a database", FedflowError):
        recorded_runs(tmp_path)
    page = write_report(tmp_path).read_text()
    assert "the report omits MLflow links: MLflow store" in " ".join(capsys.readouterr().out.split())
    assert "not in an MLflow store" in page


def test_one_run_with_changes_marks_its_commit() -> None:
    for changed in ((True, False), (False, True)):
        facts = [FACTS | {"changed": one} for one in changed]
        assert "from commit c0ffee with changes," in _made(facts)
