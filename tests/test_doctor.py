"""What ``fedflow doctor`` finds, and that it changes nothing."""

import json
import re
import socket
from pathlib import Path

import pytest
from command import fedflow

from fedflow.doctor import Finding, examine
from fedflow.plugins import Failures
from fedflow.project.identity import ENVIRONMENT, environment

PARAMS = (Path(__file__).parents[1] / "params.yaml").read_text()


def found(root: Path) -> dict[str, Finding]:
    return {finding.what: finding for finding in examine(root)}


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    (tmp_path / "params.yaml").write_text(PARAMS)
    return tmp_path


def test_a_project_in_order_has_nothing_bad_and_stays_as_it_is(project):
    findings = found(project)
    assert not [finding for finding in findings.values() if finding.status == "bad"]
    assert findings["params.yaml"].detail == "2 partitions x 6 methods x 3 seeds, procedures: 1 x 3 seeds"
    assert findings["record"].detail == str(project / "mlruns" / "mlflow.db")
    assert [file.name for file in project.iterdir()] == ["params.yaml"]
    assert {"python", "torch", "prefect", "mlflow", "dvc", "device", "disk"} <= set(findings)
    assert "digits, mnist5k" in findings["data root"].detail and "leaf" not in findings["data root"].detail


def test_plugins_that_fail_stop_the_commands_after_it(project, capsys):
    """In the same process; the command itself collects them."""
    fedflow(capsys, "doctor", "--root", project)
    assert Failures.collected is None


def test_libraries_of_another_version_than_in_the_last_repro_are_noted(project):
    file = project / ENVIRONMENT
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(environment()))
    assert "libraries" not in found(project)
    file.write_text(json.dumps(environment() | {"numpy": "1.0"}))
    noted = found(project)["libraries"]
    assert noted.status == "note"
    assert noted.detail.startswith(f"numpy 1.0 -> {environment()['numpy']} since the last `dvc repro`")


def test_missing_programs_and_used_ports_are_noted(project, monkeypatch):
    monkeypatch.setenv("PATH", str(project))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        monkeypatch.setattr("fedflow.doctor.PORTS", {number: "`fedflow ui`"})
        findings = found(project)
    assert findings["C++ compiler"].status == findings["git"].status == "note"
    assert "engine.compile" in findings["C++ compiler"].detail
    assert findings[f"port {number}"] == Finding(
        "note", f"port {number}", "in use; it is the port of `fedflow ui`"
    )
    assert found(project)[f"port {number}"].status == "ok"


def test_the_list_that_dvc_needs_is_asked_for(project):
    (project / "dvc.yaml").touch()
    assert found(project)["params.yaml"].status == "ok"
    (project / "params.yaml").write_text(PARAMS.replace("  central: []\n", ""))
    lacks = "dvc.yaml needs the list grid.central; add `central: []` under grid"
    assert found(project)["params.yaml"] == Finding(
        "bad", "params.yaml", f"{project / 'params.yaml'}: {lacks}"
    )
    (project / "dvc.yaml").unlink()
    assert found(project)["params.yaml"].status == "ok"


def test_equal_settings_under_two_names_are_noted_once(project):
    own = "methods:\n  same: {method: fedavg}\n  other: {method: fedavg, training: {lr: 0.5}}\n"
    text = PARAMS.replace("methods:\n", own, 1).replace(
        "methods: [fedavg, ", "methods: [fedavg, same, other, "
    )
    (project / "params.yaml").write_text(text)
    notes = [finding for finding in examine(project) if finding.what == "grid.methods"]
    assert notes == [Finding("note", "grid.methods", "the same settings under several names: fedavg, same")]


def test_files_that_data_need_and_that_are_not_there_are_found(project):
    """Until the data are prepared."""
    text = PARAMS.replace("data:\n", "data:\n  own: {source: npz, path: own.npz}\n", 1)
    text = text.replace("datasets: [mnist5k]", "datasets: [mnist5k, own]")
    (project / "params.yaml").write_text(text.replace("models:\n", "models:\n  own: mlp\n", 1))
    assert found(project)["data.own"] == Finding("bad", "data.own", "there is no file 'own.npz'")
    (project / "data" / "prepared" / "own").mkdir(parents=True)
    assert "data.own" not in found(project)


