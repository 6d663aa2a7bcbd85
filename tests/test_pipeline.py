"""dvc.yaml: real `dvc repro` in a small project reruns a stage when, and only when, its output may change."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from multiprocessing.connection import Listener
from pathlib import Path

import numpy as np
import pytest
import yaml
from command import make_project

import fedflow
from fedflow import experiment
from fedflow.config import load_params
from fedflow.data import load_prepared
from fedflow.methods import METHODS

HOME = Path(fedflow.__file__).parents[1]
PARAMS = """
data:
  digits: {source: digits, train_limit: 200, test_limit: 60}
  mnist: {source: mnist}
  spare: {source: digits, train_limit: 100, test_limit: 50}
models: {digits: {name: mlp, options: {hidden: [8]}}, mnist: {name: mlp, options: {hidden: [8]}}, spare: mlp}
partitions:
  skewed: {dataset: digits, scheme: dirichlet, alpha: 0.5, min_size: 1, clients: 3}
  even: {dataset: mnist, scheme: iid, clients: 2, difficulty: {losses: losses.npy}}
training: {epochs: 1, batch_size: 64, lr: 0.1}
run: {rounds: 1, participation: 1.0, evaluate_every: 1, fine_tune: false}
methods: {fedavg: {}, ditto: {lam: 1.0}}
tuned: {}
grid: {datasets: [digits, mnist], partitions: [skewed, even], methods: [fedavg, ditto], seeds: [0]}
engine: {executor: inline, device: cpu}
"""
# What DVC calls: it hands its arguments to this process, which has imported everything already.
COMMAND = """#!{python} -S
import os, sys
from multiprocessing.connection import Client
with Client({address!r}) as here:
    here.send(sys.argv[1:])
    sys.exit(here.recv())
"""
SKEWED = ["federate@skewed-ditto-0", "federate@skewed-fedavg-0"]
EVEN = ["federate@even-ditto-0", "federate@even-fedavg-0"]


def write_images(seed: int) -> None:
    """Another mnist.npz in the data root."""
    rng, arrays = np.random.default_rng(seed), {}
    for split, n in (("train", 60), ("test", 30)):
        arrays |= {f"x_{split}": rng.integers(0, 256, (n, 28, 28), np.uint8), f"y_{split}": np.arange(n) % 10}
    np.savez(Path(os.environ["FEDFLOW_DATA"]) / "mnist.npz", **arrays)


def write_losses(seed: int) -> None:
    np.save("losses.npy", np.random.default_rng(seed).random(60))


def change(section: str, value: object) -> None:
    """Set one field of params.yaml."""
    values = yaml.safe_load(Path("params.yaml").read_text())
    *parents, last = section.split(".")
    place = values
    for parent in parents:
        place = place.setdefault(parent, {})
    place[last] = value
    Path("params.yaml").write_text(yaml.safe_dump(values, sort_keys=False))


def call(arguments: list[str]) -> int:
    """``fedflow ARGUMENTS`` in this process; its exit code."""
    from fedflow import cli

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fedflow", *arguments])
        try:
            cli.main()
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else 1
    return 0


def serve(listener: Listener) -> None:
    """Run the commands that come in, until one is empty."""
    while True:
        with listener.accept() as caller:
            arguments = caller.recv()
            if not arguments:
                return
            caller.send(call(arguments))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project in the current folder in which everything was run once."""
    from multiprocessing.connection import Client

    root, bin = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("bin")
    (root / "params.yaml").write_text(PARAMS)
    for name in ("dvc.yaml", "requirements.lock", ".dvcignore"):
        shutil.copy(HOME / name, root)
    shutil.copytree(HOME / "fedflow", root / "fedflow", ignore=shutil.ignore_patterns("__pycache__"))
    address = str(bin / "socket")
    (bin / "fedflow").write_text(COMMAND.format(python=sys.executable, address=address))
    (bin / "fedflow").chmod(0o755)
    with pytest.MonkeyPatch.context() as patch, Listener(address) as listener:
        patch.chdir(root)
        patch.setenv("FEDFLOW_DATA", str(bin))
        patch.setenv("PATH", f"{bin}:{Path(sys.executable).parent}:{os.environ['PATH']}")
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        server = threading.Thread(target=serve, args=[listener], daemon=True)
        server.start()
        write_images(0)
        write_losses(0)
        dvc("init", "--no-scm", "--quiet")
        assert {*SKEWED, *EVEN, "report"} <= set(dvc_repro())
        yield root
        with Client(address) as last:
            last.send([])
        server.join()


