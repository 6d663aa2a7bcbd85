"""`fedflow init`: what a new project is, and what an upgrade changes."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from configparser import ConfigParser
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import yaml
from command import Done, fedflow, make_project

from fedflow import __version__
from fedflow.config import check_dvc, load_params
from fedflow.doctor import examine
from fedflow.project import templates
from fedflow.project.templates import KEPT, ProjectFile, rendered
from flows import serve

CHECKOUT = Path(__file__).parents[1]
FILES = [".gitignore", "dvc.yaml", "params.yaml", "prefect.yaml"]


def make(capsys: pytest.CaptureFixture[str], folder: Path, *options: str) -> Done:
    done = fedflow(capsys, "init", folder, *options)
    assert (done.code, done.err) == (0, "")
    return done


def findings(root: Path) -> dict[str, tuple[str, str]]:
    return {each.what: (each.status, each.detail) for each in examine(root)}


@pytest.fixture(autouse=True)
def own_services(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)


@pytest.fixture
def earlier(tmp_path_factory, monkeypatch) -> Callable[[Path], None]:
    """Writes the files of an earlier version of fedflow, whose dvc.yaml was another, to a project."""

    def write(root: Path) -> None:
        home = shutil.copytree(templates.HOME, tmp_path_factory.mktemp("earlier") / "templates")
        file = home / KEPT["dvc.yaml"]
        file.write_text(file.read_text().replace("fedflow report --grid --sweep repro", "fedflow report"))
        with monkeypatch.context() as patch:
            patch.setattr(templates, "HOME", home)
            patch.setattr(templates, "__version__", "0.0.1")
            templates.write(root, *KEPT)

    return write


@pytest.mark.parametrize("name", KEPT)
def test_the_repository_has_the_files_that_init_writes(name) -> None:
    same = (CHECKOUT / name).read_text() == rendered(name)
    assert same, "edit fedflow/templates, then run `fedflow init --upgrade` here"


def test_dvc_finds_no_stages_in_the_package() -> None:
    """A virtual environment may be in the project's folder."""
    assert not [*templates.HOME.parent.rglob("dvc.yaml")]


def test_the_repository_has_the_plots_that_init_writes() -> None:
    assert (CHECKOUT / templates.PLOTS).read_text() == (templates.HOME / "curves.json").read_text()


def test_a_new_project_is_in_order(capsys, tmp_path) -> None:
    root = tmp_path / "study"
    done = make(capsys, root, "--no-git", "--no-dvc")
    assert sorted(file.name for file in root.iterdir()) == FILES
    assert f"next: cd {root} && fedflow sweep && fedflow report" in done.out
    check_dvc(root)
    load_params(root / "params.yaml").check_grid()
    found = findings(root)
    assert found["params.yaml"] == ("ok", "1 partition x 3 methods x 3 seeds")
    assert found["dvc.yaml"] == found["prefect.yaml"] == ("ok", f"as fedflow {__version__} writes it")
    assert not [what for what, (status, _) in found.items() if status == "bad"]


def test_deployments_name_installed_flows_and_what_params_yaml_has(capsys, tmp_path) -> None:
    """Files of the repository, such as flows/federate.py, are not in the project."""
    make(capsys, tmp_path, "--no-git", "--no-dvc")
    deployments = yaml.safe_load((tmp_path / "prefect.yaml").read_text())["deployments"]
    flows = {point.value.replace(":", ".") for point in entry_points(group="fedflow.flows")}
    assert {each["entrypoint"] for each in deployments} <= flows
    params = load_params(tmp_path / "params.yaml")
    given = {each["entrypoint"].split(".")[-1]: each["parameters"] for each in deployments}
    assert given["federate"]["partition"] in params.partitions
    assert given["central"]["name"] in params.central


@pytest.mark.parametrize("name", ["params.yaml", "notes.txt", ".gitignore", ".dvc"])
def test_a_folder_with_files_is_refused_and_stays_as_it_is(name, capsys, tmp_path) -> None:
    (tmp_path / name).write_text("mine")
    done = fedflow(capsys, "init", tmp_path)
    assert done.code == 2 and not done.out
    says = rf"fedflow: folder: '.*' is not accepted; expected .* it has {name} \(.*\)\n"
    assert re.fullmatch(says, done.err)
    assert [file.name for file in tmp_path.iterdir()] == [name] and (tmp_path / name).read_text() == "mine"


def test_a_file_in_the_place_of_the_folder_is_refused(capsys, tmp_path) -> None:
    (tmp_path / "study").write_text("mine")
    done = fedflow(capsys, "init", tmp_path / "study", "--no-dvc")
    assert done.code == 2 and "expected a new or empty folder (" in done.err


