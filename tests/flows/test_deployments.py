"""What ``make serve`` puts on the server really starts from its work pool."""

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, ClassVar
from uuid import UUID

import pytest
import yaml
from services import wait_for
from support import refused

from fedflow.errors import FedflowError

if TYPE_CHECKING:
    from prefect.states import State

CHECKOUT = Path(__file__).parents[2]


@pytest.mark.slow  # 60 s and more: a command line and three processes that import Prefect and torch
def test_a_deployment_starts_from_the_work_pool(api, root, expected, results, monkeypatch):
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import DeploymentUpdate
    from prefect.deployments import run_deployment

    from flows.serve import deploy, prefect, project

    monkeypatch.chdir(CHECKOUT)
    deploy()
    deploy()  # a second start of `make serve` finds all there
    with get_client(sync_client=True) as client:
        found = [d for d in client.read_deployments() if d.work_pool_name == project()]
        deployments = {d.name.removesuffix(f"-{project()}"): d for d in found}
        assert set(deployments) == {"pipeline-nightly", "sweep", "central", "procedure", "federate"}
        assert all(d.description and d.tags for d in deployments.values())
        assert [s.active for s in deployments["pipeline-nightly"].schedules] == [False]
        assert deployments["pipeline-nightly"].global_concurrency_limit.limit == 1
        offered = deployments["federate"].parameter_openapi_schema["properties"]
        pulled = [{"prefect.deployments.steps.set_working_directory": {"directory": "/project"}}]
        client.update_deployment(deployments["federate"].id, DeploymentUpdate(pull_steps=pulled))
        deploy()  # as docs/howto/schedulers.md says, for containers
        assert "mnist5k-dir" in offered["partition"]["enum"]
        assert {"ditto", "ifca"} <= set(offered["method"]["enum"])
        lists = deployments["sweep"].parameter_openapi_schema["properties"]["methods"]["anyOf"]
        assert any("ifca" in each.get("items", {}).get("enum", ()) for each in lists)
        tiny = {"partition": "digits-6", "method": "fedavg", "root": str(root)}
        run = run_deployment(f"federate/federate-{project()}", parameters=tiny, timeout=0)
        worker = prefect("worker", "start", "--pool", project(), "--run-once")
        done = subprocess.run(worker, check=False, capture_output=True, text=True)
        state = client.read_flow_run(run.id).state
    assert state.is_completed(), done.stdout + done.stderr
    assert results(root) == expected("fedavg")


def test_a_port_is_refused_while_a_server_is_in_use(api, monkeypatch):
    from flows.serve import serve

    monkeypatch.chdir(CHECKOUT)
    with refused("--port: 1 is not accepted; expected no port, as the server runs already at", FedflowError):
        serve(1)


def test_the_names_on_a_server_are_of_one_folder(tmp_path, monkeypatch):
    from flows.serve import project

    names = []
    for user in ("alice", "bob"):
        (folder := tmp_path / user / "Größe 1").mkdir(parents=True)
        monkeypatch.chdir(folder)
        assert project() == project()
        names.append(project())
    assert len(set(names)) == 2 and all(re.fullmatch("gr-e-1-[0-9a-f]{6}", name) for name in names)
    deployments = yaml.safe_load((CHECKOUT / "prefect.yaml").read_text())["deployments"]
    assert all(each["name"].endswith("-{{ $FEDFLOW_PROJECT }}") for each in deployments)
    assert {each["work_pool"]["name"] for each in deployments} == {"{{ $FEDFLOW_PROJECT }}"}


