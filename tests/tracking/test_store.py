import os
import resource
import shutil
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedflow.errors import FedflowError
from fedflow.tracking import initialise, open_run, ui_command
from fedflow.tracking.store import tracking_uri


def test_two_processes_make_one_store(other_process, root):
    assert other_process["mine"] == other_process["uri"] == f"sqlite:///{root}/mlruns/mlflow.db"
    names = {p.name for p in (root / "mlruns").iterdir()}
    assert {"locks", "mlflow.db"} <= names <= {"locks", "mlflow.db", "artifacts"}


def test_mlflow_is_imported_late_and_says_nothing(other_process):
    assert not other_process["imported"]
    assert other_process["stderr"] == ""


def test_an_existing_store_is_opened_without_mlflow(root, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert initialise(root).startswith("sqlite:///")


def test_the_environment_chooses_another_store(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert tracking_uri("anywhere") == "http://127.0.0.1:9"
    with pytest.raises(FedflowError, match=r"^MLflow store http://127.0.0.1:9: no server answers"):
        initialise("anywhere")


@contextmanager
def without_rights():
    """An administrator could write anywhere."""
    administrator = os.geteuid() == 0
    if administrator:
        os.seteuid(65534)
    try:
        yield
    finally:
        if administrator:
            os.seteuid(0)


def test_a_read_only_folder_is_one_line_and_leaves_nothing():
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)
        with without_rights(), pytest.raises(FedflowError, match=r"Permission denied$") as error:
            initialise(folder)
        assert "\n" not in str(error.value)
        assert list(Path(folder).iterdir()) == []
        Path(folder).chmod(0o755)


def test_an_existing_store_that_is_read_only_is_one_line(root):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "mlruns").mkdir()
        shutil.copy(root / "mlruns" / "mlflow.db", Path(folder) / "mlruns")
        (Path(folder) / "mlruns").chmod(0o555)
        with without_rights(), pytest.raises(FedflowError, match=r"Permission denied$"):
            open_run(folder, experiment="e", name="n", key="k", params={})


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
