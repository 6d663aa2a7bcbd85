"""The grid: where results go, which are finished, and what the grid no longer has."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import warnings
from contextlib import ExitStack, nullcontext
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import pandas as pd
import pytest
from command import fedflow, files_below, make_project, one_line_error
from filelock import FileLock
from support import refused

from fedflow.cli.experiments import start
from fedflow.cli.sweep import LATER, _jobs, _run, _stoppable
from fedflow.config import load_params
from fedflow.config.sections import EngineSettings
from fedflow.errors import FedflowError
from fedflow.files import PARTIAL, locked
from fedflow.methods.personal.ditto import Ditto
from fedflow.partition import Partition, PartitionParams, make_partition
from fedflow.project.identity import UNRECORDED
from fedflow.project.running import AWAY
from fedflow.stages.driver import _lock_of
from fedflow.stages.experiment import Experiment
from fedflow.stages.fingerprints import MAY_BE_EMPTY
from fedflow.stages.grid import cells, finished_metrics, to_do
from fedflow.stages.procedure import ProcedureRun

HOME = Path(__file__).parents[1]
PARAMS = """
data: {digits: {source: digits, train_limit: 100, test_limit: 50}}
models: {digits: {name: mlp, options: {hidden: [4]}}}
partitions: {even: {dataset: digits, scheme: iid, clients: 2}}
training: {epochs: 1, batch_size: 64, lr: 0.1}
run: {rounds: 1, participation: 1.0, evaluate_every: 1, fine_tune: false}
methods: {fedavg: {}, ditto: {lam: 1.0}}
procedures: {ring: {procedure: coreset, graph: {kind: edges, file: edges.txt}, picks: 2, methods: [scgiga]}}
grid: {datasets: [digits], partitions: [even], methods: [fedavg, ditto], seeds: [0], procedures: [ring]}
engine: {executor: inline, device: cpu}
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, preloaded: Path) -> Path:
    """A project whose grid was run."""
    root = make_project(tmp_path_factory.mktemp("finished") / "project", PARAMS)
    edges = [(node, (node + 1) % 12) for node in range(12)]
    (root / "edges.txt").write_text("".join(f"{a} {b}\n" for a, b in edges))
    command = [str(preloaded / "fedflow"), "sweep", "--jobs", "1", "--root", str(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 of 3 runs to do, 0 up to date" in done.stdout and "1 of 3: ring · seed 0, " in done.stdout
    return root


@pytest.fixture
def project(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "project", ignore=shutil.ignore_patterns("mlruns")))


def dry_run(capsys: pytest.CaptureFixture[str], root: Path, *options: str) -> list[str]:
    done = fedflow(capsys, "sweep", "--dry-run", "--root", root, *options)
    assert (done.code, done.err) == (0, "")
    return done.out.splitlines()


UP_TO_DATE = "0 of 3 runs to do, 3 up to date"


def test_what_is_finished_is_not_run_again(project: Path, capsys) -> None:
    before = (project / "results/even/ditto/0/metrics.json").stat().st_mtime_ns
    assert dry_run(capsys, project) == [UP_TO_DATE]
    assert fedflow(capsys, "sweep", "--root", project).out == f"{UP_TO_DATE}\n"
    assert (project / "results/even/ditto/0/metrics.json").stat().st_mtime_ns == before


def test_a_run_that_another_sweep_has_finished_meanwhile_is_not_repeated(project: Path) -> None:
    metrics = project / "results/even/ditto/0/metrics.json"
    before = metrics.stat().st_mtime_ns
    for cell in cells(load_params(project / "params.yaml"), project, "sweep"):
        assert _run(cell) == (cell.title, finished_metrics(cell), "")
    assert metrics.stat().st_mtime_ns == before


def test_a_procedure_with_a_named_folder_deletes_nothing_else_there(project: Path, capsys) -> None:
    ring = "procedure", "ring", "--root", project, "--out"
    folder = project / "notes"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "mine.csv").write_text("kept")
    for _ in range(2):  # the second time over its own results
        assert fedflow(capsys, *ring, folder, "--again").code == 0
    (folder / "tables").mkdir(exist_ok=True)
    (folder / "tables" / "old.csv").write_text("of an earlier outcome")
    assert fedflow(capsys, *ring, folder, "--again").code == 0
    assert (folder / "data" / "mine.csv").read_text() == "kept"
    assert not (folder / "tables" / "old.csv").exists() and (folder / "summary.csv").exists()
    done = fedflow(capsys, *ring, folder, "--seed", 1)
    assert done.code == 2 and "notes holds results of another run (other seed): name another" in done.err
    before = files_below(project / "results")
    done = fedflow(capsys, *ring, project / "results/even/fedavg/0")
    assert done.code == 2 and "out: " in done.err and "a folder outside data, landscapes" in done.err
    assert files_below(project / "results") == before


