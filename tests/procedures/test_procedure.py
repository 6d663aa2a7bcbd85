"""Procedures through the real pipeline: files, workers, kills, the record. `walk` is the example."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import walk
from command import disk_of, fedflow, files_below, make_project, one_line_error, recorded_runs
from safetensors.torch import load_file
from support import Workers

from fedflow.config import load_params
from fedflow.errors import BadInput, FedflowError
from fedflow.files import locked
from fedflow.project.identity import Identity
from fedflow.stages import steps
from fedflow.stages.procedure import ProcedureRun, run_procedure
from fedflow.tracking.store import open_store

PARAMS = """
data: {}
models: {}
partitions: {}
procedures:
  far: {procedure: walk, length: 9, label: Far walk}
grid: {datasets: [], partitions: [], methods: [], seeds: [0], procedures: [walk, far]}
engine: {executor: inline, device: cpu}
"""
FILES = {
    "identity.json",
    "metrics.json",
    "params.json",
    "steps.csv",
    "summary.csv",
    "vectors.safetensors",
    "tables/ends.csv",
    "pictures/places.svg",
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(steps, "BLOCK", 0)  # a step of every part
    return make_project(tmp_path, PARAMS)


def load(root: Path, *changes: str, name: str = "walk", seed: int = 0) -> ProcedureRun:
    return ProcedureRun(load_params(root / "params.yaml", changes), name, seed, root)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which the walk was never interrupted."""
    root = make_project(tmp_path_factory.mktemp("whole"), PARAMS)
    run_procedure(load(root))
    return root


def test_files_record_and_metrics_agree(whole: Path) -> None:
    folder = whole / "outcomes" / "walk" / "0"
    assert files_below(folder).keys() == FILES
    made = Identity.read(folder)
    assert made is not None and not made.differences(load(whole).identity)
    assert made.differences(load(whole, "procedures.walk.length=6").identity) == [
        "settings: procedure.length 5 -> 6"
    ]
    facts, table = json.loads((folder / "metrics.json").read_text()), pd.read_csv(folder / "steps.csv")
    assert facts["procedure"] == facts["registered"] == "walk" and facts["label"] == "Random walk"
    assert table.groupby("part")["step"].max().to_dict() == {"w0": 5, "w1": 4, "w2": 3}
    assert facts["steps"] == 5 and facts["seed"] == 0
    summary = pd.read_csv(folder / "summary.csv", index_col="row")
    vectors = load_file(folder / "vectors.safetensors")
    for part, places in table.groupby("part")["place"]:
        assert summary.loc[part, "mean"] == pytest.approx(places.mean())
        assert facts["metrics"][f"place/{part}"] == pytest.approx(places.iloc[-1]) == vectors[part].item()
    (run,), api = recorded_runs(whole), open_store(whole).client()
    assert api.get_experiment(run.info.experiment_id).name == "procedures/walk"
    assert run.info.run_name == "walk seed 0" and run.info.status == "FINISHED"
    assert {"procedure.length": "5", "procedure.name": "walk", "seed": "0"}.items() <= run.data.params.items()
    history = api.get_metric_history(run.info.run_id, "place/w1")
    assert [one.step for one in history[:4]] == [1, 2, 3, 4]
    places = table[table["part"] == "w1"]["place"].tolist()
    assert [one.value for one in history[:4]] == pytest.approx(places)
    assert len(api.get_metric_history(run.info.run_id, "seconds")) == 5
    kept = {
        f"{e.path}/{f.path}" if e.is_dir else e.path
        for e in api.list_artifacts(run.info.run_id)
        for f in (api.list_artifacts(run.info.run_id, e.path) if e.is_dir else [e])
    }
    assert any("places.png" in path for path in kept)
    assert {file.path for file in api.list_artifacts(run.info.run_id, "results")} == {
        f"results/{name.partition('/')[0]}" for name in FILES
    }


def test_other_settings_have_another_folder_and_never_mix(root: Path) -> None:
    run_procedure(load(root, "procedures.walk.length=4"))
    run_procedure(load(root))
    plain, other = (path.name for home in ("outcomes", "runs") for path in (root / home / "walk").iterdir())
    assert plain == "0" and other.startswith("0-") and len(recorded_runs(root)) == 2
    far = load(root, name="far")
    run_procedure(far)
    assert far.folder.parts[-2:] == ("far", "0")
    assert json.loads((far.folder / "metrics.json").read_text())["label"] == "Far walk"


KILLED = """
import os, signal, sys
from pathlib import Path
import walk
from fedflow.config import load_params
from fedflow.stages import steps
from fedflow.stages.procedure import ProcedureRun, run_procedure
steps.BLOCK, root = 0, Path(sys.argv[1])
def listen(done, total):
    if done == 6:
        os.kill(os.getpid(), signal.SIGKILL)
run_procedure(ProcedureRun(load_params(root / "params.yaml"), "walk", 0, root), listeners=[listen])
"""


