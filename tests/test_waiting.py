"""Waits for another process are announced in one line."""

import shutil
import sys
import time
from io import StringIO
from pathlib import Path
from threading import Thread

import pytest
from filelock import FileLock

from fedflow.local.fast.kept import kept
from fedflow.project import waiting
from fedflow.stages.tune import write_choice
from fedflow.tracking.store import Store
from tasks.gpu import gpu_in_turn


@pytest.fixture(autouse=True)
def at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every wait is announced at once."""
    monkeypatch.setattr(waiting, "LONG", 0.0)
    monkeypatch.setattr(waiting, "_ANNOUNCED", set())
    monkeypatch.setenv("FEDFLOW_CACHE", str(tmp_path / "fedflow"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-b7,MIG-c2")


def gpu(root: Path) -> None:
    with gpu_in_turn():
        pass


def store(root: Path) -> None:
    with Store("", root).lock("registry"):
        pass


def compiler(root: Path) -> None:
    shutil.rmtree(root / "code", ignore_errors=True)
    kept(root / "code", lambda folder: None)


def tuning(root: Path) -> None:
    (root / "params.yaml").write_text("tuned: {}\n")
    write_choice(root / "params.yaml", "p", "fedavg", {"training.lr": 0.1})


WAITS = {
    gpu: ("fedflow/MIG-b7.lock", "another process that uses MIG-b7"),
    store: ("locks/registry.lock", "another process that writes to MLflow (at most 120 s; lock: {})"),
    compiler: ("code.lock", "another process that compiles the same local steps"),
    tuning: (".fedflow/params.lock", "another process that writes {root}/params.yaml"),
}


@pytest.mark.parametrize("use", WAITS)
def test_a_wait_for_another_process_is_announced_once(use, tmp_path, monkeypatch):
    name, words = WAITS[use]
    said = StringIO()  # `capsys` loses what another thread prints while it is read
    monkeypatch.setattr(sys, "stdout", said)
    use(tmp_path)
    use(tmp_path)
    assert said.getvalue() == ""  # nothing to wait for
    for _ in range(2):
        with FileLock(tmp_path / name):
            waits = Thread(target=use, args=[tmp_path])
            waits.start()
            while waits.is_alive() and not said.getvalue():
                time.sleep(0.01)
            waits.join(0.2)  # it waits
        waits.join()
    assert said.getvalue() == f"waiting for {words.format(tmp_path / name, root=tmp_path)}\n"