def test_empty_lists_are_those_of_the_file(project: Path) -> None:
    params = load_params(project / "params.yaml")
    assert len(cells(params, project, "sweep", partitions=[], methods=[])) == 3


def test_options_before_a_subcommand_are_refused(project: Path, capsys) -> None:
    for option in (["--root", project], ["--json"]):
        done = fedflow(capsys, "partitions", *option, "compare", "even")
        assert done.code == 2 and re.match(r"fedflow: --(root|json): 'before compare' is not", done.err)


@pytest.mark.parametrize("words", ["methods ditto", "procedures coreset", "schemes iid"])
def test_a_whole_catalogue_is_in_one_format(words: str, capsys) -> None:
    command, name = words.split()
    done = fedflow(capsys, command, "--markdown", "--json")
    assert (done.code, done.out, done.err) == (2, "", "fedflow: --markdown or --json, not both\n")
    done = fedflow(capsys, command, name, "--markdown")
    assert (done.code, done.out) == (2, "") and "either --markdown, which writes the whole" in done.err


@pytest.mark.parametrize("command", ["procedure ring", "run --partition even --method fedavg"])
def test_a_named_folder_that_holds_the_project_is_refused(command: str, project: Path, capsys) -> None:
    for folder in (project, project.parent):
        done = fedflow(capsys, *command.split(), "--root", project, "--out", folder)
        assert done.code == 2 and "is not accepted; expected a folder without the project" in done.err


@pytest.mark.parametrize(
    ("command", "mine"),
    [
        ("procedure ring", "tables/mine.csv"),
        *(("run --partition even --method fedavg", name) for name in ("rounds.csv", "metrics.json")),
    ],
)
def test_a_named_folder_with_files_of_the_user_is_refused(command, mine, project: Path, capsys) -> None:
    file = project / "mine" / mine
    file.parent.mkdir(parents=True)
    file.write_text("kept")
    options = [*command.split(), "--again", "--root", project, "--out", project / "mine"]
    done = fedflow(capsys, *options)
    assert done.code == 2 and f"files that no run has written, such as {mine}: name another" in done.err
    assert files_below(project / "mine") == {mine: b"kept"}
    file.rename(project / "mine" / "README.md")  # which no run replaces
    assert fedflow(capsys, *options).code == 0


def test_a_run_that_raises_is_listed_and_the_others_go_on(project: Path, capsys, monkeypatch) -> None:
    def aggregate(*_: object) -> None:
        raise RuntimeError("a mistake in a method")

    monkeypatch.setattr(Ditto, "aggregate", aggregate)
    lines = ("sweep", "--jobs", 1, "--set", "grid.seeds=[3]", "--root", project)
    done = fedflow(capsys, *lines)
    assert done.code == 2 and "even · ditto · seed 3, failed: RuntimeError: a mistake in a method" in done.out
    assert done.out.count(" of 3: ") == 3 and "in aggregate" in done.err
    assert done.err.endswith("fedflow: 1 of 3 runs failed: even · ditto · seed 3\n")


def _ends(cell: Experiment) -> tuple[str, dict, str]:
    """Stands for `_run` in a worker process: the first one ends, and signals end runs of the next seed."""
    if (cell.method, cell.seed) == ("fedavg", 3):
        os._exit(1)
    if cell.seed == 4:
        signal.raise_signal(signal.SIGINT if cell.method == "fedavg" else signal.SIGTERM)
    return cell.title, {}, ""


