"""`grid.redraw`: seeds draw the division of the data, in `dvc repro`, the record, tables and notebooks."""

import json
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest
from command import fedflow, make_project
from support import refused

import fedflow as ff
from fedflow.config import Loaded, load_params
from fedflow.errors import FedflowError
from fedflow.finished.bootstrap import difference
from fedflow.finished.collect import collect_runs
from fedflow.finished.collect_outcomes import collect_outcomes
from fedflow.finished.tables import by_method
from fedflow.partition import load_partition
from fedflow.stages.all_stages import run_experiment
from fedflow.stages.experiment import Experiment
from fedflow.stages.inputs import MAKERS
from fedflow.stages.partition import prepare_partition
from fedflow.stages.prepare import prepare_dataset

HOME = Path(ff.__file__).parents[1]
PARAMS = """
data: {digits: {source: digits, train_limit: 300, test_limit: 100}}
models: {digits: {name: mlp, options: {hidden: [8]}}}
partitions: {mixed: {dataset: digits, scheme: dirichlet, alpha: 0.5, min_size: 2, clients: 4}}
training: {epochs: 1, batch_size: 16, lr: 0.1}
run: {rounds: 1, participation: 1.0, fine_tune: false}
methods: {fedavg: {}, local: {}}
grid: {datasets: [digits], partitions: [mixed], methods: [fedavg, local], seeds: [0, 1], redraw: both,
  central: [], procedures: []}
engine: {executor: inline, device: cpu}
"""
CONFIG = "[core]\n    no_scm = true\n    analytics = false\n    check_update = false\n"


