"""The containers' files: what they name exists, and the image's install steps work in a new environment."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

HOME = Path(__file__).parents[1]
DOCKER = HOME / "docker"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((DOCKER / "compose.yaml").read_text())


def commands() -> list[str]:
    """The RUN steps of the Dockerfile, each on one line."""
    text = (DOCKER / "Dockerfile").read_text().replace("\\\n", " ")
    return re.findall(r"^RUN (.+)$", text, re.M)


def copied() -> list[str]:
    text = (DOCKER / "Dockerfile").read_text()
    return [name for line in re.findall(r"^COPY (.+) \S+$", text, re.M) for name in line.split()]


def test_the_image_holds_files_and_extras_that_exist() -> None:
    ignored = (DOCKER / "Dockerfile.dockerignore").read_text().split()
    assert copied() and all((HOME / name).exists() for name in copied())
    assert {f"!{name}" for name in copied()} <= {*ignored}
    extras = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {*re.findall(r"--extra (\w+)", " ".join(commands()))} <= extras.keys()


def test_services_use_secrets_volumes_and_services_that_exist(compose: dict[str, Any]) -> None:
    services, written = compose["services"], (DOCKER / "secrets.sh").read_text()
    for name, secret in compose["secrets"].items():
        assert Path(secret["file"]).name in written, name
    for service in services.values():
        assert {*service.get("secrets", [])} <= compose["secrets"].keys()
        assert {*service.get("depends_on", {})} <= services.keys()
        used = re.findall(r"/run/secrets/([\w.]+)", yaml.safe_dump(service))
        assert {*used} <= {*service.get("secrets", [])}
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:")
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or source.startswith("${") or (DOCKER / source).exists()


def test_services_send_no_telemetry_and_keep_names_and_addresses(compose: dict[str, Any]) -> None:
    services = compose["services"]
    ours = [service["environment"] for service in services.values() if service.get("image") == "fedflow"]
    assert len(ours) == 4
    for environment in ours:
        assert environment["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
        assert environment["DO_NOT_TRACK"] == environment["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert services["worker"]["hostname"] == "fedflow"  # a part of `flows.serve.project`
    (port,) = services["prefect"]["ports"]
    page = f"http://{port.rpartition(':')[0]}"
    assert services["prefect"]["environment"]["PREFECT_UI_API_URL"] == f"{page}/api"
    assert services["worker"]["environment"]["PREFECT_UI_URL"] == page


def test_scripts_parse(compose: dict[str, Any]) -> None:
    scripts = [file.read_text() for file in DOCKER.glob("*.sh")]
    commands = [service.get("command") for service in compose["services"].values()]
    scripts += [command[2].replace("$$", "$") for command in commands if isinstance(command, list)]
    assert len(scripts) == 5
    for script in scripts:
        subprocess.run(["sh", "-n"], input=script, text=True, check=True)


def test_passwords_are_made_once_and_are_private(tmp_path: Path) -> None:
    script = tmp_path / "secrets.sh"
    script.write_text((DOCKER / "secrets.sh").read_text())
    for _ in range(2):
        subprocess.run(["sh", str(script)], check=True, capture_output=True)
        made = {file.name: file.read_text() for file in (tmp_path / "secrets").iterdir()}
    assert made.keys() == {"postgres", "prefect", "s3", "mlflow", "s3.json", "mlflow.ini", "aws"}
    assert len(made["postgres"].strip()) == 48 and made["postgres"] != made["prefect"]
    assert made["s3"].strip() in made["s3.json"] and made["s3"].strip() in made["aws"]
    assert f"password = {made['mlflow'].strip()}" in made["mlflow.ini"]
    assert all(file.stat().st_mode & 0o077 == 0 for file in (tmp_path / "secrets").iterdir())
    assert "/docker/secrets/" in (HOME / ".gitignore").read_text().split()


@pytest.mark.slow  # installs PyTorch and all servers
@pytest.mark.timeout(3600)
def test_the_steps_of_the_image_work_in_a_new_environment(tmp_path: Path) -> None:
    source, folder = tmp_path / "src", tmp_path / "environment"
    source.mkdir()
    subprocess.run(["cp", "-r", *(str(HOME / name) for name in copied()), str(source)], check=True)
    python = folder / "bin" / "python"
    subprocess.run([sys.executable, "-m", "uv", "venv", "-q", "--python", sys.executable, folder], check=True)
    installs = [step[step.index("uv pip install") :] for step in commands() if "uv pip install" in step]
    assert len(installs) == 2
    for step in installs:
        words = [word for word in shlex.split(step) if word != "--no-cache"]
        words[words.index("--system") : words.index("--system") + 1] = ["--python", str(python)]
        subprocess.run([sys.executable, "-m", *words], cwd=source, check=True)
    for words in (["fedflow.cli", "--help"], ["flows.serve", "--help"], ["mlflow", "--version"]):
        subprocess.run([str(python), "-m", *words], cwd=tmp_path, check=True, capture_output=True)
    needed = "import boto3, psycopg, dvc_s3, prefect_dask"
    subprocess.run([str(python), "-c", needed], cwd=tmp_path, check=True)
