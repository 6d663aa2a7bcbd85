"""Cells of the grid: which DVC would run, and results that wait for its stages."""

import hashlib
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import httpx
import pytest
import yaml
from command import fedflow, make_project, one_line_error
from support import refused

from fedflow.cli.experiments import run, start
from fedflow.config import load_params
from fedflow.errors import FedflowError
from fedflow.project.cells import GridCell, cell, cells, changed_cells, tidy
from fedflow.stages.fingerprints import MAY_BE_EMPTY

HOME = Path(__file__).parents[1]
GRID = {
    "partitions": ["a", "b"],
    "methods": ["fedavg", "lg_fedavg"],
    "seeds": [0, 1],
    "procedures": ["coreset"],
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose runs have what they depend on, but no results."""
    (tmp_path / "dvc.yaml").write_text((HOME / "dvc.yaml").read_text())
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"grid": GRID}))
    for each in cells(tmp_path):
        for file in each.files:
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).write_text(file)
    return tmp_path


def finish(one: GridCell, text: str = "result") -> Path:
    one.ready.mkdir(parents=True)
    (one.ready / "metrics.json").write_text(text)
    return one.ready


def lock(root: Path, done: list[GridCell]) -> None:
    """A dvc.lock in which these cells are as they are now."""
    stages = {
        one.stage: {
            "cmd": one.command,
            "deps": [
                {"path": file, "hash": "md5", "md5": hashlib.md5((root / file).read_bytes()).hexdigest()}
                for file in one.files
            ],
        }
        for one in done
    }
    (root / "dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": stages}))


def test_cells_are_those_of_the_stage(project: Path) -> None:
    found = cells(project)
    assert len(found) == 10
    assert found[9].stage == "procedure@coreset-1" and found[9].title == "coreset · seed 1"
    assert found[9].results == "outcomes/coreset/1"
    assert cell(project, procedure="coreset", seed=1) == found[9]
    assert found[3].stage == "federate@a-lg_fedavg-1" and found[3].title == "a · lg_fedavg · seed 1"
    assert found[3].results == "results/a/lg_fedavg/1"
    assert found[3].files == (
        "data/fingerprints/inputs/runs/a/lg_fedavg.json",
        "data/partitions/a/partition.safetensors",
        "data/partitions/a/summary.json",
        "data/fingerprints/files/environment.json",
    )
    assert cell(project, partition="a", method="lg_fedavg", seed=1) == found[3]
    assert cell(project, partition="a", method="ditto", seed=1) is None
    assert cell(project / "data", partition="a", method="fedavg", seed=1) is None


def test_a_cell_is_changed_if_dvc_would_run_it(project: Path) -> None:
    found = cells(project)
    assert changed_cells(project) == found
    lock(project, found[:7])
    assert changed_cells(project) == found[7:]
    (project / "data/fingerprints/inputs/runs/a/fedavg.json").write_text("other")
    assert changed_cells(project) == [*found[:2], *found[7:]]
    (project / "data/fingerprints/files/environment.json").write_text("other")
    assert changed_cells(project) == found
    lock(project, found)
    assert not changed_cells(project)
    (project / "dvc.lock").write_text((project / "dvc.lock").read_text().replace("--seed 1", "--seed 1 -v"))
    assert [dict(one.item)["seed"] for one in changed_cells(project)] == ["1"] * 5


def test_stages_with_another_command_are_left_to_dvc(project: Path) -> None:
    """Their results could be others than those that `fedflow repro` computes."""
    stages = (project / "dvc.yaml").read_text()
    other = stages.replace(
        "--method ${item.method} --seed", "--set run.rounds=3 --method ${item.method} --seed"
    )
    assert other != stages
    (project / "dvc.yaml").write_text(other)
    assert {one.kind for one in cells(project)} == {"procedure"} and cell(project, seed=0) is None


def test_a_result_waits_for_its_stage_until_something_changes(project: Path) -> None:
    one, other, *_ = cells(project)
    made = finish(one)
    assert one.ready == made and one.take() == project / one.results and other.take() is None
    (project / "data/partitions/a/summary.json").write_text("other")
    assert one.ready != made and one.take() is None
    tidy(project)
    assert not made.exists()


def test_a_result_waits_until_dvc_has_it(project: Path) -> None:
    one, other, *_ = cells(project)
    finish(one), finish(other)
    assert one.take() and one.take()  # a kill may come before DVC's lock is written
    lock(project, [one])
    tidy(project)
    assert not one.ready.exists() and other.ready.exists()


def test_the_stage_takes_the_result_in_place_of_an_older_one(project: Path, capsys) -> None:
    one = cells(project)[0]
    folder = project / "results" / "a" / "fedavg" / "0"
    folder.mkdir(parents=True)
    (folder / "rounds.csv").write_text("older")
    finish(one)
    run("a", "fedavg", 0, sweep="repro", root=project)
    assert [file.name for file in folder.iterdir()] == ["metrics.json"]
    assert "computed by `fedflow repro`" in capsys.readouterr().out


def test_only_a_stage_takes_it(project: Path) -> None:
    """A run with changed settings, or one that a user starts, is computed."""
    finish(cells(project)[0])
    for options in ({}, {"sweep": "mine"}, {"sweep": "repro", "settings": ["run.rounds=1"]}):
        with pytest.raises(Exception, match=r"^data: None"):  # params.yaml has no settings here
            run("a", "fedavg", 0, root=project, **options)
    assert cells(project)[0].ready.is_dir()


@pytest.mark.parametrize(
    ("file", "text", "line"),
    [
        ("dvc.yaml", None, r"dvc.yaml: No such file or directory"),
        ("dvc.yaml", "stages: {}", r"dvc.yaml: expected stages federate and procedure with a matrix"),
        ("params.yaml", "grid: 1", r"dvc.yaml: expected stages federate and procedure with a matrix"),
        ("params.yaml", "[", r"params.yaml, line 1: not valid YAML: while parsing"),
        ("params.yaml", "1", r"params.yaml: not a mapping"),
    ],
)
def test_a_project_without_a_grid_is_refused_in_one_line(project, file, text, line) -> None:
    (project / file).unlink()
    if text is not None:
        (project / file).write_text(text)
    with one_line_error(line):
        cells(project)


def test_a_missing_dependency_is_named(project: Path) -> None:
    (project / "data/fingerprints/files/environment.json").unlink()
    with one_line_error(r"environment.json: No such file or directory"):
        changed_cells(project)


def test_nothing_slow_is_imported() -> None:
    """By a stage that only takes a result: torch takes three seconds."""
    code = "import sys, fedflow.cli.experiments; print({'torch', 'pandas'} & sys.modules.keys())"
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
    with refused("Prefect's server does not answer; the same command resumes", FedflowError):
        start(params, "run", lambda: None, message="Failed to reach API at http://127.0.0.1:1/api/")
    for message in ("[Errno 111] Connection refused", "500", "503"):
        with one_line_error(
            rf"Prefect's server does not answer; the same command resumes .*: .*{message[-12:]}"
        ):
            start(params, "run", lambda: None, message=message)
    with pytest.raises(httpx.HTTPStatusError, match="404"):
        start(params, "run", lambda: None, message="404")
    with pytest.raises(RuntimeError, match="another"):
        start(params, "run", lambda: None, message="another")


def test_folders_that_may_be_empty_hold_a_file_for_git_and_dvc(tmp_path, capsys):
    """DVC warns of an empty dependency in every `dvc repro`, and a clone would lack it."""
    root = make_project(tmp_path)
    assert fedflow(capsys, "fingerprint", "files", "--root", root).code == 0
    for home in (root, HOME):
        for name in MAY_BE_EMPTY:
            assert (home / name / ".gitkeep").read_bytes() == b""
