"""Every command of ``fedflow``: it runs, and what it prints can be read and acted upon."""

import errno
import gc
import io
import json
import re
import shutil
import socket
import subprocess
import sys
import warnings

import pandas as pd
import pytest
from command import fedflow, make_project, recorded

from fedflow.cli.startup import importing
from fedflow.cli.sweep import _headline
from fedflow.data import SOURCES
from fedflow.errors import FedflowError, Unanswered
from fedflow.methods import METHODS
from fedflow.models import ARCHITECTURES
from fedflow.partition import SCHEMES
from fedflow.project.terminal import RoundBar

COMMANDS = (
    "run sweep tune prepare partition partitions methods schemes datasets models report targets landscape ui "
    "store doctor fingerprint schema published"
).split()


@pytest.fixture(scope="module", autouse=True)
def own_store():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.delenv("PREFECT_API_URL", raising=False)  # a server of other tests, which ends when idle
        yield


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return make_project(tmp_path_factory.mktemp("project"))


def test_the_line_of_a_finished_run_has_the_first_number_that_there_is():
    """A run on real targets has no accuracy."""
    assert _headline({"local_accuracy": None, "loss": 0.52, "local_std": 0.1}) == "loss 0.52"
    assert _headline({"local_accuracy": None}) == "done"


@pytest.fixture
def call(capsys, project):
    """Runs a command, in the project where it takes one; it must succeed."""

    def run(*arguments, rooted=True):
        done = fedflow(capsys, *arguments, *(["--root", project] if rooted else []))
        assert (done.code, done.err) == (0, "")
        return done.out

    return run


def test_a_warning_is_one_line_without_code(call):
    call("methods", rooted=False)
    line = warnings.formatwarning(UserWarning("few\nsteps"), UserWarning, "run.py", 3, "warn(text)")
    assert line == "fedflow: warning: few steps\n"


ERRORS = {
    "of two lines": (FedflowError("first\n  second"), "first second"),
    "of the system": (OSError(errno.ENOSPC, "No space left", "a.csv"), "a.csv: No space left"),
}


@pytest.mark.parametrize(("error", "said"), ERRORS.values(), ids=ERRORS)
def test_an_error_of_any_command_is_one_line_and_code_2(error, said, capsys, monkeypatch):
    def command(*_, **__):
        raise error

    monkeypatch.setattr("fedflow.cli.app", command)
    done = fedflow(capsys, "methods")
    assert (done.code, done.err) == (2, f"fedflow: {said}\n")


def test_experiments_run_and_are_reported(call, project):
    out = call("run", "--partition", "grouped", "--method", "ifca", "--executor", "inline")
    assert re.search(r"grouped · ifca · seed 0: round 2/2, local accuracy 0\.\d+", out)
    assert "grouped · ifca · seed 0: 2 rounds, this process, cpu; Ctrl-C stops" in out
    assert re.search(r"seed 0: 3 of 6 clients per round, chance accuracy 0.100, run [0-9a-f]{32}", out)
    assert re.search(r"local_accuracy 0\.\d+, global_accuracy 0\.\d+, .*ari ", out)
    folder = project / "runs" / "grouped" / "ifca" / "0"
    assert json.loads((folder / "metrics.json").read_text())["rounds"] == 2
    assert (project / "data" / "partitions" / "grouped" / "labels.png").exists()
    call("run", "--partition", "grouped", "--method", "fedavg", "--set", "run.rounds=1", "--seed", 3)
    runs = recorded(project / "mlruns" / "mlflow.db")["runs"]
    assert [run[1:] for run in runs] == [("ifca seed 0", "FINISHED"), ("fedavg seed 3", "FINISHED")]
    assert not list((project / ".fedflow" / "checkpoints").iterdir())
    assert call("report").strip().endswith("index.html")
    assert "IFCA" in (project / "report" / "index.html").read_text()