@pytest.mark.parametrize(
    "moment",
    [
        "between blocks",
        *(pytest.param(name, marks=pytest.mark.full) for name in ("Record.end", "drop_checkpoint")),
    ],
)
def test_a_killed_procedure_ends_as_an_undisturbed_one(
    root: Path, whole: Path, moment: str, monkeypatch: pytest.MonkeyPatch, preloaded: Path
) -> None:
    if moment == "between blocks":
        path = os.pathsep.join([str(Path(walk.__file__).parent), os.environ.get("PYTHONPATH", "")])
        command = [preloaded / "python", "-c", KILLED, str(root)]
        done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, check=False)
        assert done.returncode == -signal.SIGKILL and not list((root / "outcomes").glob("*/*/*"))
    else:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(f"fedflow.stages.steps.{moment}", interrupted)
            run_procedure(load(root))
    done: list[int] = []
    run_procedure(load(root), listeners=[lambda number, of: done.append(number)])
    assert done == ([9, 11, 12] if moment == "between blocks" else [])
    assert files_below(root / "outcomes") == files_below(whole / "outcomes")
    assert not any((root / ".fedflow" / "checkpoints").iterdir())
    (run,), api = recorded_runs(root), open_store(root).client()
    assert run.info.status == "FINISHED" and run.data.tags["fedflow.resumed"] == "1"
    assert [m.step for m in api.get_metric_history(run.info.run_id, "seconds")] == [1, 2, 3, 4, 5]


def interrupted(*given: object, **more: object) -> None:
    raise KeyboardInterrupt


def test_a_failure_in_a_step_is_recorded_and_the_next_command_resumes(root, whole, monkeypatch) -> None:
    step, done = walk.Walk.step, list[int]()

    def failing(self: walk.Walk, shared: Any, part: str, state: Any, number: int) -> Any:
        if (part, number) == ("w1", 3):
            raise BadInput("length", 5, "less")
        return step(self, shared, part, state, number)

    with (
        monkeypatch.context() as patch,
        one_line_error("^procedures.walk.length: 5 .*expected less", BadInput),
    ):
        patch.setattr(walk.Walk, "step", failing)
        run_procedure(load(root))
    (run,) = recorded_runs(root)
    assert run.info.status == "FAILED" and "length" in run.data.tags["fedflow.error"]
    run_procedure(load(root), listeners=[lambda number, of: done.append(number)])
    assert done[0] == 9 and files_below(root / "outcomes") == files_below(whole / "outcomes")
    (run,) = recorded_runs(root)
    assert run.info.status == "FINISHED" and "fedflow.error" not in run.data.tags


def test_a_full_disk_and_a_damaged_checkpoint_are_one_line(root: Path, whole: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_procedure(load(root), listeners=[stop])
    (file,) = (root / ".fedflow" / "checkpoints").glob("*/checkpoint.safetensors")
    saved = file.read_bytes()
    with disk_of(64), one_line_error("cannot write the checkpoint", FedflowError):
        steps.save_progress(file.parent, steps.load_progress(file.parent))
    assert file.read_bytes() == saved
    file.write_bytes(saved[:-5])
    with one_line_error("checkpoint.safetensors cannot be read .* delete its folder to start over"):
        run_procedure(load(root))
    file.write_bytes(saved)
    run_procedure(load(root))
    assert files_below(root / "outcomes") == files_below(whole / "outcomes")


def test_the_same_procedure_never_runs_twice_at_once(root: Path) -> None:
    def refuse() -> None:
        raise AssertionError

    run = load(root)
    with (
        locked(root / ".fedflow" / "locks" / run.job.key, refuse),
        one_line_error("^walk · seed 0 is already running in another process$"),
    ):
        run_procedure(run)
    assert recorded_runs(root) == []


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_any_number_of_shares_gives_the_same_bytes(root: Path, whole: Path, workers: int) -> None:
    run_procedure(load(root), Workers(workers))
    assert files_below(root / "outcomes") == files_below(whole / "outcomes")


@pytest.mark.parametrize(
    ("changes", "name", "message"),
    [
        ([], "wolk", "^procedure: 'wolk' .*did you mean 'walk'"),
        (["procedures.walk.length=0"], "walk", "^procedures.walk.length: 0 .*>= 1"),
        (["procedures.walk.lenght=3"], "walk", r"procedures.walk.* 'lenght' .*length"),
        (["procedures.walk.procedure=far"], "walk", "procedures.walk.procedure: 'far' .*walk, which is reg"),
        (["procedures.near.procedure=wolk"], "near", "procedures.near.procedure: 'wolk' .*'walk'"),
        (["grid.procedures=[wolk]"], "walk", "'wolk' .*'walk'"),
        (["grid.procedures=[]"], "walk", r"^grid.datasets: \[\] .*at least one item"),
    ],
)
def test_settings_that_cannot_be_used_are_one_line(root: Path, changes, name, message) -> None:
    with one_line_error(message):
        load(root, *changes, name=name).procedure  # noqa: B018


def test_the_command_prints_the_summary(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = fedflow(capsys, "procedure", "far", "--seed", 1, "--root", root)
    assert done.code == 0 and "far · seed 1: step" in done.out and "results: " in done.out
    assert "Last place" in done.out and "w2" in done.out
    shutil.rmtree(root / "runs")
    done = fedflow(capsys, "procedure", "nowhere", "--root", root)
    assert done.code == 2 and done.err.count("\n") == 1