def test_a_bad_parameter_and_a_store_that_cannot_be_written_are_found(project):
    (project / "params.yaml").write_text(PARAMS.replace("rounds: 16", "rounds: 0"))
    (project / "mlruns").touch()
    findings = found(project)
    assert findings["params.yaml"].status == findings["record"].status == "bad"
    assert findings["params.yaml"].detail.startswith("run.rounds: 0 is not accepted")
    assert re.search("Not a directory.*set MLFLOW_TRACKING_URI", findings["record"].detail)
    assert (
        found(project / "elsewhere")["params.yaml"].status == "bad" and not (project / "elsewhere").exists()
    )


@pytest.mark.parametrize(
    ("run", "method", "says"),
    [
        (
            "sampling: sweep",
            "fedbuff",
            "run.sampling: 'sweep' is not accepted; expected uniform with fedbuff",
        ),
        (
            "sampling: bernoulli",
            "fedsc",
            "run.sampling: 'bernoulli' is not accepted; expected uniform or prop",
        ),
        ("reports: [all]", "ditto", "run.reports: ['all'] is not accepted; expected [] with ditto, whose"),
        ("participation: 1.5", "fedavg", "run.participation: 1.5 is not accepted"),
    ],
)
def test_settings_that_a_method_of_the_grid_refuses_are_found_without_data(run, method, says, project):
    text = PARAMS.replace(
        "  participation: 0.3\n", "" if "participation" in run else "  participation: 0.3\n"
    )
    text = text.replace("  rounds: 16\n", f"  rounds: 16\n  {run}\n")
    (project / "params.yaml").write_text(re.sub(r"methods: \[fedavg, .*?\]", f"methods: [{method}]", text))
    finding = found(project)["params.yaml"]
    assert finding.status == "bad" and finding.detail.startswith(says)


def test_claims_are_checked_if_there_are_any(project):
    claim = "- {id: a, source: s, claim: c, partition: p, measure: %s, of: fedavg, above: [ditto]}"
    (project / "claims.yaml").write_text(claim % "local_accuracy")
    assert found(project)["claims.yaml"] == Finding("ok", "claims.yaml", "1 claims")
    (project / "claims.yaml").write_text(claim % "locale")
    assert "claim a.measure: 'locale' is not accepted" in found(project)["claims.yaml"].detail


def test_a_record_of_your_own_is_named_and_a_prefect_server_of_your_own_must_answer(project, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@host:5000")
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    findings = found(project)
    finding = findings["Prefect API"]
    assert findings["record"].detail.endswith("= http://me:***@host:5000")
    assert finding.status == "bad" and "http://127.0.0.1:1/api is not responding" in finding.detail


def test_a_prefect_address_that_is_none_is_found(project, monkeypatch):
    monkeypatch.setenv("PREFECT_API_URL", "foo")
    (finding,) = (each for each in examine(project) if each.what == "Prefect API")
    assert finding.status == "bad" and "PREFECT_API_URL: 'foo' is not accepted" in finding.detail


def test_a_missing_package_is_bad_only_when_it_is_needed(project, monkeypatch):
    monkeypatch.setattr("fedflow.doctor.NEEDED", ("no-such-package",))
    monkeypatch.setattr("fedflow.doctor.OPTIONAL", {"no-such-extra": ("umap", "pictures")})
    findings = found(project)
    assert findings["no-such-package"].status == "bad"
    assert "pip install no-such-package" in findings["no-such-package"].detail
    assert findings["no-such-extra"].status == "note"
    assert findings["no-such-extra"].detail == "not installed; only needed for pictures: extra umap"
    assert "`pip install -e '.[umap]'`" in findings["extras"].detail
