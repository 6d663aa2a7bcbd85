"""The core of fedflow works alone; what needs another part says in one line how to install it."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from command import fedflow, make_project, one_line_error

import fedflow as ff
from fedflow.project import distribution
from fedflow.project.distribution import wheel

HOME = Path(__file__).parents[1]
PROJECT = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
PIPELINE = ("dvc", "mlflow", "prefect")
HINT = re.escape(
    f"`pip install -e '.[pipeline]'` in fedflow's repository, or `pip install '{wheel()}[pipeline]'`"
)


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python as it is where only the core is installed."""
    for name in PIPELINE:
        monkeypatch.setitem(sys.modules, name, None)


def test_the_name_and_version_of_the_distribution_are_those_of_pyproject(capsys) -> None:
    assert (distribution.name(), ff.__version__) == (PROJECT["name"], PROJECT["version"])
    assert fedflow(capsys, "--version").out == f"{PROJECT['name']} {PROJECT['version']}\n"


def test_a_wheel_is_named_as_builders_name_it(monkeypatch) -> None:
    monkeypatch.setattr(distribution, "name", lambda: "Fed.Flow-lab")
    assert wheel() == f"fed_flow_lab-{ff.__version__}-py3-none-any.whl"


def test_a_run_imports_nothing_of_the_pipeline(tmp_path) -> None:
    """And so do the modules that the commands of the core import."""
    code = f"""
import json, sys
for name in {PIPELINE}: sys.modules[name] = None
import fedflow as ff, fedflow.cli
run = ff.run("digits", ff.dirichlet(alpha=1.0, clients=3), "fedavg", rounds=1)
print(json.dumps(run.metrics))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["local_accuracy"] > 0
    assert not any(tmp_path.iterdir())


def test_the_core_imports_no_yaml() -> None:
    packages = ", ".join(
        f"fedflow.{name}" for name in ("simulation.loop", "methods", "partition", "procedures")
    )
    subprocess.run(
        [sys.executable, "-c", f"import sys; sys.modules['yaml'] = None; import {packages}"], check=True
    )


@pytest.mark.parametrize(
    ("command", "needs"),
    [("ui", "the record of runs needs mlflow"), ("init new", r"fedflow init \(without --no-dvc\) needs dvc")],
)
def test_a_command_of_the_pipeline_says_what_to_install(
    command, needs, core, capsys, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(make_project(tmp_path))
    done = fedflow(capsys, *command.split())
    assert done.code == 2 and not done.out
    assert re.fullmatch(f"fedflow: {needs}, not installed here: {HINT}\n", done.err)


def test_commands_of_the_core_run_without_the_pipeline(core, capsys, tmp_path) -> None:
    root = make_project(tmp_path)
    rooted = [f"{command} --root {root}" for command in ("partition skewed", "doctor")]
    for command in ("methods ifca", "schemes", *rooted):
        done = fedflow(capsys, *command.split())
        assert (done.code, done.err) == (0, "")
    assert (root / "data" / "partitions" / "skewed").is_dir()


def test_a_recorded_run_says_what_to_install_before_it_writes(core, tmp_path) -> None:
    with one_line_error(f"^record needs mlflow, not installed here: {HINT}$"):
        ff.run("digits", rounds=1, record=tmp_path / "project")
    assert not (tmp_path / "project").exists()


def test_deployments_say_what_to_install(core, capsys, monkeypatch) -> None:
    from flows import serve

    monkeypatch.setattr(sys, "argv", ["serve"])
    with pytest.raises(SystemExit) as end:
        serve.main()
    assert end.value.code == 2
    assert re.fullmatch(f"fedflow: python -m flows.serve needs prefect, .*{HINT}\n", capsys.readouterr().err)