def repro(folder: Path) -> list[str]:
    """The stages and runs of `dvc repro`, but not the stages that look for what changed."""
    done = subprocess.run(["dvc", "repro"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    stages = re.findall(r"^Running stage '([^']+)'", done.stdout, re.M)
    runs = re.findall(r"^\d+ of \d+: (.+ · seed \d+),", done.stdout, re.M)
    return sorted({*stages, *runs} - {"fingerprint", "sweep", "report"})


def division(root: Path, name: str) -> str:
    return load_partition(root / "data" / "partitions" / name).hash


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, preloaded: Path) -> Iterator[Path]:
    """A project in which a sweep ran the grid."""
    root = make_project(tmp_path_factory.mktemp("divisions") / "project", PARAMS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{preloaded}:{Path(sys.executable).parent}", prepend=":")
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        subprocess.run(["fedflow", "sweep", "--jobs", "1"], cwd=root, check=True, capture_output=True)
        yield root


@pytest.fixture
def project(swept: Path, tmp_path: Path) -> Path:
    """A copy without the record, whose store would know that it was moved."""
    return Path(shutil.copytree(swept, tmp_path / "project", ignore=shutil.ignore_patterns("mlruns")))


@pytest.mark.full
def test_a_further_seed_makes_its_division_and_its_runs_and_nothing_else(project: Path) -> None:
    for name in (".dvcignore", "dvc.yaml"):
        text = (HOME / name).read_text().replace("--name repro", "--name repro --jobs 1")
        (project / name).write_text(text)
    (project / ".dvc").mkdir()
    (project / ".dvc" / "config").write_text(CONFIG)
    assert repro(project) == ["partition@mixed", "prepare@digits"]  # the runs are there
    first = [division(project, name) for name in ("mixed", "mixed/1")]
    assert len(set(first)) == 2 and not (project / "data/partitions/mixed/0").exists()
    before = {file: file.stat().st_mtime_ns for file in project.glob("results/mixed/*/[01]/metrics.json")}
    assert len(before) == 4
    params = project / "params.yaml"
    params.write_text(params.read_text().replace("seeds: [0, 1]", "seeds: [0, 1, 5]"))
    runs = [f"mixed · {method} · seed 5" for method in ("fedavg", "local")]
    assert repro(project) == sorted([*runs, "partition@mixed"])
    assert [division(project, name) for name in ("mixed", "mixed/1")] == first
    assert division(project, "mixed/5") not in first
    assert all(file.stat().st_mtime_ns == moment for file, moment in before.items())
    assert (project / "data/partitions/mixed/5/labels.png").is_file() and repro(project) == []


def test_runs_of_a_seed_share_its_division_and_are_paired(project: Path, swept: Path, capsys) -> None:
    runs = collect_runs(project / "results")
    assert [(run.seed, run.division) for run in runs] == [(0, "mixed"), (1, "mixed@1")] * 2
    hashes = {(run.seed, run.metrics["partition_hash"]) for run in runs}
    assert hashes == {(0, division(project, "mixed")), (1, division(project, "mixed/1"))}
    methods = by_method(runs)
    assert {variant: len(group) for variant, group in methods.items()} == {"fedavg": 2, "local": 2}
    paired = difference(methods["fedavg"], methods["local"], "local_accuracy")
    assert paired is not None and paired.seeds == 2
    listed = json.loads(fedflow(capsys, "ls", "mixed/local", "--json", "--root", project).out)
    assert {run["run"]: run["division"] for run in listed} == {
        "mixed/local/0": "mixed", "mixed/local/1": "mixed@1",
    }  # fmt: skip
    assert "mixed@1" in fedflow(capsys, "ls", "--root", project).out
    assert "mixed@1  " in fedflow(capsys, "show", "mixed/local/1", "--root", project).out
    table = fedflow(capsys, "compare", "mixed/*", "--root", project).out
    assert "divisions" in table and re.search(r"mixed/fedavg +2 +2 ", table)
    with closing(sqlite3.connect(swept / "mlruns" / "mlflow.db")) as record:
        (tags,) = zip(*record.execute("select value from tags where key = 'division' order by value"))
    assert tags == ("mixed", "mixed", "mixed@1", "mixed@1")


def test_the_report_says_that_divisions_differ_and_shows_clients_of_one(project: Path, capsys) -> None:
    assert fedflow(capsys, "report", "--latex", "--root", project).code == 0
    page = (project / "report" / "index.html").read_text()
    assert "over seeds, which draw divisions of the data too" in page and "2 divisions" in page
    assert "Only runs on mixed, as every seed draws other clients." in page
    runs = pd.read_csv(project / "report" / "runs.csv")
    assert list(runs["division"]) == ["mixed", "mixed@1"] * 2
    assert set(pd.read_csv(project / "report" / "accuracy.csv")["seeds"]) >= {2}


def test_a_seed_draws_the_same_division_in_every_grid(project: Path, tmp_path: Path, capsys) -> None:
    other = make_project(tmp_path / "other", PARAMS.replace("seeds: [0, 1]", "seeds: [7, 1]"))
    assert fedflow(capsys, "partition", "mixed", "--root", other).out.splitlines() == [
        f"{other}/data/partitions/mixed/{seed}" for seed in (7, 1)
    ]
    assert division(other, "mixed/1") == division(project, "mixed/1")
    alone = make_project(tmp_path / "alone", PARAMS.replace(", redraw: both", ""))
    for name in ("mixed@7", "mixed"):
        assert fedflow(capsys, "partition", name, "--root", alone).code == 0
    assert division(alone, "mixed/7") == division(other, "mixed/7")
    assert division(alone, "mixed") == division(project, "mixed")


def test_a_grid_with_one_division_runs_again_and_is_apart_from_others(project: Path, capsys) -> None:
    out = fedflow(capsys, "sweep", "--dry-run", "--set", "grid.redraw=run", "--root", project).out
    assert "4 of 4 runs to do" in out  # in the folder of changed settings
    params = project / "params.yaml"
    params.write_text(params.read_text().replace(", redraw: both", ""))
    out = fedflow(capsys, "sweep", "--dry-run", "--root", project).out
    changed = "partition.redraw both -> (none); settings: partition.seed (none) -> 0"
    assert f"mixed · local · seed 1: settings: {changed}" in out
    command = ["run", "--partition", "mixed", "--method", "local", "--seed", "1", "--root", project]
    assert fedflow(capsys, *command).code == 0  # the other method keeps its results
    runs = collect_runs(project / "results")
    fixed = [run for run in runs if not run.redrawn]
    assert [run.metrics["partition_hash"] for run in fixed] == [division(project, "mixed")]
    assert len(by_method(runs)) == 3  # never averaged with runs on drawn divisions


def test_only_the_division_is_drawn_if_wanted(tmp_path: Path) -> None:
    """All seeds have the first models and cohorts of seed 0."""
    root = make_project(tmp_path / "project", PARAMS.replace("both", "division"))
    params = load_params(root / "params.yaml")
    runs = [Experiment(params, "mixed", "fedavg", seed, root) for seed in (0, 3)]
    assert [run.job.seed for run in runs] == [0, 0] and [run.partitions for run in runs] == [
        ["mixed"], ["mixed@3"],
    ]  # fmt: skip
    assert runs[0].digest == runs[1].digest and runs[0].identity.key != runs[1].identity.key
    both = Experiment(load_params(root / "params.yaml", ["grid.redraw=both"]), "mixed", "fedavg", 3, root)
    assert both.job.seed == 3 and both.digest != runs[1].digest


def test_a_division_that_no_seed_changes_is_refused_if_nothing_else_is_drawn(tmp_path: Path) -> None:
    fixed = "scheme: shards, order: in_order, clients: 4}}"
    text = re.sub(r"scheme: dirichlet.*?}}", fixed, PARAMS).replace("both", "division")
    root = make_project(tmp_path / "project", text)
    params = load_params(root / "params.yaml")
    prepare_dataset(params, "digits", root)
    both = load_params(root / "params.yaml", ["grid.redraw=both"])
    drawn = load_params(root / "params.yaml", ["partitions.mixed.order=random"])
    for wanted in (both, drawn):
        prepare_partition(wanted, "mixed@1", root)
    for stored in (False, True):
        if stored:
            prepare_partition(both, "mixed@1", root)
        with refused("^grid.redraw: 'division' is not accepted; expected run, as no seed changes this div"):
            prepare_partition(params, "mixed@1", root)
    for name in ("mixed", "mixed@0"):
        prepare_partition(params, name, root)


def test_names_and_values_that_are_not_accepted_are_one_line(tmp_path: Path) -> None:
    root = make_project(tmp_path / "project", PARAMS)
    params = load_params(root / "params.yaml")
    with refused("^grid.redraw: 'seeds' is not accepted; expected one of both, division, run"):
        load_params(root / "params.yaml", ["grid.redraw=seeds"])
    with refused("^partitions: 'mixed@1' is not accepted"):
        Experiment(params, "mixed@1", "fedavg", 0, root).check()
    with refused("^grid.partitions: 'mixed@1' is not accepted"):
        load_params(root / "params.yaml", ["grid.partitions=[mixed@1]"])
    with refused("^partition: 'mixed@x' is not accepted; expected mixed, or mixed@7 with the seed 7"):
        params.partition("mixed@x")


ONLINE = """
data: {digits: {source: digits}}
models: {digits: {name: mlp, options: {hidden: [4]}}}
partitions: {tasks: {dataset: digits, scheme: shards, clients: 4, shards_per_client: 2}}
procedures: {online: {partition: tasks, gradient_steps: [1], adaptation_steps: [1], evaluate_every: 4,
  learners: {fs: {}}}}
grid: {datasets: [digits], partitions: [tasks], methods: [fedavg], seeds: [0, 1], procedures: [online],
  redraw: both}
engine: {executor: inline, device: cpu}
"""


def test_a_procedure_reads_the_division_of_its_seed(tmp_path: Path, capsys) -> None:
    root = make_project(tmp_path / "project", ONLINE)
    for seed in (0, 1):
        assert fedflow(capsys, "procedure", "online", "--seed", seed, "--root", root).code == 0
    outcomes = collect_outcomes(root / "outcomes")
    hashes = [outcome.facts["divisions"]["partitions.tasks"] for outcome in outcomes]
    assert hashes == [division(root, "tasks"), division(root, "tasks/1")] and len(set(hashes)) == 2
    assert [outcome.variant for outcome in outcomes] == ["", ""]  # one row, averaged over seeds


KEYWORDS = {"rounds": 2, "training": {"epochs": 1, "lr": 0.1}, "progress": False}


def test_a_notebook_draws_divisions_as_the_command_does(tmp_path: Path) -> None:
    mixed = ff.dirichlet(alpha=0.3, clients=5)
    drawn = ff.run("digits", mixed, "fedavg", seeds=[0, 4], redraw="both", **KEYWORDS)
    assert [result.seed for result in drawn] == [0, 4]
    by_hand = ff.run("digits", ff.dirichlet(alpha=0.3, clients=5, seed=4), "fedavg", seed=4, **KEYWORDS)
    assert drawn[1].metrics == by_hand.metrics and drawn[1].partition.hash == by_hand.partition.hash
    recorded = ff.run("digits", mixed, "fedavg", seeds=[0, 4], redraw="both", record=tmp_path, **KEYWORDS)
    assert [r["local_accuracy"] for r in recorded] == [r["local_accuracy"] for r in drawn]
    assert [r.partition.hash for r in recorded] == [r.partition.hash for r in drawn]
    table = ff.compare(drawn, ff.run("digits", mixed, "local", seeds=[0, 4], redraw="both", **KEYWORDS)).table
    assert list(table["seeds"]) == [2, 2] and list(table["divisions"]) == [2, 2]
    same = ff.run("digits", mixed, "fedavg", seeds=[0, 4], **KEYWORDS)
    assert same[0].partition.hash == same[1].partition.hash == drawn[0].partition.hash
    assert "divisions" not in ff.compare(same).table and same[0].metrics == drawn[0].metrics
    only = ff.run("digits", mixed, "fedavg", seed=4, redraw="division", **KEYWORDS)
    assert only.partition.hash == drawn[1].partition.hash and only.metrics != drawn[1].metrics


def test_keywords_that_do_not_fit_are_one_line(tmp_path: Path) -> None:
    mixed = ff.dirichlet(alpha=0.3, clients=5)
    for words, given in {
        "redraw: 'all' is not accepted; expected one of run, division, both": {"redraw": "all"},
        "redraw: 'both' is not accepted; expected run with lists": {
            "redraw": "both",
            "partition": [[0], [1]],
        },
        "seeds: 1 is not accepted; expected every item once": {"seeds": [1, 1]},
        "seed: 2 is not accepted; expected 0 with seeds": {"seeds": [1], "seed": 2},
    }.items():
        with refused(f"^{re.escape(words)}"):
            ff.run("digits", **{"partition": mixed, "method": "fedavg"} | KEYWORDS | given)
    ff.run("digits", mixed, "fedavg", redraw="both", record=tmp_path, **KEYWORDS)
    with refused(f"^redraw: 'run' is not accepted; expected both, as in grid of {tmp_path}/params.yaml"):
        ff.run("digits", mixed, "fedavg", record=tmp_path, **KEYWORDS)


def test_a_division_that_replaces_another_one_is_reported(tmp_path: Path, capsys) -> None:
    root = make_project(tmp_path)
    for change, said in ((), False), (("--set", "partitions.skewed.fraction=0.3"), True), ((), True):
        done = fedflow(capsys, "partition", "skewed", "--root", root, *change)
        assert done.code == 0 and ("skewed: replacing another division" in done.out + done.err) == said


def test_a_division_that_another_process_uses_is_not_replaced(tmp_path: Path, capsys) -> None:
    root = make_project(tmp_path)
    assert fedflow(capsys, "partition", "skewed", "--root", root).code == 0
    locks = [str(root / ".fedflow" / "locks" / name) for name in ("run", "other")]
    hold = f"from pathlib import Path; from fedflow.files import locked; one, other = map(Path, {locks})"
    names = "'skewed/fedavg/0'", "'other-validation/fedavg/0'"  # the second is not in params.yaml
    wait = (
        f"with locked(one, print, {names[0]}), locked(other, print, {names[1]}): print(flush=True); input()"
    )
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", f"{hold}\n{wait}"], **options) as process:
        assert process.stdout and process.stdout.readline()
        assert fedflow(capsys, "partition", "skewed", "--root", root).code == 0
        done = fedflow(
            capsys, "partition", "skewed", "--root", root, "--set", "partitions.skewed.fraction=0.3"
        )
        process.communicate(b"\n")
    words = f"skewed/fedavg/0, process {process.pid}, uses another division called skewed: wait until"
    assert done.code == 2 and words in done.err


def test_a_division_made_with_other_settings_before_the_run_opens_it_is_noticed(tmp_path: Path) -> None:
    root = make_project(tmp_path)

    def twice(params: Loaded, name: str, folder: Path) -> None:
        prepare_partition(params, name, folder)
        prepare_partition(load_params(root / "params.yaml", [f"partitions.{name}.seed=9"]), name, folder)

    experiment = Experiment(load_params(root / "params.yaml"), "skewed", "fedavg", 0, root)
    with refused("another command has changed partition skewed since the run began", FedflowError):
        run_experiment(experiment, makers=MAKERS | {"partitions": twice})