def test_a_finished_run_is_repeated_on_request_only(capsys, tmp_path):
    """And if its results are incomplete. Its data are made again if they are missing, as in a clone."""
    project = make_project(tmp_path)
    options = ("--partition", "skewed", "--method", "fedavg", "--executor", "inline", "--root", project)
    store, title = project / "mlruns" / "mlflow.db", "skewed · fedavg · seed 0: "

    def call(*more: object) -> tuple[str, list[str]]:
        done = fedflow(capsys, "run", *options, *more)
        assert (done.code, done.err) == (0, "")
        first, *rest = done.out.splitlines()
        return first.removeprefix(title), rest[-3:]

    begun, numbers = call()
    assert begun == "2 rounds, this process, cpu; Ctrl-C stops it; rerun to resume"
    for more in ((), ("--set", "engine.workers=2"), ("--sweep", "s")):
        first, again = call(*more)
        assert re.fullmatch(r"already finished \(20..-..-.. ..:..\); --again repeats it", first)
        assert again == numbers
    assert len(recorded(store)["runs"]) == 1
    assert call("--again") == (begun, numbers)
    assert len(recorded(store)["runs"]) == 2
    next(project.glob("r*/skewed/fedavg/0/clients.parquet")).unlink()
    assert call() == (begun, numbers)
    shutil.rmtree(project / ".fedflow" / "partitions")
    (project / "data" / "prepared" / "digits" / "meta.json").unlink()
    others = ["methods.ditto.lam=5", "tuning.rounds=1", "models.other=mlp", "tuned.skewed.ifca.clusters=3"]
    unused = [word for change in others for word in ("--set", change)]
    names = ", ".join(change.partition("=")[0] for change in others)
    with pytest.warns(UserWarning, match=f"^--set {names}: not used by skewed · fedavg"):
        done = fedflow(capsys, "run", *options, *unused)
    assert "already finished" in done.out and len(recorded(store)["runs"]) == 3


def test_garbage_is_collected_during_the_rounds(capsys, tmp_path, monkeypatch):
    """Training makes tensors in cycles; imports do not."""
    collecting = []
    monkeypatch.setattr(RoundBar, "round", lambda *_: collecting.append(gc.isenabled()))
    with pytest.raises(ImportError), importing():
        assert not gc.isenabled()
        raise ImportError
    options = ("--partition", "grouped", "--method", "fedavg", "--executor", "inline")
    assert fedflow(capsys, "run", *options, "--root", make_project(tmp_path)).code == 0
    assert collecting == [True, True]


def test_a_process_with_triton_ends_in_silence():
    """Triton reports at exit what the garbage collector has left."""
    pytest.importorskip("triton")
    code = "import triton\nfrom fedflow.cli.startup import importing\nwith importing(): pass"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_targets_are_read_from_finished_runs(call, capsys, project):
    """In the project whose runs the test before made."""
    target = ("targets", "--column", "local_accuracy", "--target")
    table = pd.read_csv(io.StringIO(call(*target, 0.01, "--csv", "--partition", "grouped")))
    table = table.set_index("method")
    assert list(table["reached"]) == [1, 1]
    assert table.loc["ifca", "transmissions"] == pytest.approx(1.5, abs=0.01)
    assert (table.loc["fedavg", "transmissions"], table.loc["fedavg", "gain"]) == (1, 1.0)
    assert re.search(r"FedAvg .* 0 of 1 +1\+ ", call(*target, 1))
    assert [row["method"] for row in json.loads(call(*target, 1, "--json"))] == list(table.index)
    for column, says in (("all_accuracy", "set run.reports: [all]"), ("accuracy", "expected one of")):
        done = fedflow(capsys, "targets", "--column", column, "--target", "0.5", "--root", project)
        assert done.code == 2 and says in done.err and done.err.count("\n") == 1


def test_a_changed_run_leaves_the_grid_alone_and_is_a_row_of_its_own(capsys, tmp_path):
    """What the README shows: `fedflow run ... --set method.clusters=4`, then `fedflow report`."""
    root = make_project(tmp_path)
    arguments = ("run", "--root", root, "--partition", "grouped", "--method", "ifca")
    assert fedflow(capsys, *arguments).code == 0
    plain = root / "runs" / "grouped" / "ifca" / "0"

    def contents() -> dict:
        return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in plain.iterdir()}

    kept = contents()
    done = fedflow(capsys, *arguments, "--set", "method.clusters=4", "--set", "training.lr=0.01")
    (changed,) = set(plain.parent.iterdir()) - {plain}
    assert (done.code, done.err) == (0, "") and str(changed) in done.out
    assert contents() == kept
    assert fedflow(capsys, "report", "--root", root).code == 0
    table = pd.read_csv(root / "report" / "accuracy.csv").query("metric == 'local_accuracy'")
    numbers = [json.loads((f / "metrics.json").read_text())["local_accuracy"] for f in (plain, changed)]
    assert numbers[0] != numbers[1]
    rows = dict(zip(("IFCA", "IFCA · clusters 4, lr 0.01"), numbers))
    assert table.set_index("label")["mean"].to_dict() == pytest.approx(rows)
    page = (root / "report" / "index.html").read_text()
    for number in numbers:
        assert f">{100 * number:.1f}" in page
    assert "no results found" in fedflow(capsys, "report", "--grid", "--root", root).err
    (root / "results" / "grouped" / "ifca").mkdir(parents=True)
    plain.rename(root / "results" / "grouped" / "ifca" / "0")
    assert fedflow(capsys, "report", "--grid", "--latex", "--root", root).code == 0
    assert pd.read_csv(root / "report" / "runs.csv")["method"].tolist() == ["ifca"]
    assert "clusters 4" not in (root / "paper" / "grouped-accuracy.tex").read_text()