def dvc(*arguments: str) -> str:
    command = [sys.executable, "-m", "dvc", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def dvc_repro() -> list[str]:
    """The stages that `dvc repro` runs, or brings back from its cache."""
    return re.findall(r"^(?:Running stage|Stage) '([^']+)'(?::| is cached)", dvc("repro"), re.M)


def repro() -> list[str]:
    """These stages, but those that only look for what changed."""
    return sorted(set(dvc_repro()) - {"fingerprint", "inputs"})


def prepared(name: str) -> str:
    """What is in a prepared data set."""
    return load_prepared(Path("data/prepared") / name).hash


def test_nothing_runs_twice_but_the_look_at_the_files(project):
    assert dvc_repro() == ["fingerprint"]


@pytest.mark.parametrize(
    ("section", "value", "reruns"),
    [
        ("partitions.skewed.alpha", 0.2, ["partition@skewed", *SKEWED, "report"]),
        ("training.lr", 0.05, [*SKEWED, *EVEN, "report"]),
        ("models.mnist.options.hidden", [9], [*EVEN, "report"]),
        ("methods.ditto.lam", 0.5, ["federate@skewed-ditto-0", "federate@even-ditto-0", "report"]),
        ("tuned.skewed.ditto.lam", 2.0, ["federate@skewed-ditto-0", "report"]),
    ],
)
def test_a_changed_parameter_reruns_what_it_changes(project, section, value, reruns):
    change(section, value)
    assert repro() == sorted(reruns)


@pytest.mark.parametrize(
    "changes",
    [
        {"models.spare": "linear"},
        {"partitions.more": {"dataset": "spare", "scheme": "iid", "clients": 2}, "engine.workers": 3}
        | {"methods.fedavg.server_lr": 1.0},  # what it is by default
    ],
    ids=["network", "others"],
)
def test_changes_that_no_run_sees_rerun_nothing(project, changes):
    for section, value in changes.items():
        change(section, value)
    assert repro() == []


def test_a_data_set_prepared_by_hand_reruns_nothing(project):
    assert call(["prepare", "spare"]) == 0
    assert repro() == []


def test_a_replaced_file_of_the_data_root_is_read_again(project):
    before = prepared("mnist")
    write_images(1)
    assert repro() == sorted(["prepare@mnist", "partition@even", *EVEN, "report"])
    assert prepared("mnist") != before and dvc_repro() == ["fingerprint"]


def test_old_data_never_come_back_from_the_cache(project):
    before = prepared("mnist")
    write_images(2)
    assert call(["prepare", "mnist"]) == 0
    new = prepared("mnist")
    repro()
    assert prepared("mnist") == new != before


def test_without_the_files_prepared_data_are_enough(project, monkeypatch):
    monkeypatch.setenv("FEDFLOW_DATA", "elsewhere")
    assert dvc_repro() == ["fingerprint"]


def test_a_replaced_file_of_losses_divides_the_data_again(project):
    write_losses(1)
    assert repro() == [*EVEN, "partition@even", "report"]


def test_a_method_needs_no_entry_under_methods(project):
    change("grid.methods", ["fedavg", "ditto", "local"])
    assert repro() == ["federate@even-local-0", "federate@skewed-local-0", "report"]


def test_the_metrics_of_the_pipeline_are_one_small_table(project):
    shown = json.loads(dvc("metrics", "show", "--json"))[""]["data"]
    assert list(shown) == ["report/metrics.json"]
    (table,) = (file["data"] for file in shown.values())
    runs = {path.parts[1:3] for path in Path("results").glob("*/*/0")}
    for metric in ("local", "global"):
        assert {(p, m) for p, methods in table[metric].items() for m in methods} == runs
    facts = json.loads(Path("results/skewed/fedavg/0/metrics.json").read_text())
    assert table["local"]["skewed"]["fedavg"] == pytest.approx(facts["local_accuracy"], abs=1e-4)


@pytest.mark.parametrize("page", ["README.md", "docs/running.md"])
def test_the_documented_experiment_changes_a_run_of_the_default_grid(page):
    text, before = (HOME / page).read_text(), load_params(HOME / "params.yaml")
    changes = re.findall(r"dvc exp run -S (\S+=[\w.]+)", text)
    assert changes
    for override in changes:
        _, name, _ = override.split(".", 2)
        after = load_params(HOME / "params.yaml", [override])
        assert name in before.grid.methods and after.method(name) != before.method(name)


@pytest.mark.parametrize("difficulty", ["null", "{expert: mlp, epochs: 1}"], ids=["plain", "expert"])
def test_the_partition_stage_depends_on_all_code_that_partitions_are_made_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, difficulty: str
) -> None:
    """Else a later stage would make a partition anew, while it depends on the old one."""
    hashed: list[str] = []

    def digest(*parts: str) -> str:
        hashed.extend(parts)
        return ""

    root = make_project(tmp_path)
    params = load_params(root / "params.yaml", [f"partitions.mixed.difficulty={difficulty}"])
    experiment.prepare_dataset(params, "digits", root)
    monkeypatch.setattr(experiment, "code_digest", digest)
    experiment.prepare_partition(params, "mixed", root)
    depends = yaml.safe_load((HOME / "dvc.yaml").read_text())["stages"]["partition"]["deps"]
    assert hashed and {f"fedflow/{part}" for part in hashed} <= set(depends)
    assert all((HOME / path).exists() for path in depends if path.startswith("fedflow"))


@pytest.mark.parametrize("name", METHODS)
def test_a_run_depends_on_all_files_that_its_method_is_made_of(name: str) -> None:
    from fedflow.identity import imported

    used, found = {METHODS[name].__module__}, set[str]()
    while used:
        module = used.pop()
        found.add(module)
        named = {getattr(value, "__module__", None) or "" for value in vars(sys.modules[module]).values()}
        used |= {m for m in named if m.startswith("fedflow.methods.")} - found
    depends = imported(METHODS[name].__module__, within="fedflow.methods")
    assert found <= depends.keys() and all(file.is_file() for file in depends.values())
    assert len(depends) < 10  # its own family, and not all methods
