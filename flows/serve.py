"""``python -m flows.serve``: a Prefect server with its UI, the deployments of prefect.yaml, and a worker."""

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psutil
import yaml

from fedflow.errors import BadInput, FedflowError, asking_prefect, reason
from fedflow.naming import counted
from fedflow.project.digest import SHORT, digest
from fedflow.project.distribution import require
from fedflow.project.telemetry import NO_TELEMETRY
from fedflow.project.templates import check_present
from flows.server import PAGES, STOP_TIMEOUT, home, password_file, prefect_api, stop, used

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import StateType
    from prefect.client.schemas.responses import DeploymentResponse
    from prefect.events.actions import ActionTypes
    from prefect.events.schemas.automations import EventTrigger

PROJECT = "FEDFLOW_PROJECT"  # the variable in prefect.yaml
RESTART = timedelta(minutes=1)  # from a crash to the next start; a worker may report a crash twice
SILENCE = timedelta(minutes=10)  # of a run, which sends a heartbeat every three minutes
RECENT = timedelta(days=7)  # from a crash to a start of `make serve` that restarts the run
STILL = "StillCrashed"  # an event of ours: "Crashed" would tell webhooks twice


def project() -> str:
    """The name of this project on a shared server: its folder, and a digest of machine and path.

    It names the work pool and is part of the names of deployments and of webhooks.
    """
    folder = Path.cwd()
    label = re.sub("[^a-z0-9]+", "-", folder.name.lower()).strip("-")[:40] or "project"
    return f"{label}-{digest(f'{socket.gethostname()}:{folder}', 6)}"