def test_a_process_that_ends_fails_its_cell_alone(project: Path, capsys, monkeypatch) -> None:
    """Others replace both processes, and run the rest."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process passes on that it ignores
    monkeypatch.setattr("fedflow.cli.sweep._run", _ends)
    monkeypatch.setattr("fedflow.cli.sweep._prepare_process", print)
    grid = "grid={datasets: [digits], partitions: [even], methods: [fedavg, ditto], seeds: [3, 4]}"
    done = fedflow(capsys, "sweep", "--jobs", 2, "--set", grid, "--root", project)
    assert done.code == 2 and done.out.count(", done") == 1
    assert "even · fedavg · seed 3, failed: its process died, perhaps out of memory; " in done.out
    assert done.out.count(" · seed 4, stopped; rerun the command to resume") == 2
    assert "fedflow: 3 of 4 runs failed: even · fedavg · seed " in done.err


def test_a_scheme_that_raises_fails_its_runs_alone(project: Path, capsys, monkeypatch) -> None:
    def broken(entry: PartitionParams, *rest: Any) -> Partition:
        if entry.clients == 3:
            raise RuntimeError("a mistake in a scheme")
        return make_partition(entry, *rest)

    monkeypatch.setattr("fedflow.stages.partition.make_partition", broken)
    odd = "partitions.odd={dataset: digits, scheme: iid, clients: 3}"
    grid = "grid={datasets: [digits], partitions: [odd, even], methods: [fedavg], seeds: [3]}"
    sweep = "sweep", "--jobs", 1, "--root", project, "--set", odd, "--set"
    done = fedflow(capsys, *sweep, grid)
    assert done.code == 2 and "partition odd, failed: RuntimeError: a mistake in a scheme" in done.out
    assert "2 of 2 runs to do" in done.out and "1 of 1: even · fedavg · seed 3, " in done.out
    assert "in broken" in done.err and done.err.endswith("1 of 2 runs failed: odd · fedavg · seed 3\n")
    with pytest.raises(RuntimeError, match="a mistake in a scheme"):  # no run is left
        fedflow(capsys, *sweep, grid.replace(", even", ""))


def test_methods_that_keep_their_value_are_named(project: Path, capsys) -> None:
    file = project / "params.yaml"
    own = "ditto: {lam: 1.0, training: {lr: 0.3}}"
    file.write_text(file.read_text().replace("ditto: {lam: 1.0}", own))
    said = "^--set training.lr: ditto keeps 0.3; use --set methods.NAME.training.lr=VALUE$"
    sweep = "sweep", "--dry-run", "--root", project, "--set", "training.lr=0.5", "--set"
    with pytest.warns(UserWarning, match=said):
        assert fedflow(capsys, *sweep, "grid.seeds=[0, 1]").code == 0
    with warnings.catch_warnings(action="error"):
        for change in ("methods.ditto.training.lr=0.5", "grid.methods=[fedavg]"):
            assert fedflow(capsys, *sweep, change).code == 0
    run = "run", "--partition", "even", "--root", project, "--set", "training.lr=0.5", "--method"
    with pytest.warns(UserWarning, match=said):
        assert fedflow(capsys, *run, "ditto").code == 0


@pytest.mark.parametrize("options", [["--executor", "inline"], []])
def test_workers_that_would_have_no_effect_are_refused(options: list, project: Path, capsys) -> None:
    done = fedflow(capsys, "sweep", *options, "--workers", 3, "--root", project)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("fedflow: --workers: 3 is not accepted; expected 1 with executor inline, ")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("--executor dask", "executor dask"),
        ("--executor processes", "executor processes"),
        ("--executor threads --workers 3", "3 workers"),
        ("--set engine.executor=ray", "executor ray"),
    ],
)
def test_side_by_side_runs_refuse_what_they_would_drop(asked, words, project: Path, capsys) -> None:
    done = fedflow(capsys, "sweep", "--root", project, "--jobs", 2, *asked.split())
    assert done.code == 2 and done.err.startswith(
        f"fedflow: --jobs: 2 is not accepted; expected 1 with {words}: "
    )
    assert fedflow(capsys, "sweep", "--root", project, "--dry-run", *asked.split()).code == 0


def test_a_dry_run_says_why_and_makes_nothing(project: Path, capsys) -> None:
    text = (project / "params.yaml").read_text()
    (project / "params.yaml").write_text(
        text.replace("lam: 1.0", "lam: 0.5").replace("seeds: [0]", "seeds: [1]")
    )
    files = sorted(project.rglob("*"))
    assert dry_run(capsys, project) == [
        "even · fedavg · seed 1: missing",
        "even · ditto · seed 1: missing",
        "ring · seed 1: missing",
        *(
            f"{project}/{folder}: to be set aside, not in the grid"
            for folder in ("outcomes/ring/0", "results/even/ditto/0", "results/even/fedavg/0")
        ),
        "3 of 3 runs to do, 0 up to date",
    ]
    (project / "params.yaml").write_text(
        text.replace("lam: 1.0", "lam: 0.5").replace("epochs: 1", "epochs: 2")
    )
    said = dry_run(capsys, project)
    assert said[0] == "even · fedavg · seed 0: settings: training.epochs 1 -> 2"
    assert (
        said[1] == "even · ditto · seed 0: settings: method.lam 1.0 -> 0.5; settings: training.epochs 1 -> 2"
    )
    assert sorted(project.rglob("*")) == files


def test_inputs_that_are_made_first_are_reasons(project: Path, capsys) -> None:
    shutil.rmtree(project / ".fedflow" / "partitions")
    reason = "partition even, if it changes"
    assert dry_run(capsys, project)[:2] == [
        f"even · {name} · seed 0: {reason}" for name in ("fedavg", "ditto")
    ]
    shutil.rmtree(project / "data")
    reason = "data of digits, if it changes; partition even, if it changes"
    assert dry_run(capsys, project)[:2] == [
        f"even · {name} · seed 0: {reason}" for name in ("fedavg", "ditto")
    ]
    assert not (project / "data").exists()
    assert fedflow(capsys, "sweep", "--root", project).out.endswith(f"{UP_TO_DATE}\n")  # they are as before


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (shutil.rmtree, "missing"),
        (lambda folder: (folder / "clients.parquet").unlink(), "missing"),
        (lambda folder: (folder / "identity.json").write_text("{"), "no valid identity.json"),
    ],
)
def test_damaged_results_are_computed_again(project: Path, capsys, spoil, reason) -> None:
    spoil(project / "results" / "even" / "ditto" / "0")
    assert dry_run(capsys, project) == [f"even · ditto · seed 0: {reason}", "1 of 3 runs to do, 2 up to date"]


def test_a_run_that_was_killed_before_its_record_ended_is_not_finished(project: Path, capsys) -> None:
    note = project / "results" / "even" / "ditto" / "0" / UNRECORDED
    assert not note.exists()
    note.touch()
    assert dry_run(capsys, project)[0] == "even · ditto · seed 0: killed before its record ended"
    assert fedflow(capsys, "sweep", "--root", project).code == 0
    assert dry_run(capsys, project) == [UP_TO_DATE] and not note.exists()


def test_first_results_that_cannot_be_written_leave_no_mark(project: Path, capsys, monkeypatch) -> None:
    folders = [project / "results" / "even" / "ditto" / "0", *(project / "outcomes" / "ring").iterdir()]
    for folder in folders:
        shutil.rmtree(folder)

    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("fedflow.files._sync", full)
        assert "No space left" in fedflow(capsys, "sweep", "-j", "1", "--root", project).out
    assert not any(folder.exists() and [*folder.iterdir()] for folder in folders)
    for folder in folders:  # as after SIGKILL
        (folder / PARTIAL).mkdir(parents=True)
        (folder / UNRECORDED).touch()
    assert fedflow(capsys, "report", "--root", project).code == 0
    assert fedflow(capsys, "sweep", "--root", project).code == 0
    assert dry_run(capsys, project) == [UP_TO_DATE]


def test_a_deleted_file_that_a_procedure_has_read_is_no_reason(project: Path, capsys) -> None:
    (project / "edges.txt").unlink()
    assert dry_run(capsys, project) == [UP_TO_DATE]
    (project / "edges.txt").write_text("0 1\n1 2\n2 0\n")
    assert dry_run(capsys, project)[0] == "ring · seed 0: file edges.txt"


def test_only_what_fedflow_wrote_for_the_grid_is_set_aside(project: Path, capsys) -> None:
    text = (project / "params.yaml").read_text()
    (project / "params.yaml").write_text(text.replace("methods: [fedavg, ditto]", "methods: [fedavg]"))
    mine = [project / "results" / "even" / name for name in ("ditto/notes", "mine/0")]
    changed = project / "results" / "even" / "ditto" / "0-01234567"  # of an earlier version
    for folder in (*mine, changed):
        folder.mkdir(parents=True)
        (folder / "file").touch()
    (changed / "identity.json").write_text((project / "results/even/ditto/0/identity.json").read_text())
    out = fedflow(capsys, "sweep", "--root", project).out
    assert f"{project}/results/even/ditto/0: set aside, not in the grid\n" in out and out.count("aside") == 1
    assert not (project / "results/even/ditto/0").exists()
    assert all((folder / "file").exists() for folder in (*mine, changed))


def test_results_that_a_run_is_computing_are_not_moved(project: Path) -> None:
    file, folder = project / "params.yaml", project / "results" / "even" / "ditto" / "0"
    file.write_text(file.read_text().replace("methods: [fedavg, ditto]", "methods: [fedavg]"))
    params = load_params(file)
    with locked(_lock_of(folder, project), print):
        assert to_do(params, project, cells(params, project, "sweep"))[0] == [] and folder.exists()
    to_do(params, project, cells(params, project, "sweep"))
    assert not folder.exists()


def test_results_come_back_with_the_grid(project: Path, capsys) -> None:
    folders = [project / name for name in ("results/even/ditto/0", "outcomes/ring/0")]
    before = [files_below(folder) for folder in folders]
    text = (project / "params.yaml").read_text()
    (project / "params.yaml").write_text(text.replace("seeds: [0]", "seeds: [1]"))
    assert fedflow(capsys, "sweep", "--root", project).out.count("set aside, not in the grid") == 3
    assert not any(folder.exists() for folder in folders)
    (project / "params.yaml").write_text(text.replace("seeds: [0]", "seeds: [0, 1]"))
    assert dry_run(capsys, project) == ["0 of 6 runs to do, 6 up to date"]
    assert not any(folder.exists() for folder in folders)
    out = fedflow(capsys, "sweep", "--root", project).out
    assert f"{project}/results/even/ditto/0: restored (in the grid again)\n" in out
    assert [files_below(folder) for folder in folders] == before


def test_results_of_entries_with_equal_settings_are_kept_apart(project: Path, capsys) -> None:
    file = project / "params.yaml"
    text = file.read_text().replace(
        "methods: {fedavg: {}, ", "methods: {fedavg: {}, twin: {method: fedavg}, "
    )
    both = text.replace("methods: [fedavg, ditto]", "methods: [fedavg, twin]")
    file.write_text(both)
    assert fedflow(capsys, "sweep", "--jobs", 1, "--root", project).code == 0
    file.write_text(text.replace("methods: [fedavg, ditto]", "methods: [ditto]"))
    assert fedflow(capsys, "sweep", "--root", project).out.count("set aside") == 2
    file.write_text(both)
    assert fedflow(capsys, "sweep", "--root", project).out.count("restored") == 2
    made = [
        json.loads(path.read_text())["method"] for path in sorted(project.glob("results/*/*/0/metrics.json"))
    ]
    assert made == ["fedavg", "twin"]


def test_what_comes_back_replaces_no_finished_results(project: Path, capsys) -> None:
    file, text = project / "params.yaml", (project / "params.yaml").read_text()
    for lam in (1.0, 0.5):
        file.write_text(text.replace("lam: 1.0", f"lam: {lam}"))
        assert fedflow(capsys, "sweep", "--jobs", 1, "--root", project).code == 0
        if lam == 1.0:
            file.write_text(text.replace("methods: [fedavg, ditto]", "methods: [fedavg]"))
            assert fedflow(capsys, "sweep", "--root", project).out.count("set aside") == 1
    for lam in (1.0, 0.5):
        file.write_text(text.replace("lam: 1.0", f"lam: {lam}"))
        assert "restored" in fedflow(capsys, "sweep", "--root", project).out


def test_sweeps_take_turns_to_move_results(project: Path, monkeypatch) -> None:
    file, waits = project / "params.yaml", Event()
    file.write_text(file.read_text().replace("methods: [fedavg, ditto]", "methods: [fedavg]"))
    params = load_params(file)
    monkeypatch.setattr(
        "fedflow.stages.grid.say",
        lambda text: waits.set() if text.startswith("waiting for another") else None,
    )
    with FileLock(project / ".fedflow" / "locks" / "grid"):
        sweep = Thread(target=to_do, args=(params, project, cells(params, project, "sweep")), daemon=True)
        sweep.start()
        assert waits.wait(60) and (project / "results/even/ditto/0").exists()
    sweep.join(60)
    assert not (project / "results/even/ditto/0").exists()


def test_a_cell_whose_inputs_another_command_has_changed_fails(project: Path, capsys) -> None:
    grid = cells(load_params(project / "params.yaml", ["grid.seeds=[4]"]), project, "sweep")
    changed = ["--set", "partitions.even.clients=3", "--root", project]
    assert fedflow(capsys, "partition", "even", *changed).code == 0
    failed = "failed: another command has changed partition even since the sweep began"
    assert [_run(cell)[2] for cell in grid[:2]] == [failed] * 2


def test_damaged_results_do_not_come_back(project: Path, capsys) -> None:
    text = (project / "params.yaml").read_text()
    (project / "params.yaml").write_text(text.replace("methods: [fedavg, ditto]", "methods: [fedavg]"))
    fedflow(capsys, "sweep", "--root", project)
    (aside,) = project.glob(".fedflow/aside/results/even/ditto/0-*")
    (aside / "clients.parquet").unlink()
    (project / "params.yaml").write_text(text)
    assert dry_run(capsys, project) == ["even · ditto · seed 0: missing", "1 of 3 runs to do, 2 up to date"]


def test_a_sweep_with_changed_settings_leaves_the_results_of_the_file_alone(project: Path, capsys) -> None:
    before = {file: file.read_bytes() for file in project.glob("[ro]*s/**/*.json")}
    command = ["sweep", "--set", "grid.methods=[ditto]", "--set", "methods.ditto.lam=0.2", "--root", project]
    done = fedflow(capsys, *command, "--set", "grid.procedures=[]", "--set", "grid.seeds=[3]")
    assert done.code == 0 and "1 of 1: even · ditto · seed 3, " in done.out
    (made,) = project.glob("runs/even/ditto/*")
    digest = Experiment(
        load_params(project / "params.yaml", ["methods.ditto.lam=0.2"]), "even", "ditto", 3
    ).digest
    assert made.name == f"3-{digest[:8]}"
    assert before and all(file.read_bytes() == content for file, content in before.items())
    assert f"even/ditto/{made.name}" in fedflow(capsys, "ls", "--root", project).out
    assert "0.2" in fedflow(capsys, "show", f"even/ditto/{made.name}", "--root", project).out


def test_results_of_the_grid_are_apart_from_all_others(project: Path) -> None:
    params = load_params(project / "params.yaml")
    for seed, home in ((0, "results"), (1, "runs")):
        assert Experiment(
            params, "even", "ditto", seed, project
        ).results_folder == project / home / "even/ditto" / str(seed)
    for seed, home in ((0, "outcomes"), (1, "runs")):
        assert ProcedureRun(params, "ring", seed, project).folder == project / home / "ring" / str(seed)
    changed = ProcedureRun(
        load_params(project / "params.yaml", ["procedures.ring.picks=1"]), "ring", 0, project
    )
    assert changed.folder == project / "runs" / "ring" / f"0-{changed.digest[:8]}"


def test_the_report_has_what_the_grid_does_not(project: Path, capsys) -> None:
    more, other = ["--set", "procedures.ring.picks=3"], ["--partition", "even", "--method", "fedavg"]
    for command in (["procedure", "ring", *more], ["run", *other, "--seed", "5"], ["report"]):
        assert fedflow(capsys, *command, "--root", project).code == 0
    assert "picks 3" in (project / "report" / "outcomes.csv").read_text()
    seeds = pd.read_csv(project / "report" / "runs.csv").query("method == 'fedavg'")["seed"]
    assert sorted(seeds) == [0, 5]


def test_nothing_slow_is_imported() -> None:
    """By the list of commands: torch takes three seconds."""
    code = "import sys, fedflow.cli; print({'torch', 'pandas'} & sys.modules.keys())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


def test_a_server_that_does_not_answer_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect says it by a plain `RuntimeError`, and by errors of httpx; others keep their traceback."""
    request = httpx.Request("GET", "http://127.0.0.1:1/api/")

    def flow(message: str) -> None:
        if message.isdigit():
            httpx.Response(int(message), request=request).raise_for_status()
        raise httpx.ConnectError(message) if "Errno" in message else RuntimeError(message)

    module = sys.modules["fedflow.cli.experiments"]
    monkeypatch.setattr(module, "load_flow", lambda name: flow)
    monkeypatch.setattr(module, "server_for", lambda params: nullcontext())
    params = load_params(HOME / "params.yaml")
    with refused("the Prefect server is not responding; rerun the command to resume", FedflowError):
        start(params, "run", lambda: None, message="Failed to reach API at http://127.0.0.1:1/api/")
    for message in ("[Errno 111] Connection refused", "500", "503"):
        with one_line_error(
            rf"the Prefect server is not responding; rerun the command to resume .*: .*{message[-12:]}"
        ):
            start(params, "run", lambda: None, message=message)
    with pytest.raises(httpx.HTTPStatusError, match="404"):
        start(params, "run", lambda: None, message="404")
    with pytest.raises(RuntimeError, match="another"):
        start(params, "run", lambda: None, message="another")