def test_tuning_prints_every_candidate_with_its_spread_and_which_is_chosen(capsys, tmp_path):
    root = make_project(tmp_path)
    grid = "tuning={grid: {training.lr: [1.0e-6, 0.1]}, rounds: 1, widen: 0}"
    names = ("--partition", "skewed", "--method", "fedavg", "--no-write", "--set", grid)
    done = fedflow(capsys, "tune", "--root", root, *names)
    assert (done.code, done.err) == (0, "")
    assert re.search(r"^fedavg +training.lr 1e-06 +\d+\.\d\d +\d+\.\d\d *$", done.out, re.M)
    assert re.search(r"^fedavg +training.lr 0.1 +\d+\.\d\d +\d+\.\d\d +\* *$", done.out, re.M)
    assert "is at the edge of the values tried: 1e-06, 0.1" in " ".join(done.out.split())


def test_set_method_changes_this_run_whose_results_go_where_out_says(call, project, tmp_path):
    changes = ("--set", "method.clusters=3", "--set", "run.rounds=1")
    call("run", "--partition", "skewed", "--method", "ifca", *changes, "--out", tmp_path / "o")
    assert not list(project.glob("r*/skewed"))
    assert f"files in {tmp_path / 'o'}\n" in call("show", tmp_path / "o")
    metrics = json.loads((tmp_path / "o" / "metrics.json").read_text())
    assert metrics["bytes_down"] == 3 * 3 * (64 * 8 + 8 + 8 * 10 + 10) * 4  # participants, models, bytes


def test_prepare_and_partition_print_the_folder_and_mend_what_is_damaged(call, project):
    def lines() -> tuple[str, str]:
        folder, counts = call("prepare", "digits").splitlines()
        assert counts == "1,438 training samples, 359 test samples"
        return folder, call("partition", "mixed").strip()

    folders = (project / "data" / "prepared" / "digits", project / "data" / "partitions" / "mixed")
    assert tuple(map(str.split, lines())) == tuple([str(f)] for f in folders)
    files = (folders[0] / "train.safetensors", folders[1] / "partition.safetensors")
    whole = [file.read_bytes() for file in files]
    for file, content in zip(files, whole):
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]) if file == files[0] else content[:-9])
    lines()
    assert [file.read_bytes() for file in files] == whole


def test_every_method_is_listed_and_explained(call):
    out = call("methods", rooted=False)
    assert all(
        re.search(rf"^{name} +\S.* (global|cluster|level|personal) +\w", out, re.M) for name in METHODS
    )
    out = call("methods", "ifca", rooted=False)
    assert out.startswith("IFCA") and "arXiv 2006.04088" in out
    assert re.search(r"^clusters +k +2 +a whole number >= 1 +number of models", out, re.M)
    assert "496,048 bytes down" in out and "option II" in out
    assert "248,024 bytes down, 248,024 bytes up" in " ".join(call("methods", "fedavg", rooted=False).split())


def test_every_scheme_is_listed_in_one_sentence_and_explained(call):
    out = " ".join(call("schemes", rooted=False).split())
    assert all(re.search(rf"\b{name} [^.]+(\.|\(alpha\)\.)", out) for name in SCHEMES)
    out = call("schemes", "dirichlet", rooted=False)
    assert "Order of sampling:" in out and "ICML 2019" in out and ">>> portions(" in out
    assert re.search(r"^alpha +alpha +0.1 +a number > 0 ", out, re.M)


def test_every_source_is_listed_with_where_its_images_come_from(call, tmp_path, monkeypatch):
    (tmp_path / "usps.npz").touch()
    monkeypatch.setenv("FEDFLOW_DATA", str(tmp_path))
    out = call("datasets", rooted=False)
    assert all(re.search(rf"^{name} ", out, re.M) for name in SOURCES)
    images = {"digits": "in a package", "usps": "usps.npz", "mnist": "download", "cifar100_mini": "missing"}
    assert all(re.search(rf"^{name} .* {where} ", out, re.M) for name, where in images.items())


