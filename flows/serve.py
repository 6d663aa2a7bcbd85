"""What ``make serve`` runs: a server with its UI, the deployments of prefect.yaml, and a worker for them."""

import argparse
import os
import signal
import subprocess
import sys
from contextlib import suppress

import psutil

from fedflow.errors import FedflowError
from flows.server import STOP_TIMEOUT, home, password_file, prefect_api, stop, used

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


def prefect(*arguments: str) -> list[str]:
    """The command line of this environment's Prefect."""
    return [sys.executable, "-m", "prefect", *arguments]


def serve(port: int) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    own = "PREFECT_API_URL" not in os.environ
    with prefect_api(port) as url:
        deploy()
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
    parser.add_argument("--port", type=int, default=4200, help="port of API and UI on localhost (4200)")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        serve(parser.parse_args().port)
    except FedflowError as error:
        sys.exit(f"fedflow: {error}")
    except KeyboardInterrupt:
        pass
    finally:
        if not used(home()):  # a `fedflow run` elsewhere may still need the server
            stop()


if __name__ == "__main__":
    main()
