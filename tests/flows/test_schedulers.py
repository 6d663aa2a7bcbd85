"""Runs of deployments that are cancelled, killed, scheduled or limited, with a real server and worker."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import pytest
from command import make_project
from conftest import PARAMS
from services import family, living, started, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # every run starts a process that imports torch

CHECKOUT = Path(__file__).parents[2]
FINAL = ("COMPLETED", "CANCELLED", "FAILED", "CRASHED")
SHORT = ("run.rounds=2",)
LONG = ("run.rounds=30", "training.epochs=20")


@dataclass
class Lab:
    """A project with deployments, and the worker that runs them."""

    name: str
    worker: subprocess.Popen
    log: Path
    client: Any

    def start(self, flow: str, root: Path, *settings: str, **parameters: Any) -> UUID:
        """Start the deployment of a flow; returns the number of its run."""
        from prefect.deployments import run_deployment

        given = {"root": str(root), "settings": list(settings)} | parameters
        if flow == "federate":
            given = {"partition": "digits-6", "method": "fedavg"} | given
        return run_deployment(f"{flow}/{flow}-{self.name}", parameters=given, timeout=0).id

    def run(self, number: UUID) -> Any:
        return self.client.read_flow_run(number)

    def wait(self, number: UUID, state: str) -> Any:
        """The run, once it is in this final state; another one fails."""
        wait_for(lambda: self.run(number).state_type in FINAL, self.worker)
        assert self.run(number).state_name == state, self.said()[-3000:]
        return self.run(number)

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def trains(self, since: int = 0) -> None:
        """Wait until a run has logged rounds after this position of the log."""
        wait_for(lambda: self.said()[since:].count(": round ") > 2, self.worker)


@pytest.fixture(scope="module")
def lab(api: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    from prefect.client.orchestration import get_client

    from flows import serve

    folder = make_project(tmp_path_factory.mktemp("lab"), PARAMS)
    for each in ("flows", "tasks", "fedflow", "prefect.yaml"):
        (folder / each).symlink_to(CHECKOUT / each)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        serve.deploy()
        serve.restart()
        command = serve.prefect("worker", "start", "--pool", serve.project(), "--type", "process")
        with (
            (folder / "log").open("w") as log,
            started(*command, stdout=log, stderr=log) as worker,
            get_client(sync_client=True) as client,
        ):
            yield Lab(serve.project(), worker, folder / "log", client)


@pytest.mark.parametrize("flow", ["federate", "sweep"])
def test_a_cancelled_run_stops_and_the_next_one_resumes_it(
    lab, flow, root, expected, results, mlflow_runs
) -> None:
    from prefect.states import Cancelling

    grid = {"methods": ["fedavg"], "partitions": ["digits-6"], "seeds": [0, 1]} if flow == "sweep" else {}
    settings = (*LONG, "engine.executor=processes") if grid else LONG
    before = len(lab.said())
    number = lab.start(flow, root, *settings, **grid)
    lab.trains(before)
    processes = family(lab.worker)[1:]
    lab.client.set_flow_run_state(number, Cancelling())
    lab.wait(number, "Cancelled")
    assert not living(processes)
    said = lab.said()[before:]
    assert ": round 30/30" not in said and "seed 1: " not in said
    (record,) = [run for run in mlflow_runs(root) if run.data.tags.get("fedflow.key")]
    assert record.info.status == "KILLED"

    lab.wait(lab.start(flow, root, *settings, **grid), "Completed")
    assert "'round 1 · train" not in lab.said()[before + len(said) :].split("seed 1: ")[0]
    for seed in grid.get("seeds", [0]):
        assert results(root, seed=seed) == expected("fedavg", seed=seed, settings=LONG)
    runs = [run for run in mlflow_runs(root) if run.data.tags.get("fedflow.key")]
    assert {run.info.status for run in runs} == {"FINISHED"} and len(runs) == len(grid.get("seeds", [0]))


def kill(lab: Lab) -> None:
    """Kill the processes of the run, as the system does if memory is short."""
    for process in reversed(family(lab.worker)[1:]):
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)


def test_a_killed_run_is_started_once_again_from_its_checkpoint(
    lab, root, expected, results, mlflow_runs
) -> None:
    before = len(lab.said())
    number = lab.start("federate", root, *LONG)
    lab.trains(before)
    kill(lab)
    wait_for(lambda: lab.run(number).state_name == "Crashed", lab.worker)
    wait_for(lambda: lab.run(number).state_name == "Running", lab.worker)
    assert lab.wait(number, "Completed").run_count == 2
    assert lab.said()[before:].count("'round 1 · train · worker 1") == 1
    assert results(root) == expected("fedavg", settings=LONG)
    (record,) = mlflow_runs(root)
    assert record.info.status == "FINISHED"


@pytest.mark.parametrize("limit", ["deployment", "work pool"])
def test_runs_of_a_schedule_wait_for_each_other(lab, limit, root, expected, results) -> None:
    from prefect.client.schemas.actions import DeploymentScheduleCreate, DeploymentUpdate, WorkPoolUpdate
    from prefect.client.schemas.schedules import IntervalSchedule
    from prefect.states import Cancelled

    federate = lab.client.read_deployment_by_name(f"federate/federate-{lab.name}").id
    often = DeploymentScheduleCreate(
        schedule=IntervalSchedule(interval=timedelta(seconds=5)),
        parameters={"partition": "digits-6", "method": "fedavg", "root": str(root), "settings": list(SHORT)},
    )

    def set_limit(number: int | None) -> None:
        if limit == "deployment":
            lab.client.update_deployment(federate, DeploymentUpdate(concurrency_limit=number))
        else:
            lab.client.update_work_pool(lab.name, WorkPoolUpdate(concurrency_limit=number))

    set_limit(1)
    schedule = lab.client.create_deployment_schedules(federate, [often])[0]
    try:
        wait_for(lambda: len(planned(lab, root, "COMPLETED")) > 1, lab.worker)
    finally:
        lab.client.delete_deployment_schedule(federate, schedule.id)
        for run in planned(lab, root, "SCHEDULED", "PENDING"):
            lab.client.set_flow_run_state(run.id, Cancelled(), force=True)
        set_limit(None)
    wait_for(lambda: not planned(lab, root, "PENDING", "RUNNING"), lab.worker)
    assert not planned(lab, root, "FAILED", "CRASHED")
    done = sorted(planned(lab, root, "COMPLETED"), key=lambda run: run.start_time)
    assert all(run.auto_scheduled for run in done)
    assert all(one.end_time <= other.start_time for one, other in pairwise(done))
    assert results(root) == expected("fedavg", settings=SHORT)


def planned(lab: Lab, root: Path, *states: str) -> list[Any]:
    """The runs of a project in these states."""
    from prefect.client.schemas.filters import FlowRunFilter

    runs = lab.client.read_flow_runs(flow_run_filter=FlowRunFilter(state={"type": {"any_": states}}))
    return [run for run in runs if run.parameters.get("root") == str(root)]
