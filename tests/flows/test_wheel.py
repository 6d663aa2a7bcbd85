"""A wheel of fedflow in an environment of its own, far from the repository: the core alone, and a project."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from command import free_port
from services import answers, started, wait_for

CHECKOUT = Path(__file__).parents[2]
PACKAGES = ("fedflow", "flows", "tasks")
OURS = ("PYTHONPATH", "MLFLOW_", "PREFECT_", "FEDFLOW_", "VIRTUAL_ENV", "OMP_")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def uv(*arguments: object) -> None:
    command = [Path(sys.executable).parent / "uv", *arguments]
    done = subprocess.run(command, env=_outside(), cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _outside() -> dict[str, str]:
    """The variables of a user who has never seen the repository."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return plain | {"UV_SYSTEM_CERTS": "1", "OMP_NUM_THREADS": "1"}


class Environment:
    """A virtual environment with a wheel, and a folder in which commands run."""

    def __init__(self, home: Path, wheel: str, folder: Path) -> None:
        self.bin, self.folder = home / "bin", folder
        uv("venv", "--quiet", "--python", sys.executable, home)
        uv("pip", "install", "--quiet", "--python", self.bin / "python", "-c", "requirements.lock", wheel)
        self.variables = _outside() | {"PATH": f"{self.bin}:/usr/bin:/bin"}

    def run(self, *command: str, code: int = 0) -> str:
        """What a command prints."""
        program = [self.bin / command[0], *command[1:]]
        done = subprocess.run(
            program, env=self.variables, cwd=self.folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if not code else done.stderr

    @contextmanager
    def serving(self, says: str, page: str, *command: object) -> Iterator[None]:
        """A server, once it has said so and its page answers; it must end soon after Ctrl-C."""
        log, program = self.folder / "server.log", [self.bin / str(command[0]), *map(str, command[1:])]
        with (
            log.open("w") as out,
            started(*program, environment=self.variables, cwd=self.folder, stdout=out, stderr=out) as server,
        ):
            wait_for(lambda: says in log.read_text() and answers(page), server)
            yield
            server.send_signal(signal.SIGINT)
            server.wait(60)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that is built from the source distribution."""
    folder = tmp_path_factory.mktemp("dist")
    uv("build", "--quiet", "--out-dir", folder)
    (found,) = folder.glob("*.whl")
    return found


def test_the_wheel_has_every_file_of_its_packages(wheel, tmp_path) -> None:
    shutil.unpack_archive(wheel, tmp_path, "zip")
    listed = subprocess.run(
        ["git", "ls-files", "-z", *PACKAGES], cwd=CHECKOUT, check=True, capture_output=True, text=True
    )
    missing = [name for name in listed.stdout.split("\0") if name and not (tmp_path / name).is_file()]
    assert not missing
    assert (tmp_path / "fedflow" / "templates" / "stages.yaml").is_file()


def test_the_core_runs_federations_and_says_how_to_install_the_rest(wheel, tmp_path) -> None:
    core = Environment(tmp_path / "venv", str(wheel), tmp_path)
    code = "import fedflow as ff; print(ff.run('digits', method='ditto', rounds=2))"
    assert "<Ditto, seed 0, 2 rounds" in core.run("python", "-c", code)
    for command in (
        "methods ifca",
        "datasets",
        "new method halfway",
        "init study --no-dvc",
        "doctor --root study",
    ):
        assert core.run("fedflow", *command.split())
    hint = re.escape(
        f"not installed here: `pip install -e '.[pipeline]'` in fedflow's repository, or `pip install "
        f"'{wheel.name}[pipeline]'`"
    )
    core.folder = tmp_path / "study"
    for command in (
        "fedflow run --partition mnist5k-dir --method fedavg",
        "fedflow ui",
        "fedflow init other",
        "python -m flows.serve",
    ):
        assert re.fullmatch(f"fedflow: .* needs .*, {hint}\n", core.run(*command.split(), code=2))


def test_a_project_works_without_the_repository(wheel, tmp_path) -> None:
    """`dvc repro`, the report, both servers, the check, and an upgrade; the environment is in its folder."""
    root = tmp_path / "my study"
    root.mkdir()
    full = Environment(root / ".venv", f"{wheel}[pipeline]", root)
    full.run("fedflow", "init")
    params = yaml.safe_load((root / "params.yaml").read_text())
    params["run"] |= {"rounds": 2}
    params["grid"] |= {"methods": ["fedavg"], "seeds": [0]}
    (root / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    full.run("dvc", "repro")
    assert "Running stage 'fingerprint'" in (again := full.run("dvc", "repro"))
    assert again.count("Running stage") == 1
    assert (root / "results" / "mnist5k-dir" / "fedavg" / "0" / "metrics.json").is_file()
    assert full.run("fedflow", "report") == "report/index.html\n"
    checked = full.run("fedflow", "doctor", "--json")
    assert '"bad"' not in checked and "writes it" in checked
    page = f"http://127.0.0.1:{(port := free_port())}"
    with full.serving("MLflow UI", page, "fedflow", "ui", "--port", port):
        pass
    page = f"http://127.0.0.1:{(port := free_port())}"
    with full.serving("Worker '", f"{page}/api/health", "python", "-m", "flows.serve", "--port", port):
        assert f"Prefect UI: {page}" in (root / "server.log").read_text()
    assert full.run("fedflow", "init", "--upgrade").count("writes it") == 2
    ignored = subprocess.run(
        ["git", "status", "-s"], cwd=root, capture_output=True, text=True, check=True
    ).stdout
    assert {line.split()[-1] for line in ignored.splitlines()} == {
        ".dvc/.gitignore",
        ".dvc/config",
        ".dvc/plots/curves.json",
        ".dvcignore",
        ".gitignore",
        "dvc.lock",
        "dvc.yaml",
        "params.yaml",
        "prefect.yaml",
        "server.log",
    }
