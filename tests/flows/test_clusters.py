"""Dask and Ray clusters of several processes, each with its own data folder: minutes, so marked slow."""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command import prepared_project
from services import free_port

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
ROUNDS = ("run.rounds=2",)


class Cluster:
    """Programs that run in their own folders, and how a run names them."""

    def __init__(self, folder: Path, executor: str) -> None:
        self.folder, self.executor, self.programs = folder, executor, {}
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self.environment = dict(os.environ) | token | {"RAY_USAGE_STATS_ENABLED": "0"}
        self.environment["PYTHONPATH"] = str(HERE)  # lossy.py

    def start(self, name: str, ready: str, *command: str) -> None:
        """Start a program and wait until it has said ``ready``; its data folder is ``<name>/cache``."""
        place = self.folder / name
        place.mkdir()
        with (place / "log").open("wb") as log:
            self.programs[name] = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                env=self.environment | {"FEDFLOW_CACHE": str(place / "cache")},
                cwd=place,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + 120
        while ready not in self.log(name):
            assert self.programs[name].poll() is None, self.log(name)
            assert time.monotonic() < deadline, self.log(name)
            time.sleep(0.1)

    def log(self, name: str) -> str:
        return (self.folder / name / "log").read_text(errors="replace")

    def kill(self, name: str) -> None:
        """Kill a program with all processes that it has started."""
        os.killpg(self.programs.pop(name).pid, signal.SIGKILL)

    def give(self, name: str, root: Path) -> None:
        """Copy prepared data and partition to where a worker looks for them: by hash, and by name."""
        data = root / "data" / "prepared" / "digits"
        cache = self.folder / name / "cache"
        shutil.copytree(data, cache / json.loads((data / "meta.json").read_text())["hash"])
        shutil.copytree(root / "data" / "partitions", cache / "partitions")

    def run(self, root: Path, marker: str = "", *settings: str) -> subprocess.Popen:
        """A run that lets this cluster train, on data that lie at other paths than the workers'."""
        engine = (f"engine.executor={self.executor}", f"engine.address={self.address}")
        return subprocess.Popen(
            [sys.executable, str(HERE / "elsewhere.py"), str(root), marker, *engine, *settings],
            env=self.environment | {"FEDFLOW_CACHE": str(root / "data")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self.port}" if self.executor == "dask" else f"127.0.0.2:{self.port}"


@contextmanager
def cluster(folder: Path, executor: str) -> Iterator[Cluster]:
    """Two workers, "one" and "two", on this machine's loopback interface."""
    made = Cluster(folder, executor)
    made.port = free_port()
    short = Path(tempfile.mkdtemp(prefix="ray-"))  # its sockets' paths may have 107 bytes
    try:
        if executor == "dask":
            listen = ("--host", "127.0.0.1", "--no-dashboard")
            made.start("head", "Scheduler at", "dask", "scheduler", *listen, "--port", str(made.port))
            for name in ("one", "two"):
                made.start(name, "Registered to", "dask", "worker", made.address, "--nthreads", "1", *listen)
        else:
            common = ("--block", "--num-cpus", "1", "--object-store-memory", "100000000")
            head = ("--head", "--port", str(made.port), "--include-dashboard", "false")
            ray = ("ray", "start", *common, "--node-ip-address")
            made.start("one", "runtime started", *ray, "127.0.0.2", *head, "--temp-dir", str(short))
            made.start("two", "runtime started", *ray, "127.0.0.3", "--address", made.address)
        yield made
    finally:
        for name in list(made.programs):
            made.kill(name)
        shutil.rmtree(short, ignore_errors=True)


@pytest.fixture
def prepared(root: Path) -> Path:
    """The project folder of the run, data and partition made."""
    prepared_project(root, (root / "params.yaml").read_text(), "digits-6")
    return root


@pytest.fixture(params=["dask", "ray"])
def workers(request: pytest.FixtureRequest, api: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    with cluster(tmp_path_factory.mktemp("c"), request.param) as made:
        yield made


def test_workers_with_their_own_data_give_the_bytes_of_the_plain_loop(
    workers, prepared, expected, results, tmp_path
):
    run = workers.run(prepared, "", *ROUNDS)
    said = run.communicate()[0]
    assert run.returncode != 0
    assert "lacks content" in said and "/gone/prepared/digits" in said and "FEDFLOW_CACHE" in said

    for name in ("one", "two"):
        workers.give(name, prepared)
    marker = tmp_path / "killed"
    run = workers.run(prepared, str(marker), *ROUNDS)
    said = run.communicate()[0]
    assert run.returncode == 0, said
    assert marker.exists()  # a worker process died within its shard
    assert results(prepared) == expected("fedavg", settings=ROUNDS)

    shutil.rmtree(prepared / "runs")
    long = ("run.rounds=30", "run.evaluate_every=30")
    run = workers.run(prepared, "", *long)
    while not list((prepared / ".fedflow" / "checkpoints").glob("*/checkpoint.safetensors")):
        assert run.poll() is None, run.communicate()[0]
        time.sleep(0.01)
    workers.kill("two")  # a whole machine, between the first round and the last
    said = run.communicate()[0]
    assert run.returncode == 0, said
    assert results(prepared) == expected("fedavg", settings=long)