def test_folders_that_may_be_empty_hold_a_file_for_git_and_dvc(tmp_path, capsys):
    """DVC warns of an empty dependency in every `dvc repro`, and a clone would lack it."""
    root = make_project(tmp_path)
    assert fedflow(capsys, "fingerprint", "--root", root).code == 0
    for home in (root, HOME):
        assert (home / MAY_BE_EMPTY / ".gitkeep").read_bytes() == b""


def test_a_run_in_another_process_is_waited_for(project: Path, capsys, monkeypatch) -> None:
    """If it is finished there, its result is taken; if not, the run is this sweep's."""
    shutil.rmtree(project / "results/even/ditto")
    (cell,) = [c for c in cells(load_params(project / "params.yaml"), project, "sweep") if "ditto" in c.title]
    locks = [
        lock for lock in (project / ".fedflow" / "locks").iterdir() if re.fullmatch("[0-9a-f]+", lock.name)
    ]

    def busy() -> None:
        raise AssertionError

    with ExitStack() as other_process:
        for lock in locks:
            other_process.enter_context(locked(lock, busy))
        assert _run(cell) == (cell.title, {}, LATER)
        waited = []

        def end(seconds: float) -> None:
            if seconds == AWAY:  # the locks have no note of a process here
                waited.append(seconds)
                other_process.close()

        monkeypatch.setattr("fedflow.cli.sweep.time.sleep", end)
        done = fedflow(capsys, "sweep", "--jobs", "1", "--root", project)
    assert done.code == 0 and len(waited) == 1
    assert f"{cell.title}: waiting for another process that runs it" in done.out
    assert f"1 of 1: {cell.title}, " in done.out and finished_metrics(cell)


