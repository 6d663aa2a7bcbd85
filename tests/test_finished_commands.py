"""``fedflow ls``, ``show``, ``compare``, ``stop`` and ``export`` on runs of a real project."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from io import StringIO
from pathlib import Path
from textwrap import dedent

import psutil
import pytest
import torch
from command import fedflow, make_project
from rich.console import Console

from fedflow.cli import finished, printing
from fedflow.cli.finished import ls
from fedflow.files import locked
from fedflow.project.running import killed, running
from fedflow.tracking.lineage import recorded_runs
from fedflow.tracking.models import import_model, load_model

PARAMS = """
data: {digits: {source: digits}}
models: {digits: {name: mlp, options: {hidden: [8]}}}
partitions: {skewed: {dataset: digits, scheme: dirichlet, alpha: 0.5, clients: 4}}
training: {epochs: 1, batch_size: 64, lr: 0.1}
run: {rounds: 1, participation: 1.0}
methods: {fedavg: {}, ditto: {lam: 0.5}}
grid: {datasets: [digits], partitions: [skewed], methods: [fedavg, ditto], seeds: [0, 1]}
engine: {executor: inline, device: cpu}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_project(tmp_path_factory.mktemp("project"), PARAMS)


@pytest.fixture(autouse=True)
def inside(project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(project)
    if not Path("results").exists():
        for method, seed in (("fedavg", 0), ("fedavg", 1), ("ditto", 0)):
            options = ("--partition", "skewed", "--method", method, "--seed", str(seed))
            assert fedflow(capsys, "run", *options).code == 0


def test_a_long_table_is_as_rich_prints_it(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("", "lam 0.1", "数据 größe", "clip_norm 0.25, server_lr 0.001", "x" * 50)
    rows = [(f"few/method-{i}/0", f"{i / 7:.1f}", words[i % 5] * (1 + i % 3)) for i in range(150)]
    for width in (30, 60, 120, 400):
        printed = []
        for many in (100, 200):
            file = StringIO()
            monkeypatch.setattr(printing, "MANY", many)
            monkeypatch.setattr(printing, "console", Console(file=file, width=width, markup=False))
            printing.print_table("150 rows", ("run", "Local, %", "settings that differ"), rows)
            printed.append(file.getvalue())
        assert printed[0] == printed[1] and printed[0].count("few/") > 100


def test_runs_of_earlier_settings_or_code_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert "outdated" not in fedflow(capsys, "ls").out
    file, params = Path("results/skewed/ditto/0/identity.json"), Path("params.yaml").read_text()
    identity = file.read_text()
    try:
        file.write_text(json.dumps(json.loads(identity) | {"code": "earlier"}))
        Path("params.yaml").write_text(params.replace("fedavg: {}", "fedavg: {server_lr: 0.5}"))
        for command in (["ls"], ["compare", "skewed"]):
            told = fedflow(capsys, *command).out
            assert "outdated: 1 run, whose code changed" in told
            assert "outdated: 2 runs, whose settings changed" in told
    finally:
        file.write_text(identity)
        Path("params.yaml").write_text(params)


def test_runs_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    listed = fedflow(capsys, "ls").out
    assert "3 finished runs" in listed and "Local, %" in listed
    assert {"skewed/fedavg/0", "skewed/fedavg/1", "skewed/ditto/0"} <= {*listed.split()}
    assert "1 finished run\n" in re.sub(" +\n", "\n", fedflow(capsys, "ls", "*/ditto/*").out)
    found = json.loads(fedflow(capsys, "ls", "skewed/fedavg", "--json").out)
    assert {run["run"] for run in found} == {"skewed/fedavg/0", "skewed/fedavg/1"}
    metrics = json.loads(Path("results/skewed/fedavg/0/metrics.json").read_text())
    (one,) = (run for run in found if run["run"].endswith("/0"))
    assert one["local_accuracy"] == metrics["local_accuracy"]
    assert one["state"] == "finished" and one["settings"]["training.lr"] == 0.1


def test_the_end_of_a_run_is_the_recorded_one_whatever_its_files_say(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def listed(root: Path) -> list[tuple[str, str | None]]:
        return [
            (run["run"], run["ended"])
            for run in json.loads(fedflow(capsys, "ls", "--json", "--root", root).out)
        ]

    before, copy = listed(Path()), tmp_path / "copy"
    assert [name for name, _ in before[::-1]][:2] == ["skewed/fedavg/0", "skewed/fedavg/1"]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d", str(ended)) for _, ended in before)
    for name in ("results", "mlruns"):
        shutil.copytree(name, copy / name)
    os.utime(copy / "results" / before[-1][0] / "metrics.json", (0, 2_000_000_000))
    assert listed(copy) == before  # also before the store knows its new place
    assert fedflow(capsys, "store", "move", "--root", copy).code == 0
    shown = fedflow(capsys, "show", before[0][0], "--root", copy).out
    assert f"ended {before[0][1]}" in " ".join(shown.split())
    shutil.rmtree(copy / "mlruns")
    assert {ended for _, ended in listed(copy)} == {None}
    assert " unknown " in fedflow(capsys, "ls", "--root", copy).out
    assert "ended unknown" in " ".join(fedflow(capsys, "show", before[0][0], "--root", copy).out.split())
    (copy / "mlruns").mkdir()
    (copy / "mlruns" / "mlflow.db").write_bytes(b"no database" * 500)
    with pytest.warns(UserWarning, match=r"cannot tell when runs ended \(MLflow store .* is not a database"):
        assert fedflow(capsys, "ls", "--root", copy).code == 0


def test_listing_runs_imports_neither_mlflow_nor_pytorch() -> None:
    code = "import sys; from fedflow.tracking.lineage import ends; ends()"
    code += "; print({'mlflow', 'torch'} & {*sys.modules})"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"


def test_a_run_shows_where_it_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    metrics = json.loads(Path("results/skewed/ditto/0/metrics.json").read_text())
    shown = fedflow(capsys, "show", "results/skewed/ditto/0/").out
    for words in (
        metrics["data_hash"],
        metrics["partition_hash"],
        "dirichlet, alpha 0.5",
        "4 clients",
        "Ditto (ditto), seed 0",
        "mlp, 610 parameters",
        "1 round,",
        f"settings {metrics['settings']}",
        "lam 0.5",
        "lr 0.1",
        "clients.parquet",
        "command",
        "--method ditto",
        "version",
        "skewed.ditto v1, serves clients 0-3",
        "artifacts: file://",
    ):
        assert words in shown, words
    found = json.loads(fedflow(capsys, "show", "skewed/ditto/0", "--json").out)
    assert found["metrics"] == metrics and found["settings"]["method.lam"] == 0.5
    assert len(found["record"]["recorded"]) == 32
    assert f" after {found['record']['seconds']:,.0f} s" in shown
    assert Path(found["record"]["artifacts"].removeprefix("file://"), "results").is_dir()


def test_a_run_is_shown_without_the_record(capsys, monkeypatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.warns(UserWarning, match="without facts from the record: MLflow store http://127.0.0.1:9"):
        shown = fedflow(capsys, "show", "skewed/ditto/0")
    assert shown.code == 0 and "no record found" in shown.out and "Ditto (ditto), seed 0" in shown.out


def test_runs_are_compared_over_seeds_and_by_settings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = fedflow(capsys, "compare", "skewed").out
    assert re.search(r"skewed/fedavg +2 +\d+\.\d ± \d+\.\d", compared) and re.search(
        "skewed/ditto +1 ", compared
    )
    assert (
        "method.lam" not in compared and "training.lr" not in compared
    )  # only Ditto has the one, all the other
    changed = (
        "--partition",
        "skewed",
        "--method",
        "ditto",
        "--set",
        "method.lam=2",
        "--set",
        "training.lr=0.2",
    )
    assert fedflow(capsys, "run", *changed).code == 0
    compared = fedflow(capsys, "compare", "skewed").out
    assert re.search(r"method\.lam +0\.5 +2\.0 *\n", compared)
    assert re.search(r"training\.lr +0\.1 +0\.2 +0\.1 *\n", compared)
    monkeypatch.setattr(finished, "SIDE_BY_SIDE", 2)
    many = fedflow(capsys, "compare", "skewed").out
    assert re.search(r"method\.lam\n  0\.5: skewed/ditto\n  2\.0: skewed/ditto/\*-\w+\n", many)
    assert re.search(
        r"training\.lr\n  0\.1: skewed/ditto, skewed/fedavg\n  0\.2: skewed/ditto/\*-\w+\n", many
    )
    listed = fedflow(capsys, "ls").out  # in separate columns: lam of Ditto's runs, lr of all
    assert re.search(r"skewed/ditto/0-\w+ .* lam 2.0, lr 0.2 *\n", listed)
    assert re.search(r"skewed/fedavg/0 .* \d\d:\d\d +lr 0.1 *\n", listed)
    assert finished._spread("rounds_to_target", [3.0], 3).endswith("3.0 (1 of 3)")
    found = json.loads(fedflow(capsys, "compare", "skewed/fedavg/0", "skewed/ditto/0", "--json").out)
    assert [row["method"] for row in found] == ["ditto", "fedavg"]
    assert found[0]["settings"] == {} and len(found[1]["metrics"]["local_accuracy"]) == 1


def test_runs_on_other_data_are_not_averaged(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copytree("results/skewed/fedavg", tmp_path / "results" / "skewed" / "fedavg")
    file = tmp_path / "results" / "skewed" / "fedavg" / "1" / "metrics.json"
    facts = json.loads(file.read_text())
    file.write_text(json.dumps(facts | {"data_hash": "0123456789abcdef"}))
    options = ("compare", "skewed", "--root", tmp_path)
    compared = fedflow(capsys, *options).out
    assert re.search(r"skewed/fedavg · data 01234567 +1 ", compared)
    assert re.search(rf"data_hash +{facts['data_hash']} +0123456789abcdef *\n", compared)
    found = json.loads(fedflow(capsys, *options, "--json").out)
    assert [row["settings"] for row in found] == [
        {"data_hash": digest} for digest in (facts["data_hash"], "0123456789abcdef")
    ]
    division = {"division": "skewed@1", "partition_hash": "other"}  # every seed draws it
    for seed in ("0", "1"):
        file = file.parents[1] / seed / "metrics.json"
        file.write_text(json.dumps(facts | {"seed": int(seed)} | division | {"partition_hash": seed}))
    (row,) = json.loads(fedflow(capsys, *options, "--json").out)
    assert row["seeds"] == [0, 1] and row["settings"] == {}


def test_a_project_without_runs_lists_none(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert json.loads(fedflow(capsys, "ls", "--json", "--root", tmp_path).out) == []


def test_names_of_runs_are_whole_on_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedflow.cli.printing import console

    fedflow(capsys, "ls")  # which is wider
    monkeypatch.setattr(console, "width", 50)
    ls(as_json=False)
    listed = capsys.readouterr().out
    assert "skewed/fedavg/1" in listed and "…" not in listed and max(map(len, listed.splitlines())) <= 50


def test_runs_that_do_not_exist_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (("ls",), ("ls", "--json"), ("show",), ("compare",)):
        done = fedflow(capsys, *command, "skewed/nothing")
        assert done.code == 2 and done.err.count("\n") == 1
        assert "no finished run matches skewed/nothing" in done.err
    done = fedflow(capsys, "compare", "skewed/fedavg/*", "skewed/local/*")
    assert (
        done.code == 2 and "no finished run matches skewed/local/*" in done.err
    )  # although others have results
    done = fedflow(capsys, "show", "skewed/fedavgg/1")
    assert "(did you mean 'skewed/fedavg/1' or " in done.err
    done = fedflow(capsys, "show", "skewed/fedavg")
    assert "one run, not 2: skewed/fedavg/0, skewed/fedavg/1" in done.err


@pytest.mark.full
def test_a_catalogue_is_computed_once_until_the_code_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDFLOW_CACHE", str(tmp_path))
    first = fedflow(capsys, "methods").out
    (file,) = tmp_path.glob("catalogue/*/methods.json")  # in a folder of this checkout
    kept = json.loads(file.read_text())
    assert "fedavg" in first and fedflow(capsys, "methods").out == first
    kept["value"][0][0] = "Changed"
    file.write_text(json.dumps(kept))
    assert "Changed: " in fedflow(capsys, "methods").out  # so it is read
    file.write_text(json.dumps(kept | {"of": "other code"}))
    assert fedflow(capsys, "methods").out == first
    file.write_text("{")
    assert fedflow(capsys, "methods").out == first
    for command in (
        ("methods", "ditto"),
        ("schemes", "iid"),
        ("models",),
        ("published",),
        ("published", "pfl"),
        ("cite", "ditto"),
        ("partitions",),
        ("settings",),
        ("settings", "run"),
        ("schema",),
    ):
        again = [fedflow(capsys, *command).out for _ in range(2)]
        assert again[0] == again[1] != ""


def test_partitions_are_read_again_once_params_yaml_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDFLOW_CACHE", str(tmp_path / "cache"))
    root = make_project(tmp_path / "project", PARAMS)

    def listed() -> list[tuple[str, float, bool]]:
        said = json.loads(fedflow(capsys, "partitions", "--json", "--root", root).out)
        return [(entry["name"], entry["parameters"]["alpha"], entry["made"]) for entry in said]

    assert listed() == listed() == [("skewed", 0.5, False)]
    make_project(root, PARAMS.replace("alpha: 0.5", "alpha: 0.7"))
    for stage in (("prepare", "digits"), ("partition", "skewed")):
        assert fedflow(capsys, *stage, "--root", root).code == 0
    assert listed() == [("skewed", 0.7, True)]


def test_a_run_outside_of_the_grid_keeps_its_name(project: Path, tmp_path: Path, capsys) -> None:
    root = Path(shutil.copytree(project, tmp_path / "copy", ignore=shutil.ignore_patterns("mlruns")))
    twin = root / "runs/skewed/fedavg/0"
    shutil.copytree(root / "results/skewed/fedavg/0", twin)
    listed = [row["run"] for row in json.loads(fedflow(capsys, "ls", "--json", "--root", root).out)]
    assert {"skewed/fedavg/0", "runs/skewed/fedavg/0"} <= {*listed}
    rows = json.loads(fedflow(capsys, "ls", "runs", "--json", "--root", root).out)
    in_runs = {row["run"] for row in rows}
    assert "runs/skewed/fedavg/0" in in_runs and "skewed/fedavg/0" not in in_runs
    for name, folder in (
        ("skewed/fedavg/0", root / "results/skewed/fedavg/0"),
        ("runs/skewed/fedavg/0", twin),
        ("results/skewed/fedavg/0", root / "results/skewed/fedavg/0"),
    ):
        assert f"files in {folder}\n" in fedflow(capsys, "show", name, "--root", root).out


def test_numbers_of_a_narrow_table_are_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    file = StringIO()
    monkeypatch.setattr(printing, "console", Console(file=file, width=30, markup=False))
    numbers = ("0.000256", "10,450.1", "2.1e-05", "12345678")
    printing.print_table("", ("method", *"abcd"), [("frank_wolfe", *numbers)])
    assert all(number in file.getvalue() for number in numbers)


@pytest.mark.parametrize("text", ["[]", "{}", "{"])
def test_a_damaged_file_is_one_line(text: str, project: Path, tmp_path: Path, capsys) -> None:
    root = Path(shutil.copytree(project, tmp_path / "copy", ignore=shutil.ignore_patterns("mlruns")))
    (root / "results/skewed/ditto/0/metrics.json").write_text(text)
    for command in ("ls", "compare skewed", "show skewed/ditto/0"):
        done = fedflow(capsys, *command.split(), "--root", root)
        assert done.code == 2 and re.search(
            r"ditto/0: damaged \(.*\); run this experiment again, with --again\n$", done.err
        )


def test_the_code_of_a_network_at_an_import_path_is_not_remembered(
    tmp_path: Path, preloaded: Path, monkeypatch
) -> None:
    text = PARAMS.replace("{name: mlp, options: {hidden: [8]}}", "ownnet:Net").replace("[0, 1]", "[0]")
    root = make_project(tmp_path / "own", text.replace("[fedavg, ditto]", "[fedavg]"))
    net = """
    from torch import nn
    class Net(nn.Module):
        def __init__(self, input_shape, num_classes):
            super().__init__()
            self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
        def forward(self, x):
            return self.layers(x)
    """
    file = root / "ownnet.py"
    file.write_text(dedent(net))
    monkeypatch.chdir(root)
    run = [preloaded / "fedflow"]
    for edit, said in ((net, False), (net.replace("self.layers(x)", "self.layers(x) * 2"), True)):
        file.write_text(dedent(edit))
        if not said:
            subprocess.run([*run, "sweep", "-j", "1"], check=True, capture_output=True)
        done = subprocess.run([*run, "ls"], capture_output=True, text=True, check=True)
        assert ("outdated: 1 run, whose code changed" in done.stdout) == said


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert re.fullmatch(r"fedflow \d+\.\d+\.\d+\n", fedflow(capsys, "--version").out)
    assert fedflow(capsys, "-h").out == fedflow(capsys, "--help").out


@pytest.mark.parametrize("since", [5, -3600])  # the clock of the machine may be set meanwhile
def test_a_run_is_running_while_its_process_holds_its_lock(tmp_path: Path, since: float) -> None:
    note, born = tmp_path / ".fedflow" / "locks" / "run.json", psutil.Process().create_time()
    note.parent.mkdir(parents=True)
    note.write_text(json.dumps({"name": "walk/0", "pid": os.getpid(), "since": born + since}))
    with (note.parent / "run").open("w"):
        assert [one.name for one in running(tmp_path)] == ["walk/0"]
    assert not running(tmp_path)  # a later process with its number


def test_a_running_run_is_listed_and_stopped_and_resumes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedflow.cli.finished.PATIENCE", 90)  # a busy machine is no fault
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process passes on that it ignores
    command = ("--partition", "skewed", "--method", "fedavg", "--seed", "7", "--set", "run.rounds=20000")
    with Path("log.txt").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "fedflow.cli", "run", *command], stdout=log, stderr=subprocess.STDOUT
        )
    try:
        for _ in range(1800):
            if running(Path()) and "round 5/" in Path("log.txt").read_text():
                break
            time.sleep(0.1)
        (one,) = running(Path())
        name = one.name
        assert re.fullmatch("skewed/fedavg/7-[0-9a-f]{8}", name) and one.pid == process.pid
        assert f"running: {name}, process {process.pid}" in fedflow(capsys, "ls").out
        one_run = fedflow(capsys, "ls", name)  # only the running one has this name
        assert one_run.code == 0 and one_run.out.startswith(f"running: {name}")
        assert f"running: {name}" in fedflow(capsys, "stop").out and process.poll() is None
        assert f"did you mean '{name}'" in fedflow(capsys, "stop", "skewed/fedavg/7").err
        for words in ([name, "skewed/fedavg/8"], ["--all", name]):
            assert fedflow(capsys, "stop", *words).code == 2 and process.poll() is None
        assert f"stopped: {name}" in fedflow(capsys, "stop", "skewed/*").out
        assert process.wait(90) == 130
    finally:
        process.kill()
    assert "rerun the command to resume from the last checkpoint" in Path("log.txt").read_text()
    assert not running(Path())
    assert "no run of this project is running" in fedflow(capsys, "stop").err


def test_a_termination_is_like_an_interrupt(capsys, monkeypatch) -> None:
    monkeypatch.setattr("fedflow.cli.finished.running", lambda root: signal.raise_signal(signal.SIGTERM))
    done = fedflow(capsys, "ls")
    assert done.code == 130 and "stopped; rerun the command to resume" in done.err


def test_a_process_that_ignores_signals_is_not_called_stopped(capsys, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("fedflow.cli.finished.PATIENCE", 0.5)
    ignores = (
        "import signal, time\nfor s in (signal.SIGINT, signal.SIGTERM): signal.signal(s, signal.SIG_IGN)\n"
    )
    note = tmp_path / ".fedflow" / "locks" / "run.json"
    note.parent.mkdir(parents=True)
    waits = f"lock = open({str(note.parent / 'run')!r}, 'w')\nprint(flush=True)\ntime.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", f"{ignores}{waits}"], stdout=subprocess.PIPE)
    try:
        assert process.stdout and process.stdout.readline()
        note.write_text(json.dumps({"name": "walk/0", "pid": process.pid, "since": time.time()}))
        done = fedflow(capsys, "stop", "walk/0", "--root", tmp_path)
        assert done.code == 2 and "stopped" not in done.out
        assert f"cannot stop walk/0: process {process.pid} is still running" in done.err
    finally:
        process.kill()
        process.wait()


def test_runs_of_other_users_are_not_called_stopped(capsys, tmp_path: Path, monkeypatch) -> None:
    def refuse(process: psutil.Process, number: int) -> None:
        raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(psutil.Process, "send_signal", refuse)
    with locked(tmp_path / ".fedflow" / "locks" / "run", lambda: None, "walk/0"):
        done = fedflow(capsys, "stop", "--all", "--root", tmp_path)
    assert (done.code, done.out) == (2, "")
    assert "not stopped, as they belong to other users: walk/0" in done.err


def test_a_zombie_is_not_running(tmp_path: Path) -> None:
    note = tmp_path / ".fedflow" / "locks" / "key.json"
    note.parent.mkdir(parents=True)
    with (note.parent / "key").open("w") as lock:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], stdin=lock)
    note.write_text(json.dumps({"name": "p/m/0", "pid": child.pid, "since": time.time() + 1}))
    assert [run.pid for run in running(tmp_path)] == [child.pid]
    child.kill()
    while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert not running(tmp_path)
    child.wait()


def test_notes_of_killed_processes_are_not_running(tmp_path: Path, capsys) -> None:
    """A process with a number that is used again does not hold the lock; numbers are of one machine."""
    locks = tmp_path / ".fedflow" / "locks"
    locks.mkdir(parents=True)
    now = time.time()
    notes = {
        "gone": {"name": "gone", "pid": 2**22 + 1, "since": now},
        "reused": {"name": "reused", "pid": os.getpid(), "since": now},
        "mine": {"name": "mine", "pid": os.getpid(), "since": now},
        "elsewhere": {"name": "elsewhere", "pid": os.getpid(), "since": now, "host": "another machine"},
        "damaged": {"pid": "x"},
    }
    for name, note in notes.items():
        (locks / f"{name}.json").write_text(json.dumps(note))
    with ExitStack() as files:
        for name in notes.keys() - {"reused"}:
            files.enter_context((locks / name).open("w"))
        assert [one.name for one in running(tmp_path)] == ["mine"]
        assert [one.name for one in killed(tmp_path)] == ["gone", "reused"]
    said = fedflow(capsys, "ls", "g*", "--root", tmp_path)
    assert said.out.startswith("killed: gone, started ") and said.code == 0
    said = fedflow(capsys, "ls", "--json", "--root", tmp_path)
    assert {e["run"]: e["state"] for e in json.loads(said.out)} == dict.fromkeys(
        ("gone", "mine", "reused"), "killed"
    )
    finished_since = tmp_path / "outcomes" / "gone" / "metrics.json"
    finished_since.parent.mkdir(parents=True)
    finished_since.touch()
    assert [one.name for one in killed(tmp_path)] == ["mine", "reused"]
    assert not running(tmp_path)  # a copy of the project has the notes, but not the locks
    with locked(locks / "held", lambda: None, "held"):
        assert json.loads((locks / "held.json").read_text())["host"] == socket.gethostname()
        assert [one.name for one in running(tmp_path)] == ["held"]


def test_verdicts_are_on_all_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    said = fedflow(capsys, "report", "--grid", "--verdicts", "--root", tmp_path)
    assert said.code == 2 and "--grid: 'with --verdicts' is not accepted; expected one of them" in said.err


def test_a_model_is_exported_for_a_client(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "client.safetensors"
    said = fedflow(capsys, "export", "skewed/ditto/0", str(file), "--client", "3")
    assert said.code == 0 and "personal model, 610 parameters" in said.out, said.err
    own = load_model(newest(), "personal", client=3)
    for one, other in zip(import_model(file).parameters(), own.parameters(), strict=True):
        assert torch.equal(one, other)
    said = fedflow(capsys, "export", "skewed/ditto/0", str(file))
    assert said.code == 2 and "--client: missing; expected a client with a recorded model" in said.err
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    said = fedflow(capsys, "export", "skewed/ditto/0", str(notes), "--client", "3")
    assert "a new file, or one that ends in .safetensors" in said.err and notes.read_text() == "mine"
    said = fedflow(capsys, "export", "skewed/ditto/0", str(file), "--client", "4")
    assert "--client: 4 is not accepted; expected a client of skewed/ditto/0: 0 to 3" in said.err
    said = fedflow(capsys, "export", "skewed/ditto/0", str(tmp_path / "none" / "x"))
    assert "file: " in said.err and "is not one" in said.err
    said = fedflow(capsys, "export", "skewed/ditto/0", str(tmp_path), "--client", "3")
    assert said.code == 2 and "file: " in said.err and "this is a folder" in said.err
    assert "one run, not 2" in fedflow(capsys, "export", "skewed/fedavg", str(file)).err


def newest() -> str:
    settings = json.loads(Path("results/skewed/ditto/0/metrics.json").read_text())["settings"]
    return recorded_runs()["skewed", "ditto", "0", settings]["run_id"]