def test_a_source_is_explained(call, capsys):
    assert re.search(r"^test_share +0.2 +a number", call("datasets", "table", rooted=False), re.M)
    mnist = call("datasets", "MNIST", rooted=False)
    assert mnist.startswith("mnist: handwritten digits") and re.search(r"^source +required", mnist, re.M)
    fields = json.loads(call("datasets", "folder", "--json", rooted=False))
    assert "test_share" in {field["field"] for field in fields}
    assert "`fedflow settings data.table` explains" in call("settings", "table", rooted=False)
    done = fedflow(capsys, "datasets", "csv")
    assert done.code == 2 and "(did you mean 'table'?)" in done.err


def test_every_network_is_listed_with_its_size(call):
    out = call("models", rooted=False)
    assert all(re.search(rf"^{name} ", out, re.M) for name in ARCHITECTURES)
    assert re.search(r"^resnet9 .* 3x32x32 +100 +6,621,540", out, re.M)


def test_published_tables_are_listed_and_printed(call, capsys):
    listed = " ".join(call("published", rooted=False).split())
    assert "pacfl-flis: M. Morafah" in listed and "Table A.4: synthetic convex problem" in listed
    out = call("published", "feddyn", rooted=False)
    assert "| Dir .3, MNIST, 98.2 % | 90 | 208 | 428 | 858 |" in out
    done = fedflow(capsys, "published", "feddin")
    assert done.code == 2 and "(did you mean 'feddyn'?)" in done.err and len(done.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("command", "names"),
    [("methods", METHODS), ("schemes", SCHEMES), ("datasets", SOURCES), ("models", ARCHITECTURES)],
)
def test_lists_are_printed_as_json(call, command, names):
    found = json.loads(call(command, "--json", rooted=False))
    assert {entry.get("name") or entry.get("architecture") for entry in found} == set(names)


def test_pages_and_checks_are_printed_as_json(call):
    page = json.loads(call("methods", "ifca", "--json", rooted=False))
    assert {option["name"]: option["symbol"] for option in page["options"]}["clusters"] == "k"
    assert json.loads(call("published", "feddyn", "--json", rooted=False))[0]["tables"]
    assert {finding["what"]: finding["status"] for finding in json.loads(call("doctor", "--json"))}[
        "torch"
    ] == "ok"


@pytest.mark.parametrize("command", ["methods", "schemes", "datasets", "models", "published"])
def test_lists_fit_a_hundred_columns(call, command):
    assert all(len(line.rstrip()) <= 100 for line in call(command, rooted=False).splitlines())


def test_the_doctor_is_content_with_the_project(call):
    assert re.search(r"^ok +params.yaml +1 partition x 1 method x 1 seed", call("doctor"), re.M)


def test_the_doctor_says_what_is_bad_and_ends_with_2(capsys, tmp_path):
    done = fedflow(capsys, "doctor", "--root", tmp_path)
    assert done.code == 2 and re.search(r"^bad +params.yaml +cannot read", done.out, re.M)


def test_help_lists_every_command(capsys):
    for arguments in ((), ("--help",)):
        done = fedflow(capsys, *arguments)
        assert done.code == 0
        assert all(re.search(rf"\b{command} +[A-Z]", done.out) for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_gives_an_example(capsys, command):
    done = fedflow(capsys, command, "--help")
    assert done.code == 0 and done.out.count(f"fedflow {command}") >= 2  # the usage line, and an example


def test_ctrl_c_says_how_to_resume(capsys, project, monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedflow.project.terminal.RoundBar.round", interrupted)
    done = fedflow(capsys, "run", "--partition", "skewed", "--method", "fedavg", "--root", project)
    assert done.code == 130
    assert done.err == "fedflow: stopped; rerun the command to resume from the last checkpoint\n"


def test_an_outage_that_an_earlier_command_met_does_not_end_the_process(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(Unanswered, "seen", True)
    assert fedflow(capsys, "ls", "--root", tmp_path / "none").code == 2


def test_the_installed_command_is_this_one(project):
    command = [sys.executable, "-m", "fedflow.cli", "methods"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "") and "fedavg" in done.stdout


@pytest.mark.parametrize("port", ["0", "-1", "99999", "5000.5", "taken"])
def test_a_port_that_cannot_be_used_is_one_line(capsys, tmp_path, port):
    (tmp_path / "params.yaml").touch()
    with socket.create_server(("127.0.0.1", 0)) as other:
        given = other.getsockname()[1] if port == "taken" else port
        done = fedflow(capsys, "ui", "--port", given, "--root", tmp_path)
    (line,) = done.err.splitlines()
    assert done.code == 2 and "--port" in line
    assert ("a free port" if port == "taken" else "Invalid value") in line
