"""Runs of deployments that are cancelled, killed, scheduled or limited, with a real server and worker."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import pytest
from command import free_port, make_project
from conftest import PARAMS
from services import family, living, started, wait_for
from test_pools import pools

from flows import serve

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # every run starts a process that imports torch

CHECKOUT, BIN = Path(__file__).parents[2], str(Path(sys.executable).parent)
PARAMETERS: dict[str, dict[str, Any]] = {
    "federate": {"partition": "digits-6", "method": "fedavg"},
    "sweep": {"partitions": ["digits-6"], "methods": ["fedavg"], "seeds": [0, 1]},
}
SHORT = ("run.rounds=2",)
LONG = ("run.rounds=30", "training.epochs=20")


SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
unset PREFECT__CONTROL_PORT PREFECT__CONTROL_TOKEN  # another node does not reach the worker's port
"$@" & job=$!
trap 'kill -TERM $job' TERM
wait $job; code=$?
while kill -0 $job 2> /dev/null; do wait $job; code=$?; done
exit $code
"""
SBATCH = """#!/bin/bash
for option; do
    case $option in
        --array=1-*) tasks=${option#--array=1-} ;;
        --wrap=*) program=${option#--wrap=} ;;
    esac
done
for task in $(seq $tasks); do $program >> workers.log 2>&1 & done
wait  # the scheduler of a cluster does not; the test ends the workers with it
"""


@dataclass
class Lab:
    """A project with deployments, and the worker that runs them."""

    name: str
    worker: subprocess.Popen
    log: Path
    client: Any

    def start(self, kind: str, root: Path, *settings: str) -> UUID:
        """Start a federated run, in a SLURM job, or a sweep with two seeds; returns its number."""
        from prefect.deployments import run_deployment

        flow = "sweep" if kind == "sweep" else "federate"
        given = {"root": str(root), "settings": list(settings)} | PARAMETERS[flow]
        job = pools()["slurm"]["job_variables"] | {"working_dir": str(self.log.parent)}
        return run_deployment(
            f"{flow}/{flow}-{self.name}",
            parameters=given,
            job_variables=job if kind == "slurm" else None,
            timeout=0,
        ).id

    def run(self, number: UUID) -> Any:
        return self.client.read_flow_run(number)

    def wait(self, number: UUID, state: str) -> Any:
        """The run, once it is in this state; `Failed` is another one, and `Crashed` may not be the last."""
        wait_for(lambda: self.run(number).state_name in (state, "Failed"), self.worker)
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

    folder = make_project(tmp_path_factory.mktemp("lab"), PARAMS)
    for name in ("flows", "tasks", "fedflow", "prefect.yaml"):
        (folder / name).symlink_to(CHECKOUT / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PREFECT_FLOWS_HEARTBEAT_FREQUENCY", "30")
        for name, script in (("srun", SRUN), ("sbatch", SBATCH)):
            (folder / name).write_text(script)
            (folder / name).chmod(0o755)
        patch.setenv(
            "PATH", f"{folder}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        )
        serve.deploy()
        serve.restart()
        with working(folder / "log") as worker, get_client(sync_client=True) as client:
            yield Lab(serve.project(), worker, folder / "log", client)


@contextmanager
def working(log: Path) -> Iterator[subprocess.Popen]:
    """A worker of the current project, which adds to a log."""
    command = serve.prefect("worker", "start", "--pool", serve.project(), "--type", "process")
    with log.open("a") as file, started(*command, stdout=file, stderr=file) as worker:
        yield worker


@pytest.mark.parametrize("kind", ["federate", "sweep", "slurm"])
def test_a_cancelled_run_stops_and_the_next_one_resumes_it(
    lab, kind, root, expected, results, mlflow_runs
) -> None:
    from prefect.states import Cancelling

    settings, seeds = (LONG, [0]) if kind != "sweep" else ((*LONG, "engine.executor=processes"), [0, 1])
    before = len(lab.said())
    number = lab.start(kind, root, *settings)
    lab.trains(before)
    processes = family(lab.worker)[1:]
    lab.client.set_flow_run_state(number, Cancelling())
    lab.wait(number, "Cancelled")
    assert not living(processes)
    said = lab.said()[before:]
    assert ": round 30/30" not in said and "seed 1: " not in said
    (record,) = [run for run in mlflow_runs(root) if run.data.tags.get("fedflow.key")]
    assert record.info.status == "KILLED"

    lab.wait(lab.start(kind, root, *settings), "Completed")
    assert "'round 1 · train" not in lab.said()[before + len(said) :].split("seed 1: ")[0]
    for seed in seeds:
        assert results(root, seed=seed) == expected("fedavg", seed=seed, settings=LONG)
    runs = [run for run in mlflow_runs(root) if run.data.tags.get("fedflow.key")]
    assert {run.info.status for run in runs} == {"FINISHED"} and len(runs) == len(seeds)


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
    lab.wait(number, "Crashed")
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
        parameters={"root": str(root), "settings": list(SHORT)} | PARAMETERS["federate"],
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
    assert all(earlier.end_time <= later.start_time for earlier, later in pairwise(done))
    assert results(root) == expected("fedavg", settings=SHORT)


def planned(lab: Lab, root: Path, *states: str) -> list[Any]:
    """The runs of a project in these states."""
    from prefect.client.schemas.filters import FlowRunFilter

    runs = lab.client.read_flow_runs(flow_run_filter=FlowRunFilter(state={"type": {"any_": states}}))
    return [run for run in runs if run.parameters.get("root") == str(root)]


def test_workers_of_a_slurm_array_train_the_runs_of_a_deployment(lab, root, expected, results) -> None:
    guide = (CHECKOUT / "docs" / "clusters.md").read_text()
    submit = guide.split("sbatch job.sh")[1].split("```bash\nsbatch")[1].split("```")[0]
    assert "--array=1-8" in submit and ":8786" in submit
    port, log = free_port(), lab.log.parent / "workers.log"
    submit = f"sbatch{submit}".replace("--array=1-8", "--array=1-2").replace(":8786", f":{port}")
    scheduler = ("dask", "scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard")
    with (
        started(*scheduler),
        started("bash", "-c", submit, environment=os.environ | {"HEAD": "127.0.0.1"}) as job,
    ):
        wait_for(lambda: log.exists() and log.read_text().count("Registered to") == 2, job)
        cluster = ("engine.executor=dask", f"engine.address=tcp://127.0.0.1:{port}")
        lab.wait(lab.start("federate", root, *SHORT, *cluster), "Completed")
    assert results(root) == expected("fedavg", settings=SHORT)


def test_a_run_whose_machine_is_gone_continues_elsewhere(
    lab, root, expected, results, mlflow_runs, monkeypatch
) -> None:
    """The last test with this worker, which dies with the run."""
    monkeypatch.chdir(lab.log.parent)
    monkeypatch.setattr(serve, "SILENCE", timedelta(minutes=1))
    serve.restart()
    before = len(lab.said())
    number = lab.start("federate", root, *LONG)
    lab.trains(before)
    processes = family(lab.worker)
    for signals in (signal.SIGSTOP, signal.SIGKILL):  # none of them sees another one die
        for process in processes:
            process.send_signal(signals)
    assert lab.run(number).state_name == "Running"
    with working(lab.log) as lab.worker:
        lab.wait(number, "Crashed")
        assert lab.wait(number, "Completed").run_count == 2
    assert results(root) == expected("fedavg", settings=LONG)
    assert {run.info.status for run in mlflow_runs(root)} == {"FINISHED"}