def test_a_project_has_git_and_dvc(capsys, tmp_path, monkeypatch) -> None:
    """Also where the folder has a virtual environment."""
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "pyvenv.cfg").touch()
    monkeypatch.chdir(tmp_path)
    assert "next: dvc repro, " in fedflow(capsys, "init").out
    assert (tmp_path / ".git").is_dir() and (tmp_path / templates.PLOTS).is_file()
    config = ConfigParser()
    config.read(".dvc/config")
    assert dict(config["core"]) == {"analytics": "false", "check_update": "false"}
    status = ["git", "status", "-s", "-uall"]
    listed = subprocess.run(status, capture_output=True, text=True, check=True).stdout
    assert all(name in listed for name in (*FILES, ".dvc/config")) and ".venv" not in listed


def test_a_project_within_a_repository_gets_no_other(capsys, tmp_path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    make(capsys, tmp_path / "study")
    assert not (tmp_path / "study" / ".git").exists() and (tmp_path / "study" / ".dvc").is_dir()


def test_a_project_without_git_has_dvc(capsys, tmp_path) -> None:
    make(capsys, tmp_path, "--no-git")
    assert "no_scm = True" in (tmp_path / ".dvc" / "config").read_text() and not (tmp_path / ".git").exists()


def test_a_failure_of_dvc_is_one_line(capsys, tmp_path) -> None:
    (tmp_path / ".git").touch()  # of no repository
    done = fedflow(capsys, "init", tmp_path)
    assert done.code == 2
    assert re.fullmatch("fedflow: the files are written, but `dvc init` failed: ERROR: .+\n", done.err)


def test_an_upgrade_rewrites_what_was_not_edited(capsys, tmp_path, earlier) -> None:
    earlier(make_project(tmp_path))
    params = (tmp_path / "params.yaml").read_text()
    status, detail = findings(tmp_path)["dvc.yaml"]
    assert status == "note" and re.search("written by fedflow 0.0.1; .* run `fedflow init --upgrade`", detail)
    assert findings(tmp_path)["prefect.yaml"][0] == "ok"
    (tmp_path / "prefect.yaml").unlink()
    make(capsys, tmp_path, "--upgrade")
    assert {name: (tmp_path / name).read_text() for name in KEPT} == {name: rendered(name) for name in KEPT}
    assert (tmp_path / "params.yaml").read_text() == params


def test_an_upgrade_keeps_what_was_edited_and_shows_the_difference(capsys, tmp_path, earlier) -> None:
    earlier(make_project(tmp_path))
    for name in KEPT:
        with (tmp_path / name).open("a") as file:
            file.write("# mine\n")
    edited = {name: (tmp_path / name).read_text() for name in KEPT}
    found = findings(tmp_path)
    assert re.search("0.0.1, and edited; .* shows the difference", found["dvc.yaml"][1])
    same = f"written by fedflow 0.0.1, and edited; fedflow {__version__} writes the same"
    assert found["prefect.yaml"] == ("ok", same)
    said = make(capsys, tmp_path, "--upgrade").out
    assert "-    cmd: fedflow report\n+    cmd: fedflow report --grid --sweep repro\n" in said
    assert "-# mine" in said
    assert {name: (tmp_path / name).read_text() for name in KEPT} == edited


def test_a_file_that_fedflow_did_not_write_is_kept(capsys, tmp_path) -> None:
    (make_project(tmp_path) / "dvc.yaml").write_text("stages: {}\n")
    assert findings(tmp_path)["dvc.yaml"][1].startswith("not written by `fedflow init`; ")
    make(capsys, tmp_path, "--upgrade")
    assert (tmp_path / "dvc.yaml").read_text() == "stages: {}\n"
    assert ProjectFile.read(tmp_path / "prefect.yaml").state == "same"


def test_a_folder_without_the_files_of_a_project_is_refused(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(make_project(tmp_path))
    monkeypatch.setattr(sys, "argv", ["serve"])
    with pytest.raises(SystemExit):
        serve.main()
    error = capsys.readouterr().err
    says = "fedflow: prefect.yaml: no such file; `fedflow init FOLDER` makes a project, .*\n"
    assert re.fullmatch(says, error)
    assert [each.name for each in tmp_path.iterdir()] == ["params.yaml"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "is not a project (no params.yaml)"),
        (("--no-git",), "--upgrade: 'with --no-git or --no-dvc' is not accepted"),
    ],
)
def test_an_upgrade_of_nothing_is_refused(options, says, capsys, tmp_path) -> None:
    done = fedflow(capsys, "init", tmp_path, "--upgrade", *options)
    assert done.code == 2 and says in done.err and not any(tmp_path.iterdir())