def deploy() -> None:
    """Create the work pool and the deployments, whose runs execute in the current folder.

    What was set in the UI is kept: paused deployments, and schedules until prefect.yaml has others.
    Raises `FedflowError` if prefect.yaml cannot be deployed, or has the name of a deployment of another
    folder.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists
    from prefect.workers.process import ProcessWorker

    template = ProcessWorker.get_default_base_job_template()
    content = _content()
    entries = {entry["name"]: entry for entry in content["deployments"]}
    with get_client(sync_client=True) as api:
        earlier = _deployments(api, [*entries])
        for deployment in earlier:
            if deployment.name.endswith(project()):
                continue  # a name of this folder, although its runs may be in a folder of a container
            if (folder := _folder(deployment)) not in (None, str(Path.cwd())):
                raise FedflowError(
                    f"prefect.yaml: the server has the deployment {deployment.name} of the folder {folder}; "
                    f'choose another name, or add "-{{{{ ${PROJECT} }}}}" to it'
                )
        with suppress(ObjectAlreadyExists):
            api.create_work_pool(WorkPoolCreate(name=project(), type="process", base_job_template=template))
    with _kept(earlier, entries):
        _prefect_deploy(content)
    with get_client(sync_client=True) as api:
        _offer_choices(api)


@contextmanager
def _kept(earlier: "list[DeploymentResponse]", entries: dict[str, dict[str, Any]]) -> Iterator[None]:
    """A context in which entries of prefect.yaml have what was set in the UI.

    A variable on the server has digests of the schedules that were deployed last.
    """
    from prefect.variables import Variable

    variable = f"fedflow-{project()}"
    schedules = {name: digest(str(entry.get("schedules")), SHORT) for name, entry in entries.items()}
    deployed = Variable.get(variable)
    deployed = deployed if isinstance(deployed, dict) else schedules
    for deployment in earlier:
        name = deployment.name
        _keep(deployment, entries[name], changed=deployed.get(name) != schedules[name])
    yield
    Variable.set(variable, schedules, overwrite=True)


def _keep(deployment: "DeploymentResponse", entry: dict[str, Any], changed: bool) -> None:
    """Put what the server has into an entry of prefect.yaml: a pause, and schedules if not ``changed``."""
    schedules = [
        schedule.schedule.model_dump(mode="json")
        | schedule.model_dump(mode="json", include={"active", "parameters", "slug"})
        for schedule in deployment.schedules
    ]
    kept = []
    if deployment.paused and not entry.get("paused"):
        entry["paused"] = True
        kept.append("paused")
    if not changed and "schedule" not in entry and not _alike(schedules, entry.get("schedules") or []):
        entry["schedules"] = schedules
        kept.append(counted(sum(schedule["active"] for schedule in schedules), "active schedule"))
    if kept:
        print(f"kept as on the server: {deployment.name} ({', '.join(kept)})", flush=True)


def _alike(schedules: list[dict[str, Any]], written: list[dict[str, Any]]) -> bool:
    """True if the schedules of a deployment are as in prefect.yaml."""
    given = [({"active": True} | entry).items() for entry in written]
    return len(schedules) == len(given) and all(any(i <= s.items() for s in schedules) for i in given)


def _prefect_deploy(content: dict[str, Any]) -> None:
    """Run ``prefect deploy`` with this content of prefect.yaml."""
    with TemporaryDirectory() as folder:
        (file := Path(folder, "prefect.yaml")).write_text(yaml.safe_dump(content))
        command = prefect("--no-prompt", "deploy", "--all", "--prefect-file", str(file))
        environment = os.environ | {PROJECT: project()}
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise FedflowError(f"prefect.yaml cannot be deployed: {(done.stderr or done.stdout).strip()}")


def _content() -> dict[str, Any]:
    """The content of prefect.yaml, with the names of deployments as on the server."""
    try:
        content = yaml.safe_load(Path("prefect.yaml").read_text())
        for entry in content["deployments"]:
            entry["name"] = re.sub(rf"{{{{ *\${PROJECT} *}}}}", project(), str(entry["name"]))
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise FedflowError(f"prefect.yaml cannot be deployed: {reason(error)}") from error
    return content


def _names() -> list[str]:
    """The names of the deployments in prefect.yaml."""
    return [entry["name"] for entry in _content()["deployments"]]


def _deployments(api: "SyncPrefectClient", names: list[str]) -> "list[DeploymentResponse]":
    """The deployments of the server with these names."""
    from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterName

    return api.read_deployments(deployment_filter=DeploymentFilter(name=DeploymentFilterName(any_=names)))


def _folder(deployment: "DeploymentResponse") -> str | None:
    """The folder in which the runs of a deployment execute, if it names one."""
    steps = [options for step in deployment.pull_steps or [] for options in step.values()]
    return next((options["directory"] for options in steps if "directory" in options), None)


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
    offered = {f"{flow}-{project()}": fields for flow, fields in choices.items()}
    for deployment in _deployments(api, list(offered)):
        schema = deepcopy(deployment.parameter_openapi_schema) or {}
        for field, names in offered[deployment.name].items():
            parameter = schema["properties"][field]
            lists = [arm for arm in parameter.get("anyOf", ()) if arm.get("type") == "array"]
            (lists[0].setdefault("items", {}) if lists else parameter)["enum"] = names
        # The flows check their arguments: other projects have other names.
        update = DeploymentUpdate(parameter_openapi_schema=schema, enforce_parameter_schema=False)
        api.update_deployment(deployment.id, update)


def notify(url: str) -> None:
    """Send a line to a webhook (Slack's, or any that takes JSON with ``text``) when a flow run fails.

    Raises `FedflowError` for an address that Prefect refuses.
    """
    from prefect.blocks.notifications import CustomWebhookNotificationBlock
    from prefect.events.actions import SendNotification
    from prefect.events.schemas.automations import EventTrigger, Posture

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
    message = SendNotification(
        block_document_id=UUID(str(number)),
        subject="fedflow: {{ flow_run.name }}: {{ flow_run.state.name }}",
        body="{{ flow_run.state.message }}",
    )
    doc = "Tells a webhook that a flow run failed or crashed (python -m flows.serve --notify)."
    _automate("a run failed", doc, trigger, message)


def restart() -> None:
    """Start runs of these deployments again that crashed, from the last checkpoint, at most twice.

    A run that stays `Crashed` for `RESTART`, and so was neither cancelled nor started by hand, is scheduled.
    So is one that crashed before this start, as nothing may have waited for it.
    A run whose heartbeats stop for `SILENCE`, because its machine is gone, becomes `Crashed` first.
    """
    from prefect.client.schemas.objects import StateType
    from prefect.events.actions import ChangeFlowRunState

    crash = ChangeFlowRunState(
        state=StateType.CRASHED,
        name="Crashed",
        message=f"No heartbeat for {SILENCE}: the machine of the run is gone.",
        force=False,
    )
    doc = "Marks a run as crashed if its machine is gone (python -m flows.serve)."
    _automate("a run is silent", doc, _nothing_after({"heartbeat"}, SILENCE), crash)
    _repeat("heartbeat", StateType.RUNNING)
    start = ChangeFlowRunState(
        state=StateType.SCHEDULED,
        name="AwaitingRetry",
        message="The run had crashed; it resumes from its last checkpoint.",
        force=False,
    )
    doc = "Restarts a crashed run, at most twice (python -m flows.serve)."
    early = {"prefect.run-count": ["1", "2"]}
    _automate("a run crashed", doc, _nothing_after({"Crashed", STILL}, RESTART, **early), start)
    _repeat(STILL, StateType.CRASHED)


def _repeat(event: str, state: "StateType") -> None:
    """Send this event for all runs of these deployments in a state.

    A run whose machine is gone sends none, and a new or changed automation ignores earlier ones.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import (
        DeploymentFilter,
        DeploymentFilterName,
        FlowRunFilter,
        FlowRunFilterState,
        FlowRunFilterStateType,
    )
    from prefect.client.schemas.sorting import FlowRunSort
    from prefect.events import emit_event

    chosen = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[state])))
    ours = DeploymentFilter(name=DeploymentFilterName(any_=_names()))
    newest = FlowRunSort.END_TIME_DESC
    with get_client(sync_client=True) as api:
        runs = api.read_flow_runs(deployment_filter=ours, flow_run_filter=chosen, sort=newest)
    since = datetime.now(UTC) - RECENT
    for run in runs:
        if run.end_time and run.end_time < since:
            continue
        emit_event(
            f"prefect.flow-run.{event}",
            resource={
                "prefect.resource.id": f"prefect.flow-run.{run.id}",
                "prefect.run-count": str(run.run_count),
            },
            related=[
                {
                    "prefect.resource.id": f"prefect.deployment.{run.deployment_id}",
                    "prefect.resource.role": "deployment",
                }
            ],
        )


