"""``python -m flows.serve``: a server with its UI, the deployments of prefect.yaml, and a worker for them."""

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import psutil
import yaml

from fedflow.errors import FedflowError, asking_prefect, reason
from fedflow.project.digest import digest
from fedflow.project.distribution import require
from fedflow.project.templates import check_present
from flows.server import PAGES, STOP_TIMEOUT, home, password_file, prefect_api, stop, used

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.responses import DeploymentResponse

PROJECT = "FEDFLOW_PROJECT"  # the variable in prefect.yaml


def project() -> str:
    """The name of this project on a server that others may use, too: its folder, and a digest of its place.

    It names the work pool and is part of the names of deployments and of what `notify` creates.
    """
    folder = Path.cwd()
    label = re.sub("[^a-z0-9]+", "-", folder.name.lower()).strip("-")[:40] or "project"
    place = f"{socket.gethostname()}:{folder}"
    return f"{label}-{digest(place, 6)}"


def deploy() -> None:
    """Create the work pool and the deployments that the API server lacks.

    Runs execute in the current folder. Raises `FedflowError` if prefect.yaml cannot be deployed, or has the
    name of a deployment of another folder.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists
    from prefect.workers.process import ProcessWorker

    template = ProcessWorker.get_default_base_job_template()
    names = _names()
    with get_client(sync_client=True) as api:
        for found in _deployments(api, names):
            if (folder := _folder(found)) not in (None, str(Path.cwd())):
                raise FedflowError(
                    f"prefect.yaml: the deployment {found.name} of this server is of the folder {folder}; "
                    f'choose another name, or add "-{{{{ ${PROJECT} }}}}" to it'
                )
        with suppress(ObjectAlreadyExists):
            api.create_work_pool(WorkPoolCreate(name=project(), type="process", base_job_template=template))
    command = prefect("--no-prompt", "deploy", "--all")
    environment = os.environ | {PROJECT: project()}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise FedflowError(f"prefect.yaml cannot be deployed: {(done.stderr or done.stdout).strip()}")
    with get_client(sync_client=True) as api:
        _offer_choices(api)


def _names() -> list[str]:
    """The names of the deployments in prefect.yaml."""
    try:
        found = yaml.safe_load(Path("prefect.yaml").read_text())["deployments"]
        names = [str(each["name"]) for each in found]
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise FedflowError(f"prefect.yaml cannot be deployed: {reason(error)}") from error
    return [re.sub(rf"{{{{ *\${PROJECT} *}}}}", project(), name) for name in names]


def _deployments(api: "SyncPrefectClient", names: list[str]) -> "list[DeploymentResponse]":
    """The deployments of the server with these names."""
    from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterName

    return api.read_deployments(deployment_filter=DeploymentFilter(name=DeploymentFilterName(any_=names)))


def _folder(deployment: "DeploymentResponse") -> str | None:
    """The folder in which the runs of a deployment execute, if it names one."""
    given = [options for step in deployment.pull_steps or [] for options in step.values()]
    return next((each["directory"] for each in given if "directory" in each), None)


def _offer_choices(api: "SyncPrefectClient") -> None:
    """Let the forms of the deployments offer the names of params.yaml; others are still accepted."""
    from prefect.client.schemas.actions import DeploymentUpdate

    from fedflow.config import load_params
    from fedflow.methods import METHODS

    params = load_params(Path("params.yaml"))
    partitions, methods = list(params.partitions), sorted({*METHODS, *params.methods})
    choices: dict[str, dict[str, list[str]]] = {  # by flow
        "federate": {"partition": partitions, "method": methods},
        "sweep": {"partitions": partitions, "methods": methods},
        "central": {"name": list(params.central)},
        "procedure": {"name": list(params.procedure_entries)},
    }
    own = {f"{flow}-{project()}": fields for flow, fields in choices.items()}
    for deployment in _deployments(api, list(own)):
        schema = deepcopy(deployment.parameter_openapi_schema) or {}
        offered = own[deployment.name]
        for field, names in offered.items():
            about = schema["properties"][field]
            lists = [each for each in about.get("anyOf", ()) if each.get("type") == "array"]
            place = lists[0].setdefault("items", {}) if lists else about
            place["enum"] = names
        # The flows check their arguments themselves: other projects have other names.
        update = DeploymentUpdate(parameter_openapi_schema=schema, enforce_parameter_schema=False)
        api.update_deployment(deployment.id, update)


def notify(url: str) -> None:
    """Send a line to a webhook (Slack's, or any that takes JSON with ``text``) when a flow run fails.

    Raises `FedflowError` for an address that Prefect refuses.
    """
    from prefect.blocks.notifications import CustomWebhookNotificationBlock
    from prefect.client.orchestration import get_client
    from prefect.events.actions import SendNotification
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

    if not url.startswith(("http://", "https://")):
        raise FedflowError(f"--notify: {url!r} is not accepted; expected the https address of a webhook")
    CustomWebhookNotificationBlock.register_type_and_schema()
    webhook = CustomWebhookNotificationBlock(
        name="fedflow",
        url=url,
        json_data={"text": "{{subject}}\n{{body}}"},
        allow_private_urls=True,
        headers=None,
        cookies=None,
    )
    number = webhook.save(f"fedflow-{project()}", overwrite=True)
    trigger = EventTrigger(
        expect={"prefect.flow-run.Failed", "prefect.flow-run.Crashed"},
        match={"prefect.resource.id": "prefect.flow-run.*"},
        posture=Posture.Reactive,
        threshold=1,
    )
    said = SendNotification(
        block_document_id=UUID(str(number)),
        subject="fedflow: {{ flow_run.name }}: {{ flow_run.state.name }}",
        body="{{ flow_run.state.message }}",
    )
    name = f"fedflow {project()}: a run failed"
    about = "Tells a webhook that a flow run failed or crashed (python -m flows.serve --notify)."
    wanted = AutomationCore(name=name, description=about, trigger=trigger, actions=[said])
    with get_client(sync_client=True) as api:
        for found in api.read_automations_by_name(name):
            api.delete_automation(found.id)
        api.create_automation(wanted)


def prefect(*arguments: str) -> list[str]:
    """The command line of this environment's Prefect."""
    return [sys.executable, "-m", "prefect", *arguments]


def serve(port: int, webhook: str | None = None) -> None:
    """Serve until Ctrl-C or SIGTERM; with a ``webhook``, `notify` it of failed runs."""
    require("python -m flows.serve", "prefect")
    check_present(Path(), "prefect.yaml")
    own = "PREFECT_API_URL" not in os.environ
    with prefect_api(port) as url, asking_prefect():
        deploy()
        if webhook:
            notify(webhook)
        print(f"Prefect UI: {url.removesuffix('/api')}  (Ctrl-C stops server and worker)", flush=True)
        if own:
            print(f"It asks for a password once; paste the line in {password_file(home())}", flush=True)
        worker = subprocess.Popen(prefect("worker", "start", "--pool", project(), "--type", "process"))
        try:
            worker.wait()
        finally:
            _end(worker)


def _end(worker: subprocess.Popen) -> None:
    """End a worker and the flow runs that it started; otherwise it would wait for them."""
    try:
        first = psutil.Process(worker.pid)
        processes = [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    for process in psutil.wait_procs(processes, STOP_TIMEOUT)[1]:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def main() -> None:
    """``python -m flows.serve --port 4200``."""
    parser = argparse.ArgumentParser(prog="python -m flows.serve", description=__doc__)
    parser.add_argument("--port", type=int, default=PAGES, help=f"port of API and UI on localhost ({PAGES})")
    parser.add_argument("--project", action="store_true", help="print the project's name on the server")
    parser.add_argument("--notify", metavar="URL", help="webhook (of Slack, for example) told of failed runs")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    given = parser.parse_args()
    if given.project:
        return print(project())
    try:
        serve(given.port, given.notify)
    except FedflowError as error:
        print(f"fedflow: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        pass
    finally:
        if not used(home()):  # a `fedflow run` elsewhere may still need the server
            stop()


if __name__ == "__main__":
    main()
