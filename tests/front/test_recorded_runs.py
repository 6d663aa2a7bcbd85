"""`fedflow.run(record=folder)`: the project that it writes, and the same numbers on all ways."""

import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import fedflow as command
from command import one_line_error, recorded
from torch import nn

import fedflow as ff
from fedflow.config import load_params
from fedflow.errors import BadInput
from fedflow.front.result import Result
from fedflow.methods import METHODS
from fedflow.methods.averaging.fedavg import FedAvg
from fedflow.stages.tune import write_choice

GIVEN: dict[str, Any] = {
    "data": "digits",
    "rounds": 2,
    "participation": 0.5,
    "model": {"name": "mlp", "hidden": [8]},
    "training": {"batch_size": 64, "lr": 0.1},
    "device": "cpu",
    "progress": False,
}


def go(**changes: Any) -> Result:
    return ff.run(**GIVEN | {"partition": ff.dirichlet(alpha=0.5, clients=6)} | changes)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Result]]:
    """A folder with five recorded runs; the last two differ in training and in the network."""
    root = tmp_path_factory.mktemp("project") / "of" / "mine"
    small = {"record": root}
    return root, [
        go(method=ff.IFCA(clusters=2), **small),
        go(method=ff.IFCA(clusters=3), **small),
        go(method="fedavg", seed=1, **small),
        go(method="fedavg", training={"batch_size": 64, "steps": 3}, evaluate_every=1, **small),
        go(method="fedavg", model="logistic", **small),
    ]


def test_the_numbers_without_a_record(project: tuple[Path, list[Result]]) -> None:
    plain, kept = go(method=ff.IFCA(clusters=2)), project[1][0]
    assert plain.metrics == kept.metrics and plain.settings == kept.settings and plain.label == kept.label
    assert plain.rounds.equals(kept.rounds) and plain.clients.equals(kept.clients)
    assert repr(plain) == repr(kept) and plain.folder is None
    for a, b in zip(plain.model(2).parameters(), kept.model(2).parameters()):
        assert a.equal(b)


