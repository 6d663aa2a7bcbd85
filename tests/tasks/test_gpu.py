"""The lock of a GPU that a user's runs share."""

import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from filelock import FileLock, Timeout

from tasks.gpu import OneGpu, gpu_in_turn


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FEDFLOW_CACHE", str(tmp_path / "fedflow"))
    cards = [SimpleNamespace(uuid="b7"), SimpleNamespace(uuid="c2")]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda number: cards[number])


def test_a_shard_holds_the_gpu_while_it_trains(tmp_path) -> None:
    lock = tmp_path / "fedflow" / "GPU-b7.lock"

    def work(job: Any, shard: Any) -> int:
        with pytest.raises(Timeout):
            FileLock(lock, timeout=0).acquire()
        return shard.content

    shards = [SimpleNamespace(content=i) for i in range(2)]
    assert OneGpu().map(work, SimpleNamespace(device="cuda"), shards, "round 1") == [0, 1]
    FileLock(lock, timeout=0).acquire()


HOLD = """
import os, signal
import tasks.gpu
tasks.gpu.card = lambda: "GPU-b7"
with tasks.gpu.gpu_in_turn():
    print("held", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_run_frees_the_gpu() -> None:
    done = subprocess.run([sys.executable, "-c", HOLD], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "held\n"), done.stderr
    with gpu_in_turn():
        pass
