import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fedflow.errors import FedflowError
from fedflow.tracking import initialise, ui_command
from fedflow.tracking.store import tracking_uri


def test_two_processes_make_one_store(started_twice):
    root, seen = started_twice
    assert [s["uri"] for s in seen] == [f"sqlite:///{root}/mlruns/mlflow.db"] * 2
    assert [s["experiments"] for s in seen] == [["0"], ["0"]]
    assert sorted(p.name for p in (root / "mlruns").iterdir()) == ["locks", "mlflow.db"]


def test_mlflow_is_imported_late_and_quietly(started_twice):
    _, seen = started_twice
    assert not any(s["imported"] for s in seen)
    assert [s["stderr"] for s in seen] == ["", ""]


def test_an_existing_store_is_opened_without_mlflow(root):
    program = (
        "import sys; from fedflow.tracking import initialise; initialise(sys.argv[1])\n"
        "print('mlflow' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(root)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_the_environment_chooses_another_store(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert tracking_uri("anywhere") == "http://127.0.0.1:9"
    with pytest.raises(FedflowError, match=r"^MLflow store http://127.0.0.1:9: no server answers"):
        initialise("anywhere")


def test_a_read_only_folder_is_one_line_and_leaves_nothing(nobody):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)
        with pytest.raises(FedflowError, match=r"Permission denied$") as error:
            initialise(folder)
        assert "\n" not in str(error.value)
        assert list(Path(folder).iterdir()) == []
        Path(folder).chmod(0o755)


def test_a_full_disk_is_one_line_and_leaves_no_half_made_store(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))  # the schema takes more
    try:
        with pytest.raises(FedflowError, match="MLflow store sqlite") as error:
            initialise(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(error.value)
    assert [p.name for p in (tmp_path / "mlruns").iterdir()] == ["locks"]
    assert initialise(tmp_path).startswith("sqlite:///")  # and with space again it is made


def test_the_ui_opens_this_store_on_localhost(root, monkeypatch):
    command = ui_command(root, port=5123)
    assert command[:4] == [sys.executable, "-m", "mlflow", "server"]
    assert {"127.0.0.1", "5123", f"sqlite:///{root}/mlruns/mlflow.db"} <= set(command)
