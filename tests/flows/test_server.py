"""The shared API server: found again, not doubled, and not trusted after a kill."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import psutil
import pytest

from flows import server


@pytest.fixture
def folder(api):
    return server.home()


def test_later_runs_share_the_server_and_its_page(api, folder, monkeypatch):
    monkeypatch.delenv("PREFECT_API_URL")
    with server.prefect_api() as url:
        assert url == api == os.environ["PREFECT_API_URL"]
        assert os.getpid() in server.users(folder)
        assert Path(os.environ[server.CERTIFICATES]).read_text().count("BEGIN CERTIFICATE") == 1
    with urllib.request.urlopen(api.removesuffix("/api")) as page:
        assert b"<html" in page.read().lower()


def test_the_server_of_another_process_is_not_ours(folder, tmp_path):
    state = json.loads((folder / "server.json").read_text())
    (tmp_path / "server.json").write_text(json.dumps(state))
    assert server.running(tmp_path) == state["url"]
    (tmp_path / "server.json").write_text(json.dumps(state | {"born": 1.0}))  # its number was given anew
    assert server.running(tmp_path) is None
    gone = max(psutil.pids()) + 100_000
    (tmp_path / "server.json").write_text(json.dumps(state | {"pid": gone}))  # killed
    assert server.running(tmp_path) is None


def test_a_taken_port_is_one_line(folder, tmp_path, monkeypatch):
    port = int(json.loads((folder / "server.json").read_text())["url"].split(":")[2].removesuffix("/api"))
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.delenv("PREFECT_API_URL")
    with (
        pytest.raises(server.FedflowError, match=f"--port: {port} is not accepted"),
        server.prefect_api(port),
    ):
        pass


def test_without_a_server_there_is_nothing_to_stop(tmp_path, monkeypatch):
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    assert not server.stop()


HOLD = """
import os, signal
from flows.server import home, prefect_api, _state
with prefect_api():
    from prefect.concurrency.sync import concurrency
    from tasks.shards import GPU_LIMIT, LEASE, ensure_gpu_limit
    ensure_gpu_limit()
    with concurrency(GPU_LIMIT, occupy=1, lease_duration=LEASE):
        print("held", flush=True)
        if {killed}:
            os.kill(_state(home())["pid"], signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_the_gpu_of_a_killed_run_is_free_again_also_after_the_server_was_killed(tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "PREFECT_API_URL"}
    environment |= {"PREFECT_HOME": str(tmp_path)}
    for killed in (True, False):
        done = subprocess.run(
            [sys.executable, "-c", HOLD.format(killed=killed)],
            check=False, env=environment, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert "held" in done.stdout, done.stderr
        assert done.returncode == (-signal.SIGKILL if killed else 0)
    subprocess.run([sys.executable, "-m", "flows.server", "--stop"], env=environment, check=True)
