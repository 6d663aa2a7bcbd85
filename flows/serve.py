"""What ``make serve`` runs: a server with its UI, the deployments of prefect.yaml, and a worker for them."""

import argparse
import os
import signal
import subprocess
import sys
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import psutil

from fedflow.errors import FedflowError
from flows.server import PAGES, STOP_TIMEOUT, home, password_file, prefect_api, stop, used

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

AUTOMATION = "fedflow: a run failed"
POOL = "fedflow"  # the work pool that prefect.yaml names


def deploy() -> None:
    """Create the work pool and the deployments that the API server lacks.

    Runs execute in the current folder. Raises `FedflowError` if prefect.yaml cannot be deployed.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists
    from prefect.workers.process import ProcessWorker

    template = ProcessWorker.get_default_base_job_template()
    with get_client(sync_client=True) as api, suppress(ObjectAlreadyExists):
        api.create_work_pool(WorkPoolCreate(name=POOL, type="process", base_job_template=template))
    command = prefect("--no-prompt", "deploy", "--all")
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise FedflowError(f"prefect.yaml cannot be deployed: {(done.stderr or done.stdout).strip()}")
    with get_client(sync_client=True) as api:
        _offer_choices(api)


def _offer_choices(api: "SyncPrefectClient") -> None:
    """Let the forms of the deployments offer the names of params.yaml; others are still accepted."""
    from prefect.client.schemas.actions import DeploymentUpdate

    from fedflow.config import load_params
    from fedflow.methods import METHODS

    params = load_params(Path("params.yaml"))
    partitions, methods = list(params.partitions), sorted({*METHODS, *params.methods})
    choices: dict[str, dict[str, list[str]]] = {
        "federate": {"partition": partitions, "method": methods},
        "sweep": {"partitions": partitions, "methods": methods},
        "central": {"name": list(params.central)},
        "procedure": {"name": list(params.procedure_entries)},
    }
    for deployment in api.read_deployments():
        schema = deepcopy(deployment.parameter_openapi_schema) or {}
        offered = choices.get(deployment.name, {})
        for field, names in offered.items():
            about = schema["properties"][field]
            lists = [each for each in about.get("anyOf", ()) if each.get("type") == "array"]
            place = lists[0].setdefault("items", {}) if lists else about
            place["enum"] = names
        if offered:
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
    number = webhook.save("fedflow-webhook", overwrite=True)
    trigger = EventTrigger(
        expect={"prefect.flow-run.Failed", "prefect.flow-run.Crashed"},
        match={"prefect.resource.id": "prefect.flow-run.*"},
        posture=Posture.Reactive, threshold=1,
    )  # fmt: skip
    said = SendNotification(
        block_document_id=UUID(str(number)),
        subject="fedflow: {{ flow_run.name }}: {{ flow_run.state.name }}",
        body="{{ flow_run.state.message }}",
    )
    about = "Tells a webhook that a flow run failed or crashed (python -m flows.serve --notify)."
    wanted = AutomationCore(name=AUTOMATION, description=about, trigger=trigger, actions=[said])
    with get_client(sync_client=True) as api:
        for found in api.read_automations_by_name(AUTOMATION):
            api.delete_automation(found.id)
        api.create_automation(wanted)


def prefect(*arguments: str) -> list[str]:
    """The command line of this environment's Prefect."""
    return [sys.executable, "-m", "prefect", *arguments]


def serve(port: int, webhook: str | None = None) -> None:
    """Serve until Ctrl-C or SIGTERM; with a ``webhook``, `notify` it of failed runs."""
    own = "PREFECT_API_URL" not in os.environ
    with prefect_api(port) as url:
        deploy()
        if webhook:
            notify(webhook)
        print(f"Prefect UI: {url.removesuffix('/api')}  (Ctrl-C stops server and worker)", flush=True)
        if own:
            print(f"It asks for a password once; paste the line in {password_file(home())}", flush=True)
        worker = subprocess.Popen(prefect("worker", "start", "--pool", POOL, "--type", "process"))
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
    parser.add_argument("--notify", metavar="URL", help="webhook (of Slack, for example) told of failed runs")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        given = parser.parse_args()
        serve(given.port, given.notify)
    except FedflowError as error:
        sys.exit(f"fedflow: {error}")
    except KeyboardInterrupt:
        pass
    finally:
        if not used(home()):  # a `fedflow run` elsewhere may still need the server
            stop()


if __name__ == "__main__":
    main()