def test_changes_that_no_run_of_the_grid_reads_are_named(project: Path, capsys) -> None:
    with pytest.warns(
        UserWarning, match="^--set methods.ifca.clusters, tuning.rounds: not used by the grid$"
    ):
        fedflow(
            capsys,
            "sweep",
            "--dry-run",
            "--root",
            project,
            "--set",
            "methods.ifca.clusters=4",
            "--set",
            "tuning.rounds=4",
            "--set",
            "methods.ditto.lam=1",
        )


def test_changes_that_decide_runs_are_read(project: Path, capsys) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = fedflow(capsys, "sweep", "--dry-run", "--root", project, "--set", "grid.redraw=both")
        assert done.code == 0
        run = "run", "--partition", "even", "--method", "ditto", "--root", project
        assert fedflow(capsys, *run, "--set", "grid.redraw=both").code == 0


def test_the_memory_of_a_container_limits_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedflow.cli.sweep.CONTAINER_MEMORY", tmp_path / "memory.max")
    (tmp_path / "memory.max").write_text("max\n")
    assert _jobs(EngineSettings(device="cpu")) >= 1
    (tmp_path / "memory.max").write_text(f"{3 << 30}\n")
    assert _jobs(EngineSettings(device="cpu")) == 1


def test_a_signal_interrupts_a_run_and_ends_a_process_that_waits_for_one() -> None:
    def interrupted_twice(cell: str) -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)  # while the run is recorded as killed
            ended.append(cell)

    before, ended = signal.getsignal(signal.SIGTERM), list[str]()
    with pytest.raises(KeyboardInterrupt):
        _stoppable(interrupted_twice, "cell")
    assert ended == ["cell"] and signal.getsignal(signal.SIGTERM) == before
