"""dvc.yaml: real `dvc repro` in a small project reruns a stage when, and only when, its output may change."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

import fedflow
from fedflow.config import load_params
from fedflow.data import load_prepared

HOME = Path(fedflow.__file__).parents[1]
PARAMS = """
data:
  digits: {source: digits, train_limit: 200, test_limit: 60}
  mnist: {source: mnist}
  spare: {source: digits, train_limit: 100, test_limit: 50}
models: {digits: {name: mlp, options: {hidden: [8]}}, mnist: {name: mlp, options: {hidden: [8]}}, spare: mlp}
central: {expert: {dataset: digits, training: {epochs: 1}}}
partitions:
  skewed:
    {dataset: digits, scheme: dirichlet, alpha: 0.5, min_size: 1, clients: 3, difficulty: {expert: expert}}
  even: {dataset: mnist, scheme: iid, clients: 2, difficulty: {losses: losses.npy}}
training: {epochs: 1, batch_size: 64, lr: 0.1}
run: {rounds: 1, participation: 1.0, evaluate_every: 1, fine_tune: false}
methods: {fedavg: {}, ditto: {lam: 1.0}}
procedures: {ring: {procedure: coreset, graph: {kind: edges, file: edges.txt}, picks: 2, methods: [scgiga]}}
tuned: {}
grid:
  {datasets: [digits, mnist], partitions: [skewed, even], methods: [fedavg, ditto], seeds: [0],
   central: [expert], procedures: [ring]}
engine: {executor: inline, device: cpu}
"""
CONFIG = """
[core]
    no_scm = true
    analytics = false
    check_update = false
