"""What ``make serve`` puts on the server really starts from its work pool."""

import json
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from support import refused

from fedflow.errors import FedflowError

CHECKOUT = Path(__file__).parents[2]


@pytest.mark.slow  # 60 s and more: a command line and three processes that import Prefect and torch
def test_a_deployment_starts_from_the_work_pool(api, root, expected, results, monkeypatch):
    from prefect.client.orchestration import get_client
    from prefect.deployments import run_deployment

    from flows.serve import POOL, deploy, prefect

    monkeypatch.chdir(CHECKOUT)
    deploy()
    deploy()  # a second start of `make serve` finds all there
    with get_client(sync_client=True) as client:
        deployments = {d.name: d for d in client.read_deployments()}
        assert set(deployments) == {"pipeline-nightly", "sweep", "central", "procedure", "federate"}
        assert all(d.work_pool_name == POOL and d.description and d.tags for d in deployments.values())
        assert [s.active for s in deployments["pipeline-nightly"].schedules] == [False]
        offered = deployments["federate"].parameter_openapi_schema["properties"]
        assert "mnist5k-dir" in offered["partition"]["enum"]
        assert {"ditto", "ifca"} <= set(offered["method"]["enum"])
        lists = deployments["sweep"].parameter_openapi_schema["properties"]["methods"]["anyOf"]
        assert any("ifca" in each.get("items", {}).get("enum", ()) for each in lists)
        tiny = {"partition": "digits-6", "method": "fedavg", "root": str(root)}
        run = run_deployment("federate/federate", parameters=tiny, timeout=0)
        worker = prefect("worker", "start", "--pool", POOL, "--run-once")
        done = subprocess.run(worker, check=False, capture_output=True, text=True)
        state = client.read_flow_run(run.id).state
    assert state.is_completed(), done.stdout + done.stderr
    assert results(root) == expected("fedavg")


class _Receiver(BaseHTTPRequestHandler):
    """Keeps what is posted."""

    received: ClassVar[list[dict]] = []

    def do_POST(self) -> None:
        self.received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.slow  # events take some seconds to reach automations
def test_a_webhook_is_told_of_a_failed_run(api, root):
    from flows.federate import federate
    from flows.serve import notify

    with refused(r"--notify: 'ftp://x' is not accepted", FedflowError):
        notify("ftp://x")
    server = HTTPServer(("127.0.0.1", 0), _Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for _ in range(2):  # replaced, not doubled
        notify(f"http://127.0.0.1:{server.server_port}/hook")
    with pytest.raises(FedflowError):
        federate("digits-6", "fedavg", settings=["methods.fedavg.rubbish=1"], root=str(root))
    for _ in range(600):
        if _Receiver.received:
            break
        time.sleep(0.1)
    server.shutdown()
    (said,) = _Receiver.received
    assert ": Failed" in said["text"] and "rubbish" in said["text"]
