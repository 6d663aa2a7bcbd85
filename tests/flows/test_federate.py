"""The federate flow: the same bytes whoever computes, nothing lost when something dies, all of it seen."""

import io
import logging
import os
import signal
import subprocess
from importlib import import_module
from pathlib import Path
from typing import ClassVar

import pytest
import yaml
from command import fedflow
from lossy import Lossy
from services import family, living, started, wait_for

from fedflow.errors import BadInput
from flows import server


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.full), 4])
def test_threads_give_the_bytes_of_the_plain_loop(federate, expected, root, results, workers):
    federate("fedavg", f"engine.workers={workers}")
    assert results(root) == expected("fedavg")


@pytest.mark.slow  # 30 s and more each; processes are shown below, with a worker lost
@pytest.mark.parametrize("executor", ["processes", "dask", "ray"])
def test_other_executors_give_the_bytes_of_the_plain_loop(federate, expected, root, results, executor):
    federate("ditto", f"engine.executor={executor}", "run.rounds=2")
    assert results(root, "ditto") == expected("ditto", settings=("run.rounds=2",))


@pytest.mark.parametrize(
    ("executor", "workers"),
    [
        ("processes", 1),  # of several, only the lost shards run again: tests/tasks/test_shards.py
        pytest.param("processes", 2, marks=pytest.mark.full),
        pytest.param("dask", 2, marks=pytest.mark.slow),
    ],
)
def test_a_lost_worker_changes_no_result(
    federate, expected, root, results, monkeypatch, tmp_path, executor, workers
):
    def lossy(engine):
        made = Lossy(engine.executor, engine.workers)
        made.marker = tmp_path / "killed"
        return made

    monkeypatch.setattr("flows.federate.executor_for", lossy)
    federate("fedavg", f"engine.executor={executor}", f"engine.workers={workers}", "run.rounds=2")
    assert (tmp_path / "killed").exists()
    assert results(root) == expected("fedavg", settings=("run.rounds=2",))


