"""`fedflow ui`: the links that it prints, the page that it opens, and the hosts that its server refuses."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from command import fedflow, free_port
from support import finish, open_run

from fedflow.tracking.pages import TAG, runs_pages
from fedflow.tracking.record import Record, open_record
from fedflow.tracking.store import move_store, ui_command

RUN = {"experiment": "digits/é", "name": "n", "key": "k", "params": {}, "system_metrics": False}


def test_the_ui_shows_this_store_on_localhost(root):
    command = ui_command(root, port=5123)
    assert command[:4] == [sys.executable, "-m", "mlflow", "server"]
    assert {"127.0.0.1", "5123"} <= set(command)


def test_the_address_of_the_store_is_in_no_list_of_processes(root, capsys, monkeypatch):
    """It may hold a password."""
    started = []
    monkeypatch.setenv("MLFLOW_BACKEND_STORE_URI", "")
    monkeypatch.setattr(os, "execv", lambda _, command: started.extend(command))
    assert fedflow(capsys, "ui", "--root", root, "--port", free_port()).code == 0
    uri = f"sqlite:///{root}/mlruns/mlflow.db"
    assert os.environ["MLFLOW_BACKEND_STORE_URI"] == uri and started and uri not in started


def test_a_folder_that_does_not_exist_is_not_made(tmp_path, capsys):
    done = fedflow(capsys, "ui", "--root", tmp_path / "nowhere")
    assert done.code == 2 and "--root: " in done.err and not (tmp_path / "nowhere").exists()


@pytest.mark.full
def test_the_ui_prints_links_and_opens_the_first_one_when_asked(root, tmp_path, outcome):
    """The newest federated runs come first, in their columns. MLflow's checks of hosts are on."""
    project = tmp_path / "a b %20#c"
    (project / "mlruns" / "artifacts").mkdir(parents=True)
    shutil.copy(root / "mlruns" / "mlflow.db", project / "mlruns")
    move_store(project)
    with open_run(project, **RUN | {"tags": {"method": "fedavg"}}) as record:
        finish(record, outcome("global"))
    with open_record(Record, project, **RUN | {"experiment": "procedures/ring"}) as later:
        later.end({}, 1, None, None, {})
    port = free_port()
    links = runs_pages(project, port)
    first, other = list(links.values())[:2]
    assert list(links)[:2] == ["digits/é", "procedures/ring"]
    assert first.endswith("viewStateShareKey=fedflow") and "fedflow" not in other
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    browser.chmod(0o755)
    command = [sys.executable, "-m", "fedflow.cli", "ui", "--port", str(port), "--root", project, "--open"]
    server = subprocess.Popen(
        command,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"BROWSER": f"{browser} %s"},
    )
    try:
        assert server.stdout is not None
        server.stdout.readline()
        printed = [server.stdout.readline() for _ in links]
        assert printed == [f"  {name}  {link}\n" for name, link in links.items()]
        assert _get(port, f"127.0.0.1:{port}", "/health") == "OK"
        number = re.fullmatch(rf"http://127.0.0.1:{port}/#/experiments/(\d+)/runs\?.*", first)
        assert number is not None
        asked = f"/ajax-api/2.0/mlflow/experiments/get?experiment_id={number[1]}"
        found = json.loads(_get(port, f"localhost:{port}", asked))["experiment"]
        assert found["name"] == "digits/é" and TAG in {tag["key"] for tag in found["tags"]}
        assert "<script>" not in _get(port, f"127.0.0.1:{port}")
        with pytest.raises(urllib.error.HTTPError, match="403"):
            _get(port, f"10.evil.example:{port}")
        for _ in range(600):
            if opened.exists() and opened.read_text():
                break
            time.sleep(0.1)
        assert opened.read_text().strip() == first
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.communicate(timeout=30)


def _get(port: int, host: str, path: str = "/") -> str:
    """What a server that may still be starting answers to a browser that was sent to ``host``."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Host": host})
    for _ in range(600):
        try:
            return urllib.request.urlopen(request).read().decode()
        except urllib.error.HTTPError:
            raise
        except OSError:
            time.sleep(0.1)
    raise TimeoutError("the server did not start")