def _nothing_after(events: set[str], within: timedelta, **labels: list[str]) -> "EventTrigger":
    """The trigger for runs of these deployments that have one of these events, and then none for a time."""
    from prefect.client.orchestration import get_client
    from prefect.events.schemas.automations import EventTrigger, Posture
    from prefect.events.schemas.events import ResourceSpecification

    with get_client(sync_client=True) as api:
        ours = sorted(f"prefect.deployment.{deployment.id}" for deployment in _deployments(api, _names()))
    of_them: dict[str, str | list[str]] = {"prefect.resource.role": "deployment", "prefect.resource.id": ours}
    return EventTrigger(
        after={f"prefect.flow-run.{event}" for event in events},
        expect={"prefect.flow-run.*"},
        match=ResourceSpecification({"prefect.resource.id": "prefect.flow-run.*", **labels}),
        match_related=ResourceSpecification(of_them),
        for_each={"prefect.resource.id"},
        posture=Posture.Proactive,
        threshold=1,
        within=within,
    )


def _automate(event: str, doc: str, trigger: "EventTrigger", action: "ActionTypes") -> None:
    """Create or update an automation of this project; one that is switched off stays off.

    A deleted one would still act until the server restarts, and start cancelled runs again. One that is
    updated forgets the runs that it was about to restart, so one that is as wanted is left alone.
    """
    from prefect.client.orchestration import get_client
    from prefect.events.schemas.automations import AutomationCore

    name = f"fedflow {project()}: {event}"
    with get_client(sync_client=True) as api:
        earlier = api.read_automations_by_name(name)
        on = all(automation.enabled for automation in earlier)
        wanted = AutomationCore(name=name, description=doc, enabled=on, trigger=trigger, actions=[action])
        if not earlier:
            api.create_automation(wanted)
        elif AutomationCore.model_validate(earlier[0].model_dump()) != wanted:
            api.update_automation(earlier[0].id, wanted)


def prefect(*arguments: str) -> list[str]:
    """The command line of this environment's Prefect."""
    return [sys.executable, "-m", "prefect", *arguments]


def serve(port: int | None, webhook: str | None = None) -> int:
    """Serve until Ctrl-C or SIGTERM; with a ``webhook``, `notify` it of failed runs.

    Returns the exit code of a worker that ends earlier. Raises `BadInput` for a ``port`` if the server
    runs already, on another one.
    """
    require("python -m flows.serve", "prefect")
    check_present(Path(), "prefect.yaml")
    private = "PREFECT_API_URL" not in os.environ
    if port and private and not used(home()):
        stop()  # an idle server, which may have another port
    with prefect_api(PAGES if port is None else port) as url, asking_prefect():
        address = url.removesuffix("/api")
        if port and not address.endswith(f":{port}"):
            raise BadInput("--port", port, f"no port, as the server runs already at {address}")
        deploy()
        restart()
        if webhook:
            notify(webhook)
        print(f"Prefect UI: {address}  (Ctrl-C stops server and worker)", flush=True)
        if private:
            print(f"It asks for a password once; paste the line in {password_file(home())}", flush=True)
        worker = subprocess.Popen(prefect("worker", "start", "--pool", project(), "--type", "process"))
        try:
            code = worker.wait()
        finally:
            _end(worker)
    return 128 - code if code < 0 else code  # a signal, as shells report it


def _end(worker: subprocess.Popen) -> None:
    """End a worker and its flow runs, for which it would wait."""
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
    parser.add_argument("--port", type=int, help=f"port for a new server (API and UI) on localhost ({PAGES})")
    parser.add_argument("--project", action="store_true", help="print the project's name on the server")
    parser.add_argument("--notify", metavar="URL", help="webhook (such as Slack's) to notify of failed runs")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    given = parser.parse_args()
    if given.project:
        return print(project())
    for name, value in NO_TELEMETRY.items():
        os.environ.setdefault(name, value)
    try:
        sys.exit(serve(given.port, given.notify))
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
