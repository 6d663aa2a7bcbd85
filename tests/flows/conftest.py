"""One Prefect API server for all tests, also of other processes, and a tiny project folder on real digits."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command import make_project, prepared_project, recorded_runs

PARAMS = """
data: {digits: {source: digits}}
models: {digits: {name: mlp, options: {hidden: [16]}}}
partitions:
  digits-6: {dataset: digits, scheme: dirichlet, alpha: 0.5, clients: 6, min_size: 10, seed: 0}
training: {epochs: 1, batch_size: 32, lr: 0.1}
run: {rounds: 3, participation: 1.0, evaluate_every: 1, checkpoint_every: 1, keep_predictions: true}
methods: {fedavg: {}, ditto: {lam: 0.5}}
grid: {datasets: [digits], partitions: [digits-6], methods: [fedavg, ditto], seeds: [0]}
engine: {executor: threads, workers: 2, device: cpu}
"""


@pytest.fixture(scope="session")
def api(session_folder: Path) -> Iterator[str]:
    """The URL of a separate server; ``PREFECT_API_URL`` is set before Prefect reads its settings.

    The first process that needs it starts it, as the first of several runs does.
    """
    from flows.server import prefect_api

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PREFECT_API_URL", raising=False)
        patch.setenv("PREFECT_HOME", str(session_folder / "prefect"))  # whose server ends with the session
        patch.setenv("OMP_NUM_THREADS", "1")
        with prefect_api() as url:
            if "prefect" in sys.modules:
                sys.modules["prefect"].context.refresh_global_settings_context()
            yield url


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project folder with nothing but params.yaml."""
    return make_project(tmp_path, PARAMS)


@pytest.fixture
def federate(api: str, root: Path) -> Callable[..., dict]:
    """Runs the flow in the tiny project folder."""
    from flows.federate import federate as flow

    def run(method: str = "fedavg", *changes: str, **parameters: Any) -> dict:
        return flow("digits-6", method, settings=list(changes), root=str(root), **parameters)

    return run


@pytest.fixture
def expected(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, bytes]]:
    """The result files of the plain loop, without Prefect: ``expected("fedavg", seed=0)``."""
    return lambda method, **about: _inline(tmp_path_factory, method, **about)


_made: dict[tuple, dict[str, bytes]] = {}


def _inline(factory: pytest.TempPathFactory, method: str, seed: int = 0, settings: tuple = ()) -> Any:
    if (method, seed, settings) not in _made:
        from fedflow.simulation.executors import Inline
        from fedflow.stages.experiment import Experiment
        from fedflow.stages.federate import perform

        root = factory.mktemp("inline")
        params = prepared_project(root, PARAMS, "digits-6", settings)
        perform(Experiment(params, "digits-6", method, seed, root), Inline())
        _made[method, seed, settings] = results(root, method, seed)
    return _made[method, seed, settings]


NAMES = ("metrics.json", "params.json", "rounds.csv", "clusters.json")


def results(root: Path, method: str = "fedavg", seed: int = 0) -> dict[str, bytes]:
    """The result files that must be the same whoever computes, by name."""
    (folder,) = root.glob(f"r*s/digits-6/{method}/{seed}*")  # in results, or in runs with changed settings
    return {name: (folder / name).read_bytes() for name in NAMES}


@pytest.fixture(name="results")
def read_results() -> Callable[..., dict[str, bytes]]:
    return results


@pytest.fixture
def mlflow_runs() -> Callable[[Path], list[Any]]:
    """All runs that a project folder has recorded."""
    return recorded_runs


@pytest.fixture
def seen(api: str, root: Path) -> Callable[[str], SimpleNamespace]:
    """The newest run of a flow in this project: its ``flow_run``, ``tasks`` and ``artifacts``."""

    def ask(flow: str) -> SimpleNamespace:
        from prefect.client.orchestration import get_client
        from prefect.client.schemas import filters
        from prefect.client.schemas.sorting import FlowRunSort

        newest = FlowRunSort.EXPECTED_START_TIME_DESC
        of_flow = filters.FlowFilter(name={"any_": [flow]})
        with get_client(sync_client=True) as client:
            runs = client.read_flow_runs(flow_filter=of_flow, sort=newest, limit=50)
            run = next(run for run in runs if run.parameters.get("root") == str(root))
            tasks = client.read_task_runs(flow_run_filter=filters.FlowRunFilter(id={"any_": [run.id]}))
            of_run = filters.ArtifactFilter(flow_run_id={"any_": [run.id]})
            artifacts = client.read_artifacts(artifact_filter=of_run)
            return SimpleNamespace(flow_run=run, tasks=tasks, artifacts=artifacts)

    return ask


@pytest.fixture
def command(api: str) -> tuple[list[str], dict[str, str]]:
    """The ``fedflow`` command line and its environment."""
    return [sys.executable, "-m", "fedflow.cli"], dict(os.environ)