"""
SKEWED = ["skewed · ditto · seed 0", "skewed · fedavg · seed 0"]
EVEN = ["even · ditto · seed 0", "even · fedavg · seed 0"]
RING = ["ring · seed 0"]
DITTO = ["even · ditto · seed 0", "skewed · ditto · seed 0"]
DATA = ["central@expert", "partition@even", "partition@skewed"]  # stages that look when any data changed
COMMAND = "fedflow sweep --name repro"


def write_images(seed: int) -> None:
    """Another mnist.npz in the data root."""
    rng, arrays = np.random.default_rng(seed), {}
    for split, n in (("train", 60), ("test", 30)):
        arrays |= {f"x_{split}": rng.integers(0, 256, (n, 28, 28), np.uint8), f"y_{split}": np.arange(n) % 10}
    np.savez(Path(os.environ["FEDFLOW_DATA"]) / "mnist.npz", **arrays)


def write_losses(seed: int) -> None:
    np.save("losses.npy", np.random.default_rng(seed).random(60))


def write_edges(chord: int) -> None:
    """The file that the procedure reads: a ring of 12 nodes, and a chord."""
    edges = [(node, (node + 1) % 12) for node in range(12)] + [(0, chord)]
    Path("edges.txt").write_text("".join(f"{a} {b}\n" for a, b in edges))


def change(section: str, value: object) -> None:
    """Set one field of params.yaml."""
    values = yaml.safe_load(Path("params.yaml").read_text())
    *parents, last = section.split(".")
    place = values
    for parent in parents:
        place = place.setdefault(parent, {})
    place[last] = value
    Path("params.yaml").write_text(yaml.safe_dump(values, sort_keys=False))


def edit(file: str, old: str, new: str) -> None:
    """Replace text of a source of the project's own copy of fedflow."""
    path = Path("fedflow") / file
    before = path.read_text()
    assert old in before
    path.write_text(before.replace(old, new))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, preloaded: Path) -> Iterator[Path]:
    """A project in the current folder, with its own copy of fedflow, in which everything was run once."""
    root, files = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("files")
    (root / "params.yaml").write_text(PARAMS)
    shutil.copy(HOME / ".dvcignore", root)
    stages = (HOME / "dvc.yaml").read_text()  # another process would import everything again
    assert COMMAND in stages
    (root / "dvc.yaml").write_text(stages.replace(COMMAND, f"{COMMAND} --jobs 1"))
    shutil.copytree(HOME / "fedflow", root / "fedflow", ignore=shutil.ignore_patterns("__pycache__"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setenv("FEDFLOW_DATA", str(files))
        patch.setenv("PATH", f"{preloaded}:{Path(sys.executable).parent}:{os.environ['PATH']}")
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        write_images(0)
        write_losses(0)
        write_edges(5)
        (root / ".dvc").mkdir()
        (root / ".dvc" / "config").write_text(CONFIG)
        assert {*SKEWED, *EVEN, *RING, "report"} <= set(dvc_repro())
        yield root


def dvc(*arguments: str) -> str:
    done = subprocess.run(["dvc", *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def dvc_repro() -> list[str]:
    """The stages that `dvc repro` runs, or brings back from its cache, and the runs of the grid."""
    said = dvc("repro")
    stages = re.findall(r"^(?:Running stage|Stage) '([^']+)'(?::| is cached)", said, re.M)
    return stages + computed(said)


def computed(said: str) -> list[str]:
    """The runs that end in the output of `fedflow sweep`."""
    return sorted(re.findall(r"^\d+ of \d+: (.+ · seed \d+),", said, re.M))


def repro() -> list[str]:
    """Stages and runs, but not the stages that look for what changed."""
    return sorted(set(dvc_repro()) - {"fingerprint", "sweep"})


def expected() -> list[str]:
    """The runs that `fedflow sweep --dry-run` names."""
    command = ["fedflow", "sweep", "--dry-run"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    found = re.findall(r"^(.+ · seed \d+): .+", said, re.M)
    assert re.search(rf"^{len(found)} of \d+ runs to do, ", said, re.M)
    return sorted(found)


def runs(names: list[str]) -> list[str]:
    return sorted(name for name in names if "seed" in name)


def prepared(name: str) -> str:
    """The content of a prepared dataset."""
    return load_prepared(Path("data/prepared") / name).hash


def test_nothing_runs_twice_but_the_look_at_the_files(project):
    assert dvc_repro() == ["fingerprint"]


@pytest.mark.parametrize(
    ("section", "value", "reruns"),
    [
        pytest.param(
            "partitions.skewed.alpha", 0.2, ["partition@skewed", *SKEWED, "report"], marks=pytest.mark.full
        ),
        pytest.param("training.lr", 0.05, [*SKEWED, *EVEN, "report"], marks=pytest.mark.slow),
        pytest.param("models.mnist.options.hidden", [9], [*EVEN, "report"], marks=pytest.mark.slow),
        pytest.param("methods.ditto.lam", 0.5, [*DITTO, "report"], marks=pytest.mark.slow),
        pytest.param("procedures.ring.picks", 3, [*RING, "report"], marks=pytest.mark.slow),
        pytest.param(
            "tuned.skewed.ditto.lam", 2.0, ["skewed · ditto · seed 0", "report"], marks=pytest.mark.slow
        ),
        pytest.param("central.expert.training.lr", 0.05, [*DATA, *SKEWED, "report"], marks=pytest.mark.slow),
    ],
)
def test_a_changed_parameter_reruns_what_it_changes(project, section, value, reruns):
    change(section, value)
    assert expected() == runs(reruns)
    assert repro() == sorted(reruns) and not expected()


def test_changes_that_no_run_sees_rerun_nothing(project, monkeypatch):
    """Of parameters and of code, a dataset prepared by hand; the files of prepared data may be gone."""
    change("models.spare", "linear")
    change("partitions.more", {"dataset": "spare", "scheme": "iid", "clients": 2})
    change("engine.workers", 3)
    change("methods.fedavg.server_lr", 1.0)  # what it is by default
    for each in HARMLESS:
        edit(*each)
    subprocess.run(["fedflow", "prepare", "spare"], check=True)
    monkeypatch.setenv("FEDFLOW_DATA", "elsewhere")
    assert not expected() and repro() == DATA  # which only look, as any prepared dataset changed


@pytest.mark.full
def test_a_replaced_file_is_read_again_and_an_edited_method_runs_again_everywhere(project):
    before = prepared("mnist")
    write_images(1)
    edit("methods/personal/ditto.py", "self.lam / 2", "self.lam / 3")
    reruns = {*DATA, "prepare@mnist", *EVEN, *DITTO, "report"}
    assert repro() == sorted(reruns)  # and not FedAvg on the other partition
    assert prepared("mnist") != before and dvc_repro() == ["fingerprint"]


@pytest.mark.slow
def test_a_replaced_file_of_a_procedure_is_read_again(project):
    before = Path("outcomes/ring/0/steps.csv").read_bytes()
    write_edges(3)
    assert expected() == RING
    assert repro() == ["report", *RING] and Path("outcomes/ring/0/steps.csv").read_bytes() != before


@pytest.mark.slow
def test_old_data_never_come_back_from_the_cache(project):
    before = prepared("mnist")
    write_images(2)
    subprocess.run(["fedflow", "prepare", "mnist"], check=True)
    new = prepared("mnist")
    repro()
    assert prepared("mnist") == new != before


@pytest.mark.slow
def test_claims_and_tuning_rewrite_the_report_only(project):
    claim = {"id": "a", "source": "b", "claim": "c", "partition": "skewed"}
    check = {"measure": "local_accuracy", "of": "ditto", "above": ["fedavg"]}
    (project / "claims.yaml").write_text(yaml.safe_dump([claim | check]))
    scores = project / "tuning" / "skewed" / "fedavg.csv"
    scores.parent.mkdir(parents=True)
    scores.write_text("training.lr,accuracy,spread,loss,chosen,settings\n0.1,0.5,0.1,1,True,a\n")
    assert repro() == ["report"] and "1 seed" in (project / "report" / "claims.md").read_text()
    assert 'id="tuning"' in (project / "report" / "index.html").read_text()
    (project / "claims.yaml").unlink()
    assert repro() == ["report"] and not (project / "report" / "claims.md").exists()
    scores.unlink()
    assert repro() == ["report"] and 'id="tuning"' not in (project / "report" / "index.html").read_text()


@pytest.mark.slow
def test_a_replaced_file_of_losses_divides_the_data_again(project):
    write_losses(1)
    assert repro() == [*EVEN, "partition@even", "report"]


HARMLESS = [
    ("methods/personal/ditto.py", '"""Ditto:', '"""Ditto, in other words:'),
    ("simulation/worker.py", "import torch\n", "import torch  # a comment\n"),
    ("methods/averaging/fedprox.py", "Pull(self.mu, w)", "Pull(2 * self.mu, w)"),
    ("models/linear.py", "(y - ", "(1 * y - "),
    ("partition/shards.py", "import numpy as np\n", "import math\nimport numpy as np\n"),
    ("tracking/record.py", "import math\n", "import math\nimport cmath\n"),
]
EDITS = {
    "a scheme, and no client's data": (
        [("partition/dirichlet.py", "TRIES = 1000", "TRIES = 1001")],
        ["partition@skewed"],
    ),
    "a scheme": (
        [("partition/iid.py", "rng.permutation(len(labels))", "rng.permutation(len(labels))[::-1]")],
        ["partition@even", *EVEN, "report"],
    ),
    "a procedure": (
        [("procedures/coresets/select.py", "import numpy", "import math, numpy")],
        [*RING, "report"],  # the same numbers, with another identity
    ),
    "the engine": ([("simulation/worker.py", "RETRIES = 1 ", "RETRIES = 2 ")], [*SKEWED, *EVEN, "report"]),
    "the report": ([("report/page.css", "{", " {")], ["report"]),
}


@pytest.mark.slow
@pytest.mark.parametrize(("edits", "reruns"), EDITS.values(), ids=EDITS)
def test_an_edit_of_the_code_reruns_what_it_may_change(project, edits, reruns):
    for each in edits:
        edit(*each)
    may = SKEWED if reruns == ["partition@skewed"] else reruns  # if its clients change
    assert expected() == runs(may)
    assert repro() == sorted(reruns) and not expected()


@pytest.mark.slow
def test_a_method_needs_no_entry_under_methods(project):
    change("grid.methods", ["fedavg", "ditto", "local"])
    assert repro() == ["even · local · seed 0", "report", "skewed · local · seed 0"]


def test_experiments_are_compared_by_one_number_per_method(project):
    shown = json.loads(dvc("metrics", "show", "--json"))[""]["data"]
    assert list(shown) == ["report/summary.json"]
    (numbers,) = (file["data"] for file in shown.values())
    means: dict[str, list[float]] = {}
    for file in Path("results").glob("*/*/0/metrics.json"):
        means.setdefault(file.parts[2], []).append(json.loads(file.read_text())["local_accuracy"])
    assert numbers == pytest.approx({name: sum(each) / len(each) for name, each in means.items()}, abs=1e-4)
    table = json.loads(Path("report/metrics.json").read_text())
    assert {(p, m) for p, methods in table["global"].items() for m in methods} == {
        file.parts[1:3] for file in Path("results").glob("*/*/0")
    }


def test_the_documented_experiment_changes_a_run_of_the_default_grid():
    text, before = (HOME / "docs" / "howto" / "run.md").read_text(), load_params(HOME / "params.yaml")
    changes = re.findall(r"dvc exp run -S (\S+=[\w.]+)", text)
    assert changes
    for override in changes:
        _, name, _ = override.split(".", 2)
        after = load_params(HOME / "params.yaml", [override])
        assert name in before.grid.methods and after.method(name) != before.method(name)


@pytest.mark.full
def test_results_are_pushed_and_pulled_into_another_clone(project, tmp_path, monkeypatch):
    """As docs/howto/share.md says: the clone has the results, and nothing of it runs again."""
    shutil.rmtree("data/prepared/spare", ignore_errors=True)  # prepared by hand: the clone lacks it
    repro()
    dvc("remote", "add", "--force", "--default", "store", str(tmp_path / "store"))
    dvc("push", "--quiet")
    clone = tmp_path / "clone"
    shutil.copytree(project / "fedflow", clone / "fedflow")
    for name in ("dvc.yaml", "dvc.lock", "params.yaml", ".dvcignore", "edges.txt", "losses.npy"):
        shutil.copy(project / name, clone)
    (clone / ".dvc").mkdir()
    shutil.copy(project / ".dvc" / "config", clone / ".dvc")
    monkeypatch.chdir(clone)
    dvc("pull", "--quiet")
    for name in ("metrics.json", "clients.parquet"):
        for own in (project / "results").glob(f"*/*/*/{name}"):
            assert (clone / own.relative_to(project)).read_bytes() == own.read_bytes()
    assert dvc_repro() == ["fingerprint"]
    said = subprocess.run(
        ["fedflow", "sweep"], capture_output=True, text=True, timeout=300, check=True
    ).stdout
    assert re.search(r"^0 of \d runs to do, ", said, re.M)


@pytest.mark.full
def test_runs_are_computed_side_by_side_and_dvc_finds_them_done(project):
    """The bits are those of `fedflow run`."""
    change("methods.ditto.training", {"lr": 0.07})
    command = ["fedflow", "sweep", "--jobs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^2 of \d runs to do, ", done.stdout, re.M) and computed(done.stdout) == DITTO
    assert not runs(dvc_repro())
    subprocess.run(
        ["fedflow", "run", "--partition", "even", "--method", "ditto", "--out", "again"], check=True
    )
    for name in ("clients.parquet", "metrics.json"):
        assert (Path("again") / name).read_bytes() == (Path("results/even/ditto/0") / name).read_bytes()


@pytest.mark.slow
def test_a_failed_run_is_named_and_the_others_are_kept(project):
    """Results that the grid no longer has are set aside."""
    change("grid.methods", ["fedavg", "cfl"])
    change("methods", {"fedavg": {"server_lr": 0.9}, "cfl": {"warm_up": 0}})
    Path("results/even/cfl").write_text("in the way")
    command = ["fedflow", "sweep", "--jobs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "1 of 4 runs failed: even · cfl · seed 0" in done.stderr
    assert "even · cfl · seed 0, failed: cannot write to results/even/cfl/0: Not a directory" in done.stdout
    assert "results/even/ditto/0: set aside, not in the grid" in done.stdout
    assert not Path("results/even/ditto").exists() and expected() == ["even · cfl · seed 0"]
    Path("results/even/cfl").unlink()
    assert runs(repro()) == ["even · cfl · seed 0"] and dvc_repro() == ["fingerprint"]


@pytest.mark.slow
def test_experiments_of_dvc_run_only_what_they_change(project, tmp_path, monkeypatch):
    """`dvc exp run -S`, also in a copy and from the queue: the old results come from the cache."""
    change("grid.methods", ["fedavg", "ditto"])
    change("methods", {"fedavg": {}, "ditto": {"lam": 1.0}})
    change("tuned", {})
    repro()
    clone = tmp_path / "clone"
    shutil.copytree(project, clone, ignore=shutil.ignore_patterns("again", "tmp", "mlruns"))
    shutil.copy(HOME / "fedflow" / "templates" / "gitignore", clone / ".gitignore")
    (clone / ".dvc" / "config").write_text(CONFIG.replace("    no_scm = true\n", ""))
    (clone / ".dvc" / ".gitignore").write_text("/cache\n/tmp\n/config.local\n")
    monkeypatch.chdir(clone)
    monkeypatch.setenv("PYTHONPATH", ".")
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "a")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "a@example.org")
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "a"]):
        subprocess.run(["git", *command], check=True)
    said = dvc("exp", "run", "-S", "methods.ditto.lam=0.4")
    assert computed(said) == DITTO
    said = dvc("exp", "run", "--temp", "-S", "methods.ditto.lam=0.3")
    assert computed(said) == DITTO
    dvc("exp", "run", "--queue", "-S", "methods.ditto.lam=0.2")
    dvc("queue", "start")
    deadline = time.monotonic() + 300
    while "Running" in (said := dvc("queue", "status")) or "Queued" in said:
        assert time.monotonic() < deadline, said
        time.sleep(1)
    assert "Success" in said and computed(dvc("queue", "logs", _task(said))) == DITTO


def _task(status: str) -> str:
    """The name of the task of DVC's queue."""
    return next(line.split()[0] for line in status.splitlines() if "Success" in line)
