"""Whatever a user can get wrong ends in one line on stderr and exit code 2, before anything is recorded."""

import errno
import io
import json
import os
import pickle
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from command import PARAMS, Done, disk_of, fedflow, make_project, one_line_error, recorded

from fedflow.config import load_params
from fedflow.data import load_prepared
from fedflow.errors import FedflowError
from fedflow.files import replace_files, write_json
from fedflow.simulation.executors import Inline
from fedflow.stages.driver import outdated
from fedflow.stages.experiment import Experiment
from fedflow.stages.federate import perform
from fedflow.tracking.models import load_model

RUN = ("run", "--partition", "skewed", "--method", "fedavg", "--executor", "inline")


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Iterator[Path]:
    """A project in which one run is recorded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        root = make_project(tmp_path_factory.mktemp("shared"))
        patch.setattr(sys, "argv", ["fedflow", *RUN, "--root", str(root)])
        from fedflow import cli

        cli.main()
        yield root


@pytest.fixture
def root(shared, tmp_path, monkeypatch) -> Path:
    """A fresh project in the current folder, whose record is the shared store."""
    monkeypatch.chdir(make_project(tmp_path / "project"))
    monkeypatch.setenv("FEDFLOW_DATA", str(tmp_path / "data-root"))
    Path("mlruns").symlink_to(shared / "mlruns")
    return Path()


@pytest.fixture
def refused(capsys, root, shared):
    """Runs a command that must be refused and leave the record as it was; returns its line."""

    def run(*arguments: object) -> str:
        before = recorded(shared / "mlruns" / "mlflow.db")
        line = one_line(fedflow(capsys, *arguments))
        assert recorded(shared / "mlruns" / "mlflow.db") == before
        return line

    return run


def one_line(done: Done) -> str:
    assert done.code == 2, done
    assert re.fullmatch(r"fedflow: .*\n", done.err), done.err
    assert "Traceback" not in done.out
    return done.err


# Names, types and bounds: known from the command line and params.yaml alone


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("prepare", "digit"), "data: 'digit' is not accepted .did you mean 'digits'.*; expected one of "),
        (("partition", "skew"), "partitions: 'skew' .*did you mean 'skewed'"),
        ((*RUN, "--partition", "nope"), "partitions: 'nope' .*one of grouped, mixed, skewed"),
        ((*RUN, "--sweep", 'it\'s "one"'), "sweep: .* is not accepted; expected a name of letters, digits"),
        (("sweep", "--name", ""), "name: '' .*not empty"),
        ((*RUN, "--method", "fedavgg"), "method.name: 'fedavgg' .*did you mean 'fedavg'"),
        ((*RUN, "--executor", "slurm"), "engine.executor: 'slurm' .*one of .*inline"),
        ((*RUN, "--workers", "0"), "engine.workers: 0 .* >= 1"),
        ((*RUN, "--seed", "x"), "--seed"),
        ((*RUN, "--seed", "-1"), "'--seed'"),
        ((*RUN, "--set", "run.rounds=many"), "run.rounds: 'many' .*a whole number >= 1"),
        ((*RUN, "--set", "run.min_cohort=4"), "run.min_cohort: 4 .*at most 3"),
        ((*RUN, "--set", "method.mu=1"), "methods.fedavg.mu: "),
        ((*RUN, "--set", "run.rounds"), "--set: 'run.rounds' .*run.rounds=5"),
        ((*RUN, "--out", ""), "out: '' .*not empty"),
        ((*RUN, "--out", "params.yaml"), "cannot write to params.yaml: File exists"),
        ((*RUN, "--root", "elsewhere"), "cannot read elsewhere/params.yaml: No such file"),
        ((*RUN, "--method", "mine:Own"), "method.name: 'mine:Own' .*`fedflow new method NAME` makes"),
        (("run",), "Missing option '--partition'; see `fedflow run --help`"),
        (("run", "--speed", "3"), "No such option: --speed"),
        (("run", "--rounds", "3"), "No such option: --rounds; use --set run.rounds=...; see `fedflow run"),
        (("ls", "--rounds", "3"), "No such option: --rounds; see `fedflow ls"),
        (("runn",), "No such command 'runn'.*see `fedflow --help`"),
        (("methods", "ifac"), "method.name: 'ifac' .*did you mean 'ifca'"),
        (("partitions", "compare", "nowhere"), "partitions: 'nowhere' .*one of"),
        (("partitions", "compare", "skewed", "skewed"), "names: 'skewed' "),
        (("schemes", "dir"), "partition.scheme: 'dir' .*one of"),
        (("report",), "no results found in results"),
        (("report", "--figures", "xyz"), "'--figures': .*'xyz' is not one of 'pdf', 'svg'"),
    ],
    ids=lambda value: " ".join(value[-2:]) if isinstance(value, tuple) else "",
)
def test_wrong_words_are_named_with_what_is_accepted(refused, command, says):
    # A later option of the same name wins.
    assert_matches(refused(*command), says)


@pytest.mark.parametrize("command", ["ls", "compare x", "cite", "ui"])
def test_a_folder_that_is_no_project_is_refused(capsys, tmp_path, monkeypatch, command):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    line = one_line(fedflow(capsys, *command.split(), "--root", tmp_path))
    assert "/params.yaml: No such file" in line and "`fedflow init`" in line and not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("out", "says"),
    [
        ("x.xyz", "--out: 'x.xyz' .*ends in .png or .svg or .pdf"),
        ("x", "--out: 'x' .*ends in .png or .svg or .pdf"),
        ("taken.png", "--out: 'taken.png' .*this is a folder"),
        ("params.yaml/x.png", "cannot write the picture to params.yaml/x.png: "),
    ],
)
def test_a_picture_that_cannot_be_written_is_refused_before_the_work(refused, out, says):
    Path("taken.png").mkdir()
    assert_matches(refused("partitions", "compare", "skewed", "--out", out), says)
    assert not Path("data").exists()


@pytest.mark.parametrize("out", ["new/x.svg", "x.PDF"])
def test_a_picture_has_the_format_of_its_ending(capsys, root, out):
    done = fedflow(capsys, "partitions", "compare", "skewed", "--out", out)
    assert done.code == 0 and Path(out).read_bytes()[:5] in (b"<?xml", b"%PDF-"), done.err


@pytest.mark.parametrize("command", [(*RUN, "--method"), ("tune", "--partition", "skewed", "--method")])
@pytest.mark.parametrize(
    ("method", "says"),
    [
        ("fedhen", "model.name: mlp .* a network with the option exits, which fedhen changes"),
        ("superfed", "partition.selection: 0 .* superfed needs held-out samples"),
        ("flt", "partition.public: 0 .* flt needs data of the server; or set method.public to a dataset"),
        ("heterofl", "model.name: mlp .* the option width and the option exits"),
    ],
)
def test_a_method_that_does_not_fit_is_refused_before_data_are_prepared(refused, root, command, method, says):
    executor = () if command[0] == "run" else ("--executor", "threads")
    assert_matches(refused(*command, method, *executor), says)
    assert not (root / "data/prepared").exists() and not (root / ".fedflow/prefect").exists()


def assert_matches(line: str, pattern: str) -> None:
    __tracebackhide__ = True
    assert re.search(pattern, line), line


@pytest.mark.parametrize("command", [RUN, ("sweep",)], ids=["run", "sweep"])
def test_a_gpu_that_is_not_there_is_refused(refused, monkeypatch, command):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    line = refused(*command, "--set", "engine.device=cuda")
    assert_matches(line, "engine.device: 'cuda' was requested, but torch sees no GPU here")


# Partitions and networks that do not fit the data


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("partitions.skewed.clients=5000", "partition.clients: 5000 .*at most 1438"),
        ("partitions.skewed={dataset: digits, scheme: dirichlet, clients: 6, min_size: 900}", "size: 900"),
        ("partitions.skewed={dataset: digits, scheme: label_groups, groups: 9, clients: 6}", "groups: 9"),
        ("partitions.skewed={dataset: digits, scheme: shards, clients: 800}", "shards_per_client: 2"),
        ("models.digits=lenet5", r"model.name: 'lenet5' .*fit images \(1, 8, 8\)"),
        ("models.digits.options.hidden=[wide]", r"digits.options.hidden: \[.wide.\] .*a list, each item"),
        ("models.digits.options.hidden=3", "models.digits.options.hidden: 3 .*a list, each item"),
    ],
)
def test_what_does_not_fit_the_data_is_refused_before_training(refused, change, says):
    assert_matches(refused(*RUN, "--set", change), says)


# Raw data


def npz(**changes: np.ndarray) -> bytes:
    x, y, buffer = np.zeros((6, 4, 4), np.uint8), np.array([0, 1, 2] * 2), io.BytesIO()
    np.savez(buffer, **{"x_train": x, "y_train": y, "x_test": x, "y_test": y} | changes)
    return buffer.getvalue()


class Payload:
    def __reduce__(self) -> tuple:
        return (Path.touch, (Path("unpickled"),))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "there is no file 'arrays.npz'"),
        (b"", "not an .npz file, or cut short"),
        (npz()[:-100], "not an .npz file, or cut short"),
        (npz(x_train=np.array([Payload()], dtype=object)), "arrays.npz: cannot be read: x_train is a pickle"),
        (pickle.dumps(Payload()), "not an .npz file"),
        (npz(y_train=np.array([0, 1, 5] * 2)), "y_train must hold the labels 0..2; it holds 0, 1, 5"),
        (npz(y_test=np.array([0, 1, 7] * 2)), "y_test holds labels that y_train does not: 7"),
        (npz(y_train=np.zeros(6)), "y_train is float64"),
        (npz(y_train=np.float32([0, 1, 2] * 2)), "arrays.npz: y_train is float32 and holds 0, 1, 2"),
        (npz(y_train=np.array([0, 1, 2])), "6 images in x_train, 3 labels"),
        (npz(x_train=np.zeros((6, 4, 4))), "x_train is float64 .*needs uint8"),
    ],
    ids=[
        "missing",
        "empty",
        "truncated",
        "pickled",
        "pickle",
        "gap",
        "stray",
        "floats",
        "labels as reals",
        "lengths",
        "pixels",
    ],
)
def test_bad_arrays(refused, root, content, says):
    if content is not None:
        (root / "arrays.npz").write_bytes(content)
    assert_matches(refused("prepare", "arrays"), says)
    assert not Path("unpickled").exists() and not Path("data/prepared/arrays/meta.json").exists()


def test_samples_of_one_class(refused, root):
    (root / "arrays.npz").write_bytes(npz(y_train=np.zeros(6, int), y_test=np.zeros(6, int)))
    for _ in range(2):
        assert_matches(
            refused("prepare", "arrays"), "data.arrays: arrays, .* all have the label '0', .* two classes"
        )


def test_files_that_never_end(refused, root):
    """A pipe without a writer would be waited for."""
    os.mkfifo(root / "arrays.npz")
    assert_matches(
        refused("prepare", "arrays"), "arrays.npz: not a file or folder, but a pipe, socket or device"
    )


def broken_tar(cut: int | None, name: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()[:cut]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"not a tar", "pictures.tar: cannot be read"),
        (broken_tar(700, "train/a/1.png", b"x" * 900), "pictures.tar"),
        (broken_tar(None, "train/a/1.png", b"no picture"), "train/a/1.png: cannot be read"),
        (broken_tar(None, "../outside.png", b"x"), "unsafe member '../outside.png'"),
    ],
    ids=["text", "truncated", "no picture", "climbs out"],
)
def test_bad_tars(refused, root, content, says):
    (root / "pictures.tar").write_bytes(content)
    assert_matches(refused("prepare", "pictures"), says)


def test_a_download_without_a_network_ends_soon(refused, monkeypatch):
    started = time.monotonic()
    line = refused("prepare", "cifar10")
    assert_matches(line, "neither cifar10.npz nor cifar10.tar is in the data root .* FEDFLOW_DATA .*download")
    assert time.monotonic() - started < 25


# Files of earlier stages


def shorten(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def test_prepared_images_that_are_damaged(capsys, root):
    assert fedflow(capsys, "prepare", "digits").code == 0
    shorten(root / "data/prepared/digits/train.safetensors")
    with one_line_error("train.safetensors: has .* bytes, not .*; `fedflow prepare digits` makes it again"):
        load_prepared(root / "data/prepared/digits", verify=True)
    assert fedflow(capsys, "partition", "skewed").code == 0
    load_prepared(root / "data/prepared/digits", verify=True)


def test_a_partition_prepares_its_data(capsys, root):
    assert fedflow(capsys, "partition", "skewed").code == 0
    assert (root / "data/prepared/digits/meta.json").is_file()


@pytest.mark.parametrize("name", ["partition.safetensors", "summary.json"])
def test_a_partition_that_is_damaged_is_not_trained_on(capsys, root, shared, name):
    assert fedflow(capsys, "prepare", "digits").code == fedflow(capsys, "partition", "skewed").code == 0
    shorten(root / "data/partitions/skewed" / name)
    before = recorded(shared / "mlruns" / "mlflow.db")
    experiment = Experiment(load_params(), "skewed", "fedavg", 0)
    with pytest.raises(FedflowError, match=r"is damaged .*run `fedflow partition` for it again"):
        perform(experiment, Inline())
    assert recorded(shared / "mlruns" / "mlflow.db") == before


def test_a_checkpoint_that_is_cut_short(refused, capsys, root, shared, monkeypatch):
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fedflow.project.terminal.RoundBar.round", killed)
        assert fedflow(capsys, *RUN, "--seed", "11").code == 130
    (checkpoint,) = root.glob(".fedflow/checkpoints/*/checkpoint.safetensors")
    whole = checkpoint.read_bytes()
    shorten(checkpoint)
    line = refused(*RUN, "--seed", "11")
    assert_matches(line, "checkpoint .* cannot be read .*delete its folder to start over")
    checkpoint.write_bytes(whole)
    assert fedflow(capsys, *RUN, "--seed", "11").code == 0
    runs = recorded(shared / "mlruns" / "mlflow.db")["runs"]
    assert [state for _, name, state in runs if name == "fedavg seed 11"] == ["FINISHED"]


def test_results_that_are_cut_short_are_not_reported(refused, root, shared):
    folder = root / "results/skewed/fedavg/0"
    folder.mkdir(parents=True)
    for file in (shared / "results/skewed/fedavg/0").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    shorten(folder / "metrics.json")
    assert_matches(refused("report"), "metrics.json: truncated or not JSON.*run this experiment again")
    cell = Experiment(load_params(root / "params.yaml"), "skewed", "fedavg", 0, root)
    assert outdated(folder, cell.identity) == ["metrics.json is damaged"]  # a sweep makes them again
    (folder / "metrics.json").write_text("[]")
    assert outdated(folder, cell.identity) == ["metrics.json is damaged"]
    (folder / "metrics.json").unlink()
    assert outdated(folder, cell.identity) == ["missing"]


def test_a_run_that_is_not_recorded_is_refused_with_those_that_are(shared):
    with pytest.raises(FedflowError, match=r"no run 'nonsense' in .*the newest are: .*fedavg seed 0"):
        load_model("nonsense", root=shared)


# Folders that cannot be written to, and full disks


@pytest.mark.parametrize("name", ["data", "results", ".fedflow"])
def test_a_file_where_a_folder_must_be(refused, root, name):
    (root / name).touch()
    assert_matches(refused(*RUN), rf"{name}.*(Not a directory|File exists)")


def test_a_file_where_the_store_must_be(capsys, root):
    (root / "mlruns").unlink()
    (root / "mlruns").touch()
    assert_matches(one_line(fedflow(capsys, *RUN)), r"MLflow store sqlite:.*(Not a directory|File exists)")


def test_a_full_disk_while_data_are_prepared(refused, root):
    with disk_of(20_000):
        assert_matches(refused("prepare", "digits"), "data/prepared/digits: cannot write the prepared data")
    assert list((root / "data/prepared/digits").iterdir()) == []


def test_a_full_disk_while_a_partition_is_written(refused, capsys, root):
    assert fedflow(capsys, "prepare", "digits").code == 0
    with disk_of(1_000):
        assert_matches(refused("partition", "skewed"), "cannot write the picture to data/partitions/skewed")
    assert fedflow(capsys, "partition", "skewed").code == 0


def fails_and_goes_on(capsys, shared, command: tuple, trouble) -> str:
    """The line of a run that fails while it trains; the same command then ends the same recorded run."""
    store = shared / "mlruns" / "mlflow.db"
    before = recorded(store)["runs"]
    with trouble:
        line = one_line(fedflow(capsys, *command))
    (failed,) = recorded(store)["runs"][len(before) :]
    assert failed[2] == "FAILED"
    assert fedflow(capsys, *command).code == 0
    (again,) = recorded(store)["runs"][len(before) :]
    assert again[0] == failed[0] and again[2] == "FINISHED"
    return line


def test_a_full_disk_while_a_checkpoint_is_written(capsys, root, shared):
    wide = ("--set", "models.digits.options.hidden=[30000]", "--set", "run.rounds=1", "--seed", "21")
    size = (shared / "mlruns" / "mlflow.db").stat().st_size + 2_000_000
    assert size < 30_000 * 75 * 4
    line = fails_and_goes_on(capsys, shared, (*RUN, *wide), disk_of(size))
    assert_matches(line, "cannot write the checkpoint .*File too large")


def test_a_full_disk_while_results_are_written(capsys, root, shared):
    @contextmanager
    def full() -> Iterator[None]:
        def fails(path: Path) -> None:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fedflow.files._sync", fails)
            yield

    line = fails_and_goes_on(capsys, shared, (*RUN, "--seed", "22"), full())
    assert_matches(line, "cannot write results to runs/skewed/fedavg/22: No space left on device")


def test_a_full_disk_names_the_file_that_did_not_fit(tmp_path):
    with disk_of(10), one_line_error(r"cannot write results to .*: b\.json: File too large$"):
        write = partial(write_json, value="long enough")
        replace_files(tmp_path, {"a.json": partial(write_json, value=1), "b.json": write}, "b.json")
    with disk_of(10), pytest.raises(OSError) as error:
        write_json(tmp_path / "c.json", "long enough")
    assert error.value.filename == str(tmp_path / "c.json")


# The real command


@pytest.mark.parametrize(
    "arguments",
    [(*RUN, "--method", "nope"), pytest.param((*RUN, "--set", "training.lr=-1"), marks=pytest.mark.full)],
)
def test_a_process_prints_nothing_but_the_line(root, arguments):
    assert (root / "params.yaml").read_text() == PARAMS
    command = [sys.executable, "-m", "fedflow.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    one_line(Done(done.returncode, done.stdout, done.stderr))
    assert done.stdout == ""


def test_the_recorded_run_is_whole(shared):
    assert recorded(shared / "mlruns" / "mlflow.db")["runs"][0][1:] == ("fedavg seed 0", "FINISHED")
    assert json.loads((shared / "results/skewed/fedavg/0/metrics.json").read_text())["rounds"] == 2
