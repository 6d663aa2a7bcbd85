"""What ``fedflow doctor`` finds, and that it changes nothing."""

from pathlib import Path

import pytest

from fedflow.doctor import Finding, examine

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
    assert findings["params.yaml"].detail == "2 partitions x 6 methods x 2 seeds"
    assert findings["record"].detail == str(project / "mlruns" / "mlflow.db")
    assert [file.name for file in project.iterdir()] == ["params.yaml"]
    assert {"python", "torch", "prefect", "mlflow", "dvc", "device", "disk"} <= set(findings)
    assert "digits, mnist5k" in findings["data root"].detail


def test_a_bad_parameter_is_found_with_its_name(project):
    (project / "params.yaml").write_text(PARAMS.replace("rounds: 20", "rounds: 0"))
    finding = found(project)["params.yaml"]
    assert finding.status == "bad" and finding.detail.startswith("run.rounds: 0 is not accepted")


def test_a_store_that_cannot_be_written_is_found_with_the_remedy(project):
    (project / "mlruns").touch()
    finding = found(project)["record"]
    assert finding.status == "bad" and "Not a directory" in finding.detail
    assert "set MLFLOW_TRACKING_URI" in finding.detail


def test_a_folder_that_does_not_exist_is_no_crash_and_is_not_made(project):
    findings = found(project / "elsewhere")
    assert findings["params.yaml"].status == "bad" and not (project / "elsewhere").exists()


def test_a_record_of_your_own_is_named(project, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://host:5000")
    assert "http://host:5000" in found(project)["record"].detail


def test_a_prefect_server_of_your_own_must_answer(project, monkeypatch):
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    finding = found(project)["Prefect API"]
    assert finding.status == "bad" and "http://127.0.0.1:1/api does not answer" in finding.detail


def test_a_missing_package_is_bad_only_when_it_is_needed(project, monkeypatch):
    monkeypatch.setattr("fedflow.doctor.NEEDED", ("no-such-package",))
    monkeypatch.setattr("fedflow.doctor.OPTIONAL", {"no-such-extra": "pictures"})
    findings = found(project)
    assert findings["no-such-package"].status == "bad"
    assert "pip install no-such-package" in findings["no-such-package"].detail
    assert findings["no-such-extra"].status == "note" and "pictures" in findings["no-such-extra"].detail
