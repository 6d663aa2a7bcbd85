"""A lab's own servers: MLflow and Prefect on PostgreSQL, artifacts and data on S3. All real, on loopback.

Needs PostgreSQL (Debian: ``postgresql``), and the extras ``postgres``, ``s3``, ``auth`` and ``lab``.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from command import free_port, make_project
from conftest import PARAMS, results
from services import Relay, answers, started, wait_for

from fedflow.metrics.table import recorded_name

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

PASSWORD, SECRET, MLFLOW = "postgres-password", "s3-secret-key", "mlflow-password"
LOCAL = "127.0.0.1"


@dataclass
class Lab:
    """Addresses of the servers, and the environment of their users."""

    root: Path
    environment: dict[str, str]
    mlflow: Relay
    s3: Any

    def call(self, *words: str, folder: Path | None = None, status: int = 0, **variables: str) -> str:
        """Run a program in this environment; returns its output."""
        done = subprocess.run(
            [sys.executable, "-m", *words],
            env=self.environment | variables,
            cwd=folder or self.root,
            capture_output=True,
            text=True,
            check=False,
        )
        printed = done.stdout + done.stderr
        assert done.returncode == status, printed
        assert not any(secret in printed for secret in (PASSWORD, SECRET, MLFLOW))
        return printed

    def keys(self, bucket: str) -> list[str]:
        """The names of all objects in a bucket."""
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return [each["Key"] for page in pages for each in page.get("Contents", [])]


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """The address of a database server with the databases mlflow and prefect, without a scheme."""
    tools = shutil.which("pg_ctl") or next(map(str, Path("/usr/lib/postgresql").glob("*/bin/pg_ctl")), None)
    assert tools, "PostgreSQL's pg_ctl is not installed"
    programs, port = Path(tools).resolve().parent, str(free_port())
    with TemporaryDirectory(prefix="postgres-") as name:  # pytest's folders are for their owner only
        folder, ordinary = Path(name), dict[str, Any]()
        (folder / "password").write_text(PASSWORD)
        if os.getuid() == 0:  # as whom PostgreSQL refuses to run
            ordinary = {"user": "nobody", "group": "nogroup", "extra_groups": []}
            for path in (folder, folder / "password"):
                shutil.chown(path, "nobody", "nogroup")
        given = ["-D", "data", "-U", "fedflow", "--pwfile", "password", "-A", "scram-sha-256"]
        init = [str(programs / "initdb"), *given]
        subprocess.run(init, cwd=folder, check=True, capture_output=True, **ordinary)
        server = [str(programs / "postgres"), "-D", "data", "-p", port, "-k", name, "-h", LOCAL]
        with started(*server, cwd=folder, stderr=subprocess.DEVNULL, **ordinary) as process:
            ready = [str(programs / "pg_isready"), "-q", "-h", LOCAL, "-p", port]
            wait_for(lambda: subprocess.run(ready, check=False).returncode == 0, process)
            for database in ("mlflow", "prefect"):
                create = [str(programs / "createdb"), "-h", LOCAL, "-p", port, "-U", "fedflow", database]
                subprocess.run(create, check=True, env=os.environ | {"PGPASSWORD": PASSWORD})
            yield f"fedflow:{PASSWORD}@{LOCAL}:{port}"
            process.send_signal(signal.SIGINT)  # closes all connections
            process.wait(60)


@pytest.fixture(scope="module")
def lab(postgres: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """All servers, and a project with digits in a Git repository."""
    import boto3

    root = make_project(tmp_path_factory.mktemp("lab"), PARAMS)
    ports = {name: free_port() for name in ("s3", "mlflow", "prefect")}
    urls = {name: f"http://{LOCAL}:{port}" for name, port in ports.items()}
    environment = os.environ | {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL_S3": urls["s3"],
        "PREFECT_API_URL": f"{urls['prefect']}/api",
        "PREFECT_HOME": str(root.parent / "prefect"),
        "MLFLOW_TRACKING_USERNAME": "fedflow",
        "MLFLOW_TRACKING_PASSWORD": MLFLOW,
        "OMP_NUM_THREADS": "1",
    }
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    servers = {
        "s3": [sys.executable, "-m", "moto.server", "-H", LOCAL, "-p", str(ports["s3"])],
        "mlflow": [
            *(sys.executable, "-m", "mlflow", "server", "--host", LOCAL, "--port", str(ports["mlflow"])),
            *("--app-name", "basic-auth", "--workers", "1", "--artifacts-destination", "s3://mlflow"),
            *("--backend-store-uri", f"postgresql+psycopg://{postgres}/mlflow"),
        ],
        "prefect": [
            *(sys.executable, "-m", "prefect", "server", "start", "--host", LOCAL),
            *("--port", str(ports["prefect"])),
        ],
    }
    passwords = root.parent / "mlflow.ini"  # as docker/secrets.sh writes it
    passwords.write_text(
        f"[mlflow]\ndefault_permission = READ\ndatabase_uri = postgresql+psycopg://{postgres}/mlflow\n"
        f"admin_username = fedflow\nadmin_password = {MLFLOW}\n"
    )
    database = {
        "PREFECT_API_DATABASE_CONNECTION_URL": f"postgresql+asyncpg://{postgres}/prefect",
        "MLFLOW_AUTH_CONFIG_PATH": str(passwords),
        "MLFLOW_FLASK_SERVER_SECRET_KEY": MLFLOW,
    }
    with ExitStack() as stack:
        running = {
            name: stack.enter_context(started(*command, environment=environment | database, **quiet))
            for name, command in servers.items()
        }
        health = {"s3": "/moto-api/", "mlflow": "/health", "prefect": "/api/health"}
        for name, process in running.items():
            wait_for(lambda name=name: answers(urls[name] + health[name]), process)
        s3 = boto3.client(
            "s3",
            endpoint_url=urls["s3"],
            region_name="us-east-1",
            aws_access_key_id="key",
            aws_secret_access_key=SECRET,
        )
        for bucket in ("mlflow", "dvc"):
            s3.create_bucket(Bucket=bucket)
        relay = stack.enter_context(Relay(ports["mlflow"]))
        environment["MLFLOW_TRACKING_URI"] = f"http://{LOCAL}:{relay.port}"
        yield Lab(root, environment, relay, s3)


def test_a_run_is_recorded_on_postgresql_and_s3(lab: Lab, expected: Callable[..., dict[str, bytes]]) -> None:
    lab.call("fedflow.cli", "run", "--partition", "digits-6", "--method", "fedavg")
    assert results(lab.root) == expected("fedavg")
    names = {key.rpartition("/")[2] for key in lab.keys("mlflow")}
    assert {"metrics.json", "clients.parquet", "weights.safetensors", "MLmodel"} <= names
    lab.call("fedflow.cli", "report")
    assert "digits-6/fedavg/0" in lab.call("fedflow.cli", "ls")
    assert "FedAvg" in lab.call("fedflow.cli", "show", "digits-6/fedavg/0")
    for file in lab.root.rglob("*"):
        if file.is_file():
            text = file.read_bytes()
            assert not any(secret.encode() in text for secret in (PASSWORD, SECRET, MLFLOW)), file


def test_a_run_goes_on_while_the_mlflow_server_is_away(lab: Lab, expected: Callable[..., dict]) -> None:
    """The steps that wait are sent when it is back, and the record is complete."""
    rounds = "run.rounds=120"
    words = ["run", "--partition", "digits-6", "--method", "ditto", "--executor", "inline", "--set", rounds]
    out = lab.root / "out.txt"
    program = [sys.executable, "-m", "fedflow.cli", *words]
    with out.open("w") as file:
        options = {"stdout": file, "stderr": file, "cwd": lab.root}
        with started(*program, environment=lab.environment, **options) as run:
            wait_for(lambda: ": round " in out.read_text(), run)
            lab.mlflow.close()
            wait_for(lambda: "training continues, records are sent later" in out.read_text(), run)
            before = out.read_text().count(": round ")
            wait_for(lambda: out.read_text().count(": round ") > before + 2, run)
            lab.mlflow.open()
            assert run.wait(600) == 0, out.read_text()
    assert results(lab.root, "ditto") == expected("ditto", settings=(rounds,))
    code = (
        "import sys, mlflow; api, name = mlflow.MlflowClient(), sys.argv[1]; "
        "(run,) = [r for r in api.search_runs(['1']) if r.data.tags['method'] == 'ditto']; "
        "print(run.info.status, len({m.step for m in api.get_metric_history(run.info.run_id, name)}))"
    )
    read = [sys.executable, "-c", code, recorded_name("local_accuracy")]
    done = subprocess.run(read, env=lab.environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["FINISHED", "120"], done.stderr


def test_data_and_results_travel_by_dvc_through_s3(lab: Lab, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "-q"], cwd=project, check=True)
    lab.call("fedflow.cli", "init", ".", folder=project)
    params = PARAMS.replace("seeds: [0]", "seeds: [0], central: [], procedures: []")
    (project / "params.yaml").write_text(params)
    lab.call("dvc", "remote", "add", "-d", "lab", "s3://dvc/project", folder=project)
    lab.call("dvc", "repro", folder=project)
    lab.call("dvc", "push", folder=project)
    assert lab.keys("dvc")
    subprocess.run([*git, "add", "-A"], cwd=project, check=True)
    subprocess.run([*git, "commit", "-qm", "Run"], cwd=project, check=True)
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(project), str(clone)], check=True)
    lab.call("dvc", "pull", folder=clone)
    assert results(clone) == results(project)
    again = lab.call("dvc", "repro", folder=clone)
    assert "Stage 'sweep' didn't change, skipping" in again and "Running stage 'sweep'" not in again


@pytest.mark.parametrize("given", [{"MLFLOW_TRACKING_PASSWORD": "wrong"}, {"MLFLOW_TRACKING_USERNAME": ""}])
def test_a_wrong_password_of_the_mlflow_server_is_one_line(lab: Lab, given: dict[str, str]) -> None:
    words = ["run", "--partition", "digits-6", "--method", "fedavg", "--set", "grid.seeds=[7]", "--seed", "7"]
    printed = lab.call("fedflow.cli", *words, status=2, **given)
    assert "MLFLOW_TRACKING_PASSWORD" in printed and len(printed.splitlines()) <= 2


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda url: url.replace(PASSWORD, "wrong"), "password authentication failed"),
        (lambda url: url.replace("/mlflow", "/nowhere"), 'database "nowhere" does not exist'),
        (lambda url: url.replace(url.rpartition(":")[2].partition("/")[0], "1"), "cannot connect"),
    ],
    ids=["password", "database", "port"],
)
def test_a_database_that_cannot_be_used_is_one_line(
    lab: Lab, postgres: str, change: Callable[[str], str], line: str
) -> None:
    url = change(f"postgresql+psycopg://{postgres}/mlflow")
    words = ["run", "--partition", "digits-6", "--method", "fedavg", "--set", "grid.seeds=[7]", "--seed", "7"]
    printed = lab.call("fedflow.cli", *words, status=2, MLFLOW_TRACKING_URI=url)
    assert line in printed and "wrong" not in printed and len(printed.splitlines()) <= 2
