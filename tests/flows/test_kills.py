"""Random kills of whole runs under Prefect, and of ``dvc repro``: what is left is that of an undisturbed run.

``FEDFLOW_KILLS=10 pytest -m slow tests/flows/test_kills.py`` kills ten runs of every method (one by default).
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from services import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(36_000)]
KILLS = int(os.environ.get("FEDFLOW_KILLS", "1"))  # per method
CHECKOUT = Path(__file__).parents[2]
EXECUTORS = ("threads", "processes")  # in turn
SLOW_POOLS = {  # of a client curriculum: most rounds, and so most kills, are inside one
    "rounds": 24,
    "participation": 0.2,
    "sampling": "easy_first",
    "client_curriculum": {"b": 0.5},
}
MAY_DIFFER = ("engine.executor", "engine.workers", "params_hash")  # parameters
STAGES = {"fingerprint", "prepare", "partition", "sweep", "report"}
PARAMS = {
    "data": {"digits": {"source": "digits"}},
    "models": {"digits": {"name": "mlp", "options": {"hidden": [16]}}},
    "partitions": {"digits-6": {"dataset": "digits", "scheme": "label_groups", "groups": 2, "clients": 6}},
    "training": {"epochs": 1, "batch_size": 32, "lr": 0.1},
    "run": {
        "rounds": 12,
        "participation": 0.5,
        "evaluate_every": 2,
        "checkpoint_every": 1,
        "keep_predictions": True,
    },
    "methods": {
        "fedavg": {},
        "scaffold": {"training": {"epochs": 4, "curriculum": {"score": "both_pred"}}},
        "ditto": {},
        "ifca": {"clusters": 2},
        "pacfl": {"clusters": 2},
        "fedhen": {"run": {"reports": ["active", "all"], "keep_trained": True}},
        "subfedavg_hy": {"threshold": 0, "training": {"epochs": 2}},
        "fedevg": {"spc": 3, "sgld_steps": 3, "classifier": {"epochs": 20}},
    },
    "grid": {
        "datasets": ["digits"],
        "partitions": ["digits-6"],
        "methods": ["fedavg", "ifca"],
        "seeds": [0],
        "central": [],
    },
    "engine": {"executor": "threads", "workers": 2, "device": "cpu"},
}


SUITED: dict[str, dict[str, dict]] = {
    "fedhen": {"models": {"digits": {"name": "cnn_exit", "options": {"filters": [8, 8, 8]}}}},
    "subfedavg_hy": {
        "models": {
            "digits": {
                "name": "cnn",
                "options": {"filters": [4, 4], "batch_norm": True, "kernel": 3, "padding": 1, "hidden": [16]},
            }
        },
        "partitions": {"digits-6": PARAMS["partitions"]["digits-6"] | {"selection": 0.2}},
    },
    "fedevg": {"data": {"digits": {"source": "digits", "normalize": "none"}}},
}
CASES = [(method, SUITED.get(method, {})) for method in PARAMS["methods"]]
CASES += [("scaffold", {"run": SLOW_POOLS})]


def project(folder: Path, changes: dict[str, dict]) -> Path:
    """A folder with `PARAMS`, and ``changes`` to its sections."""
    folder.mkdir(parents=True)
    params = PARAMS | {section: PARAMS[section] | values for section, values in changes.items()}
    (folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    return folder


def record(root: Path) -> dict[tuple, Any]:
    """What the MLflow store of a project holds, without times, identifiers and the machine's load."""
    from fedflow.tracking.store import open_store

    client = open_store(root).client()
    experiments = [e.experiment_id for e in client.search_experiments()]
    runs = client.search_runs(experiments)
    held: dict[tuple, Any] = {("runs",): sorted(run.info.run_name for run in runs)}
    for run in runs:
        name, number = run.info.run_name, run.info.run_id
        held[name, "status"] = run.info.status
        held[name, "artifacts"] = sorted(files(client, number))
        held[name, "models"] = len(run.outputs.model_outputs) if run.outputs else 0
        held |= {(name, "parameter", key): value for key, value in run.data.params.items()}
        for key in run.data.metrics:
            history = client.get_metric_history(number, key)
            values = ((m.step, None if key.endswith("seconds") else m.value) for m in history)
            held[name, "metric", key] = sorted(values)
    held["models",] = sorted((m.name, str(m.status)) for m in client.search_logged_models(experiments))
    numbers = {run.info.run_id for run in runs}
    for model in client.search_registered_models():
        versions = client.search_model_versions(f"name = '{model.name}'")
        held["registered", model.name] = (
            sorted((int(v.version), v.status, v.run_id in numbers) for v in versions),
            {alias: int(version) for alias, version in model.aliases.items()},
        )
    return {k: value for k, value in held.items() if k[-1] not in MAY_DIFFER and "system/" not in k[-1]}


def differences(one: dict, other: dict) -> dict:
    pairs = {key: (one.get(key), other.get(key)) for key in one.keys() | other.keys()}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def files(client: Any, run: str, folder: str | None = None) -> list[str]:
    """The paths of all artifacts of a run."""
    found = []
    for entry in client.list_artifacts(run, folder):
        found += files(client, run, entry.path) if entry.is_dir else [entry.path]
    return found