@pytest.mark.full
def test_a_system_without_fcntl_and_a_folder_with_any_name(tmp_path: Path) -> None:
    """Windows lacks fcntl; in a URL, `#` and `%20` would name another folder."""
    root = tmp_path / "größe 1 a#c%20d"
    again = ["run", "--partition", "digits-iid", "--method", "fedavg", "--executor", "inline", "--set"]
    code = f"""
import os, sys
sys.modules["fcntl"] = None
import fedflow as ff
from fedflow.cli import main
ff.run("digits", ff.iid(clients=2), rounds=1, record={str(root)!r}, compile="never")
os.chdir({str(root)!r})
for words in (["report"], {[*again, "run.rounds=2"]}):
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as end:
        assert not end.code, words
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)
    assert [path.name for path in tmp_path.iterdir()] == [root.name]
    assert (root / "report" / "index.html").exists()
    with sqlite3.connect(root / "mlruns" / "mlflow.db") as database:
        found = database.execute(
            "SELECT value FROM params WHERE key = 'run.rounds' ORDER BY value"
        ).fetchall()
    assert found == [("1",), ("2",)]


def test_results_and_record(project: tuple[Path, list[Result]]) -> None:
    root, runs = project
    folders = [str(run.folder.relative_to(root / "results")) for run in runs if run.folder]
    assert folders == [
        "digits-dirichlet/ifca/0",
        "digits-dirichlet/ifca-2/0",
        "digits-dirichlet/fedavg/1",
        "digits-dirichlet/fedavg-2/0",
        "digits-2-dirichlet/fedavg/0",
    ]
    for run in runs:
        assert run.folder is not None
        facts = json.loads((run.folder / "metrics.json").read_text())
        assert json.loads(json.dumps(run.metrics)).items() <= facts.items()
        assert run.partition.hash == facts["partition_hash"]
    assert len(recorded(root / "mlruns" / "mlflow.db")["runs"]) == 5


def test_the_params_file(project: tuple[Path, list[Result]]) -> None:
    params = load_params(project[0] / "params.yaml")
    assert params.method("ifca")[0] == ff.IFCA(clusters=2) and params.label("ifca-2") == "IFCA · clusters 3"
    assert params.method("fedavg-2")[1].steps == 3 and params.run_of("fedavg-2").evaluate_every == 1
    assert params.method("fedavg")[1].batch_size == 64 and params.run.rounds == 2
    assert params.model("digits-2").name == "logistic"
    assert params.grid.seeds == [0, 1] and params.grid.methods == ["ifca", "ifca-2", "fedavg", "fedavg-2"]
    locks = [file.name for file in (project[0] / ".fedflow").glob("params*")]
    assert locks == ["params.lock"]  # as of `fedflow tune`


def test_the_command_line_gives_the_same_run(
    project: tuple[Path, list[Result]], capsys: pytest.CaptureFixture[str]
) -> None:
    root, runs = project
    changes = ["--executor", "inline", "--set", "engine.device=cpu", "--out", root / "again"]
    where = ["--partition", "digits-dirichlet", "--root", root]
    done = command(capsys, "run", *where, "--method", "ifca-2", *changes)
    assert done.code == 0, done.err
    assert (root / "again" / "rounds.csv").read_text() == (runs[1].folder / "rounds.csv").read_text()  # type: ignore[operator]


def test_equal_settings_are_written_once(project: tuple[Path, list[Result]]) -> None:
    root, runs = project
    before = (root / "params.yaml").read_text()
    again = go(method=ff.IFCA(clusters=3), record=root)
    assert again.metrics == runs[1].metrics and again.folder == runs[1].folder
    assert (root / "params.yaml").read_text() == before


def test_a_tuned_value_does_not_replace_one_of_the_call(tmp_path: Path) -> None:
    small: dict[str, Any] = {"partition": ff.iid(clients=3), "rounds": 1, "record": tmp_path}
    first = go(**small)
    for method in ("fedavg", "fedprox"):
        write_choice(tmp_path / "params.yaml", "digits-iid", method, {"training.lr": 0.5})
    again, other = go(**small), go(method="fedprox", **small)
    tuned = go(training={"batch_size": 64, "lr": 0.5}, **small)
    assert again.metrics == first.metrics
    rates = {run.folder.parent.name: run.settings["training"]["lr"] for run in (again, other, tuned)}  # type: ignore[union-attr]
    assert rates == {"fedavg-2": 0.1, "fedprox-2": 0.1, "fedavg": 0.5}


@pytest.mark.parametrize(
    "division", [ff.given(path="rows.json"), ff.label_shares(shares="shares.npy")], ids=["rows", "shares"]
)
def test_files_of_a_division_are_of_the_working_directory(
    division: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.json").write_text(json.dumps([[*range(200)], [*range(200, 400)]]))
    np.save(tmp_path / "shares.npy", np.ones((2, 10)))
    plain, kept = (go(partition=division, rounds=1, record=folder) for folder in (None, "study"))
    assert plain.metrics == kept.metrics and plain.settings == kept.settings
    (tmp_path / "rows.json").write_text(json.dumps([[*range(200)], [*range(200, 399)]]))
    np.save(tmp_path / "shares.npy", np.eye(2, 10) + 1)
    assert go(partition=division, rounds=1).settings != plain.settings  # the files have changed


class Own(FedAvg):
    """A method that is not registered."""


class Scripted(FedAvg):
    """A method that a script registers: another process would not know it."""

    name, title = "scripted", "Scripted"


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (
            {
                "data": ff.dataset(np.ones((6, 2)), [0, 1] * 3, np.ones((2, 2)), [0, 1]),
                "model": "mlp",
                "partition": ff.iid(clients=2),
            },
            "own arrays .* numpy.savez",
        ),
        ({"partition": [[0, 1], [2, 3]]}, "lists of rows .* a partition scheme"),
        (
            {"model": nn.Sequential(nn.Flatten(), nn.Linear(64, 10))},
            "your own network .* the name of a network",
        ),
        ({"method": Own}, "a run of Own .* a registered method; `fedflow new method"),
        ({"method": Scripted}, "a run of scripted, which the command line .* installed plug-in"),
    ],
)
def test_what_params_cannot_name(
    given: dict[str, Any], match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, "scripted", Scripted)
    with one_line_error(f"record: .*{match}", BadInput):
        go(**given, record=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_nothing_is_written_of_a_run_that_cannot_start(tmp_path: Path) -> None:
    with one_line_error("model.name: 'linear' .* that fit", BadInput):
        go(model="linear", record=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_params_file_of_the_user_is_kept(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("# mine\ndata: {}\n")
    with one_line_error("record: .* without your own params.yaml", BadInput):
        go(record=tmp_path)
    assert (tmp_path / "params.yaml").read_text() == "# mine\ndata: {}\n"