def test_a_killed_run_resumes_when_the_command_is_repeated(
    command, expected, root, results, mlflow_runs, seen, capsys
):
    """The first run, in a separate process, finds the server and its password by itself."""
    program, environment = command
    for name in ("PREFECT_API_URL", server.PASSWORD, server.CERTIFICATES):
        environment.pop(name)
    rounds = ("run.rounds=40", "run.evaluate_every=40")
    arguments = ["run", "--partition", "digits-6", "--method", "fedavg", "--root", str(root)]
    arguments += [word for change in rounds for word in ("--set", change)]
    first = subprocess.Popen([*program, *arguments], env=environment, start_new_session=True)
    wait_for(lambda: list((root / ".fedflow" / "checkpoints").glob("*/checkpoint.safetensors")), first)
    os.killpg(first.pid, signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    assert not list(root.glob("r*s/**/metrics.json"))
    assert seen("federate").flow_run.state.is_running()
    again = fedflow(capsys, *arguments)
    assert (again.code, again.err) == (0, "")
    assert results(root) == expected("fedavg", settings=rounds)
    assert [run.info.status for run in mlflow_runs(root)] == ["FINISHED"]


def test_a_failed_run_of_the_deployment_is_retried_from_its_checkpoint(
    api, expected, root, results, monkeypatch, seen, mlflow_runs
):
    """With the retries that prefect.yaml gives: the bytes of a run that did not fail, and one MLflow run."""
    from prefect.settings import Settings

    from flows.federate import federate
    from tasks.shards import PrefectExecutor

    class Fails(PrefectExecutor):
        rounds: ClassVar[list[str]] = []

        def map(self, work, job, shards, title):
            self.rounds.append(title)
            if title == "round 3 · train" and self.rounds.count(title) == 1:
                raise OSError("no space left on device")
            return super().map(work, job, shards, title)

    deployments = yaml.safe_load((Path(__file__).parents[2] / "prefect.yaml").read_text())["deployments"]
    (deployed,) = (each for each in deployments if each["name"].startswith("federate-"))
    with monkeypatch.context() as patch:  # flows that are imported later would keep these retries
        for name, value in deployed["work_pool"]["job_variables"]["env"].items():
            patch.setenv(name, value)
        given = Settings().flows
    assert (given.default_retries, given.default_retry_delay_seconds) == (1, 30)
    monkeypatch.setattr("flows.federate.executor_for", lambda engine: Fails("threads", engine.workers))
    retried = federate.with_options(retries=given.default_retries, retry_delay_seconds=0)
    retried("digits-6", "fedavg", root=str(root))
    assert results(root) == expected("fedavg")
    assert Fails.rounds.count("round 3 · train") == 2 and Fails.rounds.count("round 2 · train") == 1
    assert seen("federate").flow_run.run_count == 2
    (recorded,) = mlflow_runs(root)
    assert (recorded.info.status, recorded.data.tags["fedflow.resumed"]) == ("FINISHED", "1")


def test_a_run_that_has_its_results_is_not_repeated_by_a_retry(
    api, expected, root, results, monkeypatch, seen, mlflow_runs
):
    from flows.federate import PrefectProgress, federate

    ends = []

    def away(self, metrics):
        ends.append(metrics)
        raise OSError("the server is away")

    with monkeypatch.context() as patch:
        patch.setattr(PrefectProgress, "finish", away)
        metrics = federate.with_options(retries=1)("digits-6", "fedavg", root=str(root))
    assert results(root) == expected("fedavg")
    assert [ended["local_accuracy"] for ended in ends] == [metrics["local_accuracy"]]
    assert seen("federate").flow_run.run_count == 2
    assert [run.info.status for run in mlflow_runs(root)] == ["FINISHED"]
    params = root / "params.yaml"
    params.write_text(yaml.safe_dump(yaml.safe_load(params.read_text()) | {"training": {"lr": 0.01}}))
    again = federate("digits-6", "fedavg", root=str(root))  # in the plain folder, which nobody named
    assert again["local_accuracy"] != metrics["local_accuracy"]


@pytest.mark.parametrize(
    ("flow", "parameters", "field"),
    [
        ("federate", {"partition": "digits-6", "method": "nosuch"}, "method"),
        pytest.param("sweep", {"methods": ["nosuch"]}, "method", marks=pytest.mark.full),
        pytest.param("procedure", {"name": "nosuch"}, "procedure", marks=pytest.mark.full),
        pytest.param("central", {"name": "nosuch"}, "central", marks=pytest.mark.full),
        ("pipeline", {"settings": ["grid.partitions=[nosuch]"]}, "partitions"),
        pytest.param(
            "tune", {"partition": "digits-6", "methods": ["nosuch"]}, "method", marks=pytest.mark.full
        ),
    ],
)
def test_a_wrong_parameter_is_not_retried_and_is_one_line_in_the_log(root, seen, flow, parameters, field):
    made = getattr(import_module(f"flows.{flow}"), flow).with_options(retries=1, retry_delay_seconds=0)
    lines = io.StringIO()
    log, handler = logging.getLogger("prefect.flow_runs"), logging.StreamHandler(lines)
    handler.setLevel(logging.ERROR)
    log.addHandler(handler)
    try:
        with pytest.raises(BadInput, match=rf"{field}.*nosuch"):
            made(**parameters, root=str(root))
    finally:
        log.removeHandler(handler)
    run = seen(flow).flow_run
    assert run.state.is_failed() and run.run_count == 1
    (line,) = lines.getvalue().splitlines()
    assert "nosuch" in line


@pytest.mark.slow
def test_worker_processes_end_with_a_driver_that_is_killed(command, root):
    program, environment = command
    arguments = ["--partition", "digits-6", "--method", "fedavg", "--root", str(root)]
    arguments += ["--executor", "processes", "--set", "run.rounds=10000", "--set", "run.evaluate_every=10000"]
    with started(*program, "run", *arguments, environment=environment) as run:
        wait_for(lambda: list((root / ".fedflow" / "checkpoints").glob("*/checkpoint.safetensors")), run)
        processes = family(run)
        assert len(processes) >= 3
        run.kill()  # the driver alone, as the kernel does when memory is short
        run.wait()
        wait_for(lambda: not living(processes))


def test_prefect_shows_one_task_per_worker_and_round(federate, seen):
    federate("fedavg")
    run = seen("federate")
    assert run.flow_run.name == "digits-6 · fedavg · seed 0" and run.flow_run.state.is_completed()
    training = sorted(task.name for task in run.tasks if "train" in task.name)
    assert training == [f"round {t} · train · worker {w} · 3 clients" for t in (1, 2, 3) for w in (1, 2)]
    kinds = {"rounds": "progress", "mlflow": "markdown", "accuracy": "table", "summary": "markdown"}
    assert {a.key: a.type for a in run.artifacts} == {f"digits-6-fedavg-0-{k}": v for k, v in kinds.items()}
    assert [a.data for a in run.artifacts if a.type == "progress"] == [100.0]


def test_runs_can_be_found_and_followed_and_name_each_other(federate, seen, root, mlflow_runs):
    """Tags of the flow run, a log line of every evaluation; both runs have links to each other."""
    from prefect import get_client
    from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId

    federate("fedavg")
    found = seen("federate")
    run = found.flow_run
    assert {"digits", "digits-6", "fedavg", "seed 0"} <= {*run.tags}
    chosen = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run.id]))

    def said() -> list[str]:
        with get_client(sync_client=True) as client:
            return [log.message for log in client.read_logs(chosen)]

    wait_for(lambda: any("round 3 of 3" in message for message in said()))
    evaluated = [message for message in said() if message.startswith("round ")]
    assert [message.partition(":")[0] for message in evaluated] == [f"round {t} of 3" for t in (1, 2, 3)]
    assert all("Local, % " in message for message in evaluated)
    (recorded,) = mlflow_runs(root)
    assert recorded.data.tags["prefect.flow_run_id"] == str(run.id)
    address = f"http://127.0.0.1:5000/#/experiments/{recorded.info.experiment_id}/runs/{recorded.info.run_id}"
    address += "?workflowType=machine_learning"
    assert any(message.startswith(f"MLflow run: {address} ") for message in said())
    (link,) = (artifact for artifact in found.artifacts if artifact.key == "digits-6-fedavg-0-mlflow")
    assert address in link.data
    back = f"http://127.0.0.1:4200/flow-runs/flow-run/{run.id}"  # of `make serve`
    assert recorded.data.tags["prefect.flow_run_url"] == back
    assert recorded.data.tags["mlflow.note.content"].startswith(f"[Flow run in Prefect]({back})")
