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
from command import free_port, prepared_project

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
ROUNDS = ("run.rounds=2",)
LISTEN = ("--host", "127.0.0.1", "--no-dashboard")
RAY = ("ray", "start", "--block", "--num-cpus", "1", "--object-store-memory", "100000000")
AT = "--node-ip-address"


class Cluster:
    """Programs that run in their own folders, and how a run names them."""

    def __init__(self, folder: Path, executor: str) -> None:
        self.folder, self.executor, self.programs = folder, executor, {}
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self.environment = dict(os.environ) | token | {"RAY_USAGE_STATS_ENABLED": "0"}
        self.environment["PYTHONPATH"] = f"{HERE}{os.pathsep}{HERE.parents[1]}"  # lossy.py, and this checkout

    def start(self, name: str, ready: str, *command: str) -> None:
        """Start a program and wait until it has said ``ready``; its data folder is ``<name>/cache``."""
        folder = self.folder / name
        folder.mkdir()
        with (folder / "log").open("wb") as log:
            self.programs[name] = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                env=self.environment | {"FEDFLOW_CACHE": str(folder / "cache")},
                cwd=folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + 120
        while ready not in self.log(name):
            assert self.programs[name].poll() is None, self.log(name)
            assert time.monotonic() < deadline, self.log(name)
            time.sleep(0.1)

    def join(self, name: str) -> None:
        """Start a worker with the data folder ``<name>/cache``."""
        if self.executor == "dask":
            self.start(name, "Registered to", "dask", "worker", self.address, "--nthreads", "1", *LISTEN)
        else:
            node = f"127.0.0.{2 + ('one', 'two', 'three').index(name)}"
            self.start(name, "runtime started", *RAY, AT, node, "--address", self.address)

    def log(self, name: str) -> str:
        return (self.folder / name / "log").read_text(errors="replace")

    def kill(self, name: str) -> None:
        """Kill a program with all processes that it has started."""
        os.killpg(self.programs.pop(name).pid, signal.SIGKILL)

    def stored(self, name: str) -> dict[str, set[str]]:
        """The files of every content in a program's data folder, by hash."""
        folders = (self.folder / name / "cache").glob("*/")
        return {folder.name: {file.name for file in folder.iterdir()} for folder in folders}

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
            made.start("head", "Scheduler at", "dask", "scheduler", *LISTEN, "--port", str(made.port))
            made.join("one")
        else:
            head = ("--head", "--port", str(made.port), "--include-dashboard", "false")
            made.start("one", "runtime started", *RAY, AT, "127.0.0.2", *head, "--temp-dir", str(short))
        made.join("two")
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


def test_workers_without_data_fetch_them_once_and_give_the_bytes_of_the_plain_loop(
    workers, prepared, expected, results, tmp_path
):
    marker = tmp_path / "killed"
    run = workers.run(prepared, str(marker), *ROUNDS)
    said = run.communicate()[0]
    assert run.returncode == 0, said
    assert marker.exists()  # a worker process died within its shard
    assert said.count("sending /gone/prepared/digits to workers that lack it") == 1
    assert results(prepared) == expected("fedavg", settings=ROUNDS)
    data, partition = (prepared / "data" / name for name in ("prepared/digits", "partitions/digits-6"))
    contents = {
        json.loads((folder / facts).read_text())["hash"]: {file.name for file in folder.iterdir()}
        for folder, facts in ((data, "meta.json"), (partition, "summary.json"))
    }
    assert workers.stored("one") == workers.stored("two") == contents

    shutil.rmtree(prepared / "runs")
    long = ("run.rounds=60", "run.evaluate_every=60")
    run = workers.run(prepared, "", *long)
    while not list((prepared / ".fedflow" / "checkpoints").glob("*/checkpoint.safetensors")):
        assert run.poll() is None, run.communicate()[0]
        time.sleep(0.01)
    workers.join("three")
    workers.kill("two")  # a whole machine, between the first round and the last
    said = run.communicate()[0]
    assert run.returncode == 0, said
    assert results(prepared) == expected("fedavg", settings=long)
    assert workers.stored("three") == contents


def test_a_slow_worker_changes_no_byte(workers, prepared, expected, results):
    (workers.folder / "two" / "cache").mkdir(exist_ok=True)
    (workers.folder / "two" / "cache" / "slow").write_text("1")
    run = workers.run(prepared, "", *ROUNDS, "engine.workers=6")
    said = run.communicate()[0]
    assert run.returncode == 0, said
    assert results(prepared) == expected("fedavg", settings=ROUNDS)
