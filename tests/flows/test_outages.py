"""A Prefect server that is away for some time, or stays away."""

import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from services import Relay, wait_for

ROUNDS = "run.rounds=100"
AWAY = "the Prefect server is not responding"


@pytest.fixture
def relay(api):
    with Relay(urlsplit(api).port) as relay:
        yield relay


@pytest.fixture
def begin(relay, root):
    """Starts a program that trains; returns it, with the files of its lines, once it has trained a round."""

    runs: list[subprocess.Popen] = []

    def make(*program: str, tries: int, **variables: str):
        about = {"PREFECT_API_URL": relay.url, "PREFECT_CLIENT_MAX_RETRIES": str(tries)} | variables
        out, errors = root / f"out-{tries}.txt", root / f"errors-{tries}.txt"
        with out.open("w") as one, errors.open("w") as two:
            run = subprocess.Popen(program, env=os.environ | about, stdout=one, stderr=two)
        runs.append(run)
        wait_for(lambda: ": round " in out.read_text(), run)
        return run, out, errors

    yield make
    for run in runs:
        run.kill()


@pytest.mark.slow  # two runs of 100 rounds
def test_a_run_waits_for_the_server_and_ends_in_one_line_if_it_stays_away(
    command, relay, begin, root, mlflow_runs, results, expected
):
    program = (*command[0], "run", "--partition", "digits-6", "--method", "fedavg", "--root", str(root))
    run, _, errors = begin(*program, "--set", ROUNDS, tries=1)
    relay.close()
    assert run.wait(240) == 2
    (line,) = errors.read_text().splitlines()
    assert line.startswith(f"fedflow: {AWAY}; rerun the command to resume")
    (record,) = mlflow_runs(root)
    assert record.info.status == "FAILED" and record.data.tags["fedflow.error"].startswith(AWAY)
    relay.open()
    run, out, errors = begin(*program, "--set", ROUNDS, tries=6)
    relay.close()
    wait_for(lambda: f"{AWAY}: waiting up to 2 min" in out.read_text(), run)
    relay.open()
    assert (run.wait(240), errors.read_text()) == (0, "")
    (again,) = mlflow_runs(root)
    assert (again.info.run_id, again.info.status) == (record.info.run_id, "FINISHED")
    assert results(root) == expected("fedavg", settings=(ROUNDS,))


@pytest.mark.slow  # a run of 100 rounds, and two waits of 14 s
def test_a_flow_run_of_a_worker_is_retried_when_the_server_is_back(relay, begin, root):
    from prefect.client.orchestration import get_client

    from flows.federate import federate

    parameters = {"partition": "digits-6", "method": "fedavg", "root": str(root), "settings": [ROUNDS]}
    with get_client(sync_client=True) as client:
        retried = federate.with_options(retries=1, retry_delay_seconds=1)
        number = client.create_flow_run(retried, parameters=parameters).id
    run, _, errors = begin(
        sys.executable,
        "-m",
        "prefect.engine",
        tries=3,
        PREFECT__FLOW_RUN_ID=str(number),
        PREFECT__FLOW_ENTRYPOINT=f"{Path(__file__).parents[2] / 'flows' / 'federate.py'}:federate",
    )
    relay.close()
    wait_for(lambda: f"{AWAY}; rerun the command to resume" in errors.read_text(), run)
    relay.open()
    assert run.wait(240) == 0, errors.read_text()
    with get_client(sync_client=True) as client:
        found = client.read_flow_run(number)
    assert found.state.is_completed() and found.run_count == 2
