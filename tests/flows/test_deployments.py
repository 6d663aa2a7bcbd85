"""What ``make serve`` puts on the server really starts from its work pool."""

import subprocess
from pathlib import Path

import pytest

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
        tiny = {"partition": "digits-6", "method": "fedavg", "root": str(root)}
        run = run_deployment("federate/federate", parameters=tiny, timeout=0)
        worker = prefect("worker", "start", "--pool", POOL, "--run-once")
        done = subprocess.run(worker, check=False, capture_output=True, text=True)
        state = client.read_flow_run(run.id).state
    assert state.is_completed(), done.stdout + done.stderr
    assert results(root) == expected("fedavg")