def results(root: Path, method: str) -> dict[str, bytes]:
    (folder,) = root.glob(f"r*s/digits-6/{method}/0")  # in runs, if it is not in the grid
    files = json.loads((folder / "metrics.json").read_text())["files"]
    return {name: (folder / name).read_bytes() for name in ("metrics.json", *files)}


def ended(root: Path) -> bool:
    """Whether a run is over, except the end of its process: it has its results, and no checkpoint."""
    checkpoints = root.glob(".fedflow/checkpoints/*/checkpoint*")
    return any(root.glob("r*s/*/*/*/metrics.json")) and not any(checkpoints)


def checkpointed(root: Path, since: float) -> bool:
    """Whether there is a new checkpoint: those of killed runs stay."""
    files = root.glob(".fedflow/checkpoints/*/checkpoint.safetensors")
    return any(file.stat().st_mtime > since for file in files)


def start(command: list[str], environment: dict[str, str], folder: Path) -> subprocess.Popen:
    options = {"env": environment, "cwd": folder, "start_new_session": True}
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, **options)


def kill(process: subprocess.Popen) -> None:
    """Kill a command and all that it has started."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def finish(process: subprocess.Popen, folder: Path) -> None:
    assert process.wait() == 0, (folder / "log").read_text(errors="replace")[-3000:]


@pytest.mark.parametrize(("method", "changes"), CASES)
def test_killed_runs_end_as_an_undisturbed_one(method: str, changes: dict, command, tmp_path: Path):
    program, environment = command
    chance = random.Random(method)

    def begin(root: Path, executor: str) -> subprocess.Popen:
        names = ["--partition", "digits-6", "--method", method, "--executor", executor, "--root", str(root)]
        return start([*program, "run", *names], environment, root)

    whole = project(tmp_path / "whole", changes)
    began = time.monotonic()
    finish(begin(whole, "threads"), whole)
    duration = time.monotonic() - began

    kills = trial = 0
    while kills < KILLS:
        root = project(tmp_path / str(trial), changes)
        executor = EXECUTORS[(trial + len(method)) % len(EXECUTORS)]
        killed = []  # after how many seconds
        while not ended(root):
            run = begin(root, executor)
            moment = chance.uniform(0, duration) if kills < KILLS else None
            try:
                run.wait(moment)
            except subprocess.TimeoutExpired:
                kill(run)
                killed.append(moment)
                kills += 1
            else:
                finish(run, root)
        print(f"{method}, {executor}: killed after {killed} of {duration} s")
        assert results(root, method) == results(whole, method)
        assert not differences(record(root), record(whole))
        trial += 1


@pytest.fixture
def pipeline(tmp_path: Path, command) -> tuple[Path, Callable[[], subprocess.Popen]]:
    """A copy of the repository with a small grid, and what starts ``dvc repro`` in it."""
    copy = tmp_path / "copy"
    subprocess.run(["git", "clone", "-q", str(CHECKOUT), str(copy)], check=True)
    params = yaml.safe_load((copy / "params.yaml").read_text())
    grid = {name: params[name] | PARAMS[name] for name in ("data", "models", "partitions", "grid")}
    run = PARAMS["run"] | {"rounds": 12 * KILLS}  # long enough to be killed that often
    (copy / "params.yaml").write_text(yaml.safe_dump(params | grid | {"run": run}, sort_keys=False))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = command[1] | {"PYTHONPATH": str(copy), "PATH": path}
    return copy, lambda: start([sys.executable, "-m", "dvc", "repro"], environment, copy)


def reproduced(copy: Path) -> dict[str, bytes]:
    """All result files of the pipeline, the page aside; every stage is recorded as done."""
    lock = yaml.safe_load((copy / "dvc.lock").read_text())["stages"]
    assert {stage.split("@")[0] for stage in lock} == STAGES
    assert (copy / "report" / "index.html").stat().st_size
    return {f"{m}/{name}": content for m in ("fedavg", "ifca") for name, content in results(copy, m).items()}


def test_dvc_repro_killed_and_started_twice(pipeline, tmp_path: Path, command):
    """One pipeline: killed, then two at once, of which DVC's lock may refuse one."""
    copy, repro = pipeline
    program, environment = command
    chance = random.Random("dvc")
    for _ in range(KILLS):
        started = time.time()
        run = repro()
        wait_for(partial(checkpointed, copy, started), run)
        time.sleep(chance.uniform(0, 2))
        kill(run)
    first, second = repro(), repro()
    codes = {first.wait(), second.wait()}
    said = (copy / "log").read_text(errors="replace")
    assert 0 in codes, said[-3000:]
    if codes != {0}:  # they met
        assert "Unable to acquire lock" in said or "is busy" in said, said[-3000:]
    finish(repro(), copy)

    whole = project(tmp_path / "whole", {})
    (whole / "params.yaml").write_text((copy / "params.yaml").read_text())
    runs = (["run", "--partition", "digits-6", "--method", method] for method in ("fedavg", "ifca"))
    for stage in (["procedure", "coreset"], *runs, ["report"]):
        command = [*program, *stage, "--sweep", "repro", "--root", str(whole)]
        finish(start(command, environment, whole), whole)
    expected = {m: results(whole, m) for m in ("fedavg", "ifca")}
    assert reproduced(copy) == {f"{m}/{n}": content for m in expected for n, content in expected[m].items()}
    assert not differences(record(copy), record(whole))
