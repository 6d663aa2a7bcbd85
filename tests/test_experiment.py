"""An experiment as a whole, in this process: what is made anew, what goes on, and what is recorded once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedflow.config import load_params
from fedflow.errors import FedflowError
from fedflow.experiment import Experiment, perform, prepare_dataset, prepare_partition
from fedflow.simulation.executors import Inline
from fedflow.simulation.rounds import Simulation
from fedflow.tracking.store import open_store

PARAMS = """
data: {digits: {source: digits}}
models: {digits: {name: mlp, options: {hidden: [8]}}}
partitions:
  digits-4: {dataset: digits, scheme: dirichlet, alpha: 0.5, clients: 4}
training: {epochs: 1, batch_size: 64, lr: 0.1}
run: {rounds: 2, participation: 0.5, evaluate_every: 1, checkpoint_every: 1}
grid: {datasets: [digits], partitions: [digits-4], methods: [fedavg], seeds: [0]}
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder with data and partition in place."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "params.yaml").write_text(PARAMS)
    params = load_params(tmp_path / "params.yaml")
    prepare_dataset(params, "digits", tmp_path)
    prepare_partition(params, "digits-4", tmp_path)
    return tmp_path


@pytest.fixture
def go(root: Path) -> Callable[..., dict[str, Any]]:
    """Performs the one experiment of the project folder."""

    def go(**more: Any) -> dict[str, Any]:
        params = load_params(root / "params.yaml")
        experiment = Experiment(params, "digits-4", "fedavg", 0, root)
        return perform(experiment, Inline(), system_metrics=False, **more)

    return go


def runs(root: Path) -> list[Any]:
    client = open_store(root).client()
    return client.search_runs([e.experiment_id for e in client.search_experiments()])


def test_a_run_killed_after_it_was_recorded_is_not_recorded_twice(
    root: Path, go: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(simulation: Simulation) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Simulation, "forget", killed)
        with pytest.raises(KeyboardInterrupt):
            go()
    files = {f.name: f.read_bytes() for f in (root / "results" / "digits-4" / "fedavg" / "0").iterdir()}
    assert len(list((root / ".fedflow" / "checkpoints").iterdir())) == 1
    told: list[Any] = []
    go(listeners=[lambda report, rounds: told.append(report.replayed)])
    assert told == [True, True]
    assert list((root / ".fedflow" / "checkpoints").iterdir()) == []
    assert {
        f.name: f.read_bytes() for f in (root / "results" / "digits-4" / "fedavg" / "0").iterdir()
    } == files
    (run,) = runs(root)
    assert run.info.status == "FINISHED"
    go()  # there is nothing to go on from: a run of its own
    assert len(runs(root)) == 2


def test_a_second_process_is_refused_before_it_reads_the_checkpoint(
    root: Path, go: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would settle rows that the first process is writing."""

    def again(report: Any, rounds: int) -> None:
        with monkeypatch.context() as patch:
            patch.setattr("fedflow.simulation.rounds.load_checkpoint", lambda folder: pytest.fail("read"))
            with pytest.raises(FedflowError, match=r"digits-4 · fedavg · seed 0 is already running"):
                go()

    go(listeners=[again])
    assert [run.info.status for run in runs(root)] == ["FINISHED"]