def test_the_exit_code_is_that_of_the_worker_and_nothing_is_sent(monkeypatch):
    from flows import serve

    for name in serve.NO_TELEMETRY:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr("sys.argv", ["serve"])
    monkeypatch.setattr(serve, "used", lambda home: True)
    monkeypatch.setattr(serve, "prefect_api", lambda port: nullcontext("http://127.0.0.1:1/api"))
    for step in ("check_present", "deploy", "restart", "_end"):
        monkeypatch.setattr(serve, step, lambda *given: None)
    for code, expected in ((0, 0), (3, 3), (-9, 137)):
        worker = SimpleNamespace(wait=lambda code=code: code)
        monkeypatch.setattr(serve.subprocess, "Popen", lambda *given, worker=worker: worker)
        with pytest.raises(SystemExit) as end:
            serve.main()
        assert end.value.code == expected
    assert os.environ["DO_NOT_TRACK"] == "1" and os.environ["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"


@pytest.fixture
def clone(tmp_path) -> Callable[[str], Path]:
    """Makes a folder with the flows of this project, and one deployment."""
    text = (CHECKOUT / "prefect.yaml").read_text()
    head, *_, last = text.split("\n  - name:")

    def make(name: str) -> Path:
        folder = tmp_path / name / "my project"
        folder.mkdir(parents=True)
        (folder / "prefect.yaml").write_text(f"{head}\n  - name:{last}")
        for each in ("flows", "tasks", "fedflow", "params.yaml"):
            (folder / each).symlink_to(CHECKOUT / each)
        return folder

    return make


@pytest.mark.slow  # four command lines that import Prefect and torch
def test_two_projects_on_one_server_keep_their_deployments(api, clone, monkeypatch):
    from prefect.client.orchestration import get_client

    from flows.serve import deploy, prefect, project

    folders: dict[str, Path] = {}
    for user in ("alice", "bob"):
        monkeypatch.chdir(folder := clone(user))
        deploy()
        folders[project()] = folder
    assert len(folders) == 2 and all(name.startswith("my-project-") for name in folders)

    def placed() -> dict[str, tuple[str, str]]:
        with get_client(sync_client=True) as client:
            found = [d for d in client.read_deployments() if d.work_pool_name in folders]
        return {d.name: (d.work_pool_name, d.pull_steps[0].popitem()[1]["directory"]) for d in found}

    own = {f"federate-{name}": (name, str(folder)) for name, folder in folders.items()}
    assert placed() == own
    plain = subprocess.run(
        prefect("--no-prompt", "deploy", "--all"), check=False, capture_output=True, text=True
    )
    assert plain.returncode and "{{ $FEDFLOW_PROJECT }}" in plain.stdout + plain.stderr
    taken = next(iter(own))
    file = Path("prefect.yaml")
    file.write_text(file.read_text().replace("federate-{{ $FEDFLOW_PROJECT }}", taken))
    with refused(rf"the server has the deployment {taken} of the folder .*alice/my project;", FedflowError):
        deploy()
    assert placed() == own


@pytest.mark.slow  # five command lines that import Prefect and torch
def test_a_second_start_keeps_what_was_set_in_the_ui(api, clone, monkeypatch, capsys):
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import DeploymentUpdate
    from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule

    from flows.serve import _deployments, _names, deploy

    monkeypatch.chdir(clone("dora"))
    file = Path("prefect.yaml")
    night = '{cron: "0 2 * * *", timezone: UTC, active: false}'
    file.write_text(file.read_text().replace("schedules: []", f"schedules: [{night}]"))
    deploy()
    deploy()
    assert capsys.readouterr().out == ""
    with get_client(sync_client=True) as client:

        def found() -> tuple:
            (deployment,) = _deployments(client, _names())
            schedules = {(s.schedule.model_dump_json(), s.active) for s in deployment.schedules}
            return deployment, deployment.paused, schedules

        deployment = found()[0]
        client.update_deployment_schedule(deployment.id, deployment.schedules[0].id, active=True)
        added = IntervalSchedule(interval=timedelta(hours=5), timezone="UTC")
        client.create_deployment_schedules(deployment.id, [(added, True)], parameters={"seed": 3})
        client.update_deployment(deployment.id, DeploymentUpdate(paused=True))
        before = found()[1:]
        assert before[0] and len(before[1]) == 2 and all(active for _, active in before[1])
        deploy()
        assert found()[1:] == before
        assert {"seed": 3} in [schedule.parameters for schedule in found()[0].schedules]
        line = f"kept as on the server: {deployment.name} (paused, 2 active schedules)\n"
        assert capsys.readouterr().out == line
        file.write_text(file.read_text().replace("0 2 *", "0 3 *"))
        deploy()
        new = CronSchedule(cron="0 3 * * *", timezone="UTC").model_dump_json()
        assert found()[1:] == (True, {(new, False)})


@pytest.mark.slow  # automations act after 10 s at least
def test_a_crashed_run_starts_again_twice_unless_it_was_cancelled(api, clone, monkeypatch):
    from prefect.client.orchestration import get_client
    from prefect.deployments import run_deployment
    from prefect.states import Cancelled, Crashed, Pending, Running

    from flows import serve

    monkeypatch.chdir(clone("carol"))
    monkeypatch.setattr(serve, "RESTART", timedelta(seconds=10))
    serve.deploy()
    name = f"federate/federate-{serve.project()}"
    crash = (Pending, Running, Crashed)
    with get_client(sync_client=True) as client:

        def enter(number: UUID, *states: "Callable[[], State]") -> None:
            for state in states:
                client.set_flow_run_state(number, state(), force=True)

        def entered(number: UUID) -> str:
            return client.read_flow_run(number).state_name

        def triggers() -> list[dict]:
            answer = client.request("POST", "/automations/filter", json={})
            return [each["trigger"] for each in answer.json() if serve.project() in each["name"]]

        lost, old = (run_deployment(name, timeout=0).id for _ in range(2))
        enter(old, *crash)
        time.sleep(20)
        enter(lost, *crash)
        time.sleep(2)
        monkeypatch.setattr(serve, "RECENT", timedelta(seconds=20))
        serve.restart()  # no automation has seen these crashes
        before = triggers()
        serve.restart()
        assert triggers() == before and len(before) == 2  # what they wait for is kept
        wait_for(lambda: entered(lost) == "AwaitingRetry")
        gone = run_deployment(name, timeout=0).id
        enter(gone, Pending, Running)
        monkeypatch.setattr(serve, "SILENCE", timedelta(seconds=10))
        serve.restart()  # by the next `make serve`, after server and run were killed
        wait_for(lambda: entered(gone) == "AwaitingRetry")
        often, cancelled, again = (run_deployment(name, timeout=0).id for _ in range(3))
        enter(often, *crash, *crash, *crash)
        enter(cancelled, *crash)
        time.sleep(2)  # after four tries to write to a busy SQLite, Prefect drops an event
        enter(cancelled, Cancelled)
        time.sleep(2)
        for _ in range(2):
            enter(again, *crash)
            wait_for(lambda: entered(again) == "AwaitingRetry")
        assert (entered(often), entered(cancelled), entered(old)) == ("Crashed", "Cancelled", "Crashed")


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
