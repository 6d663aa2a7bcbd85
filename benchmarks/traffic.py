"""Bytes of a round on a Dask and on a Ray cluster whose machines share no disk: data once, then models.

The machines are network namespaces of this one, so it needs Linux and root. The kernel counts what passes
their interfaces: of the run, of the Prefect server and of two workers, whose data folders are empty at first.
"""

import json
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

MACHINES = ("run", "prefect", "one", "two")
IMAGES, ROUNDS, WORKERS = 10_000, 6, 2
NET, BIN = "10.231.7.", Path(sys.executable).parent
PARAMS: dict[str, Any] = {
    "data": {"images": {"source": "npz", "path": "images.npz"}},
    "models": {"images": "lenet5"},
    "partitions": {"iid": {"dataset": "images", "scheme": "iid", "clients": 100}},
    "training": {"epochs": 1, "batch_size": 50, "lr": 0.01},
    "run": {"rounds": ROUNDS, "participation": 0.1, "evaluate_every": ROUNDS, "fine_tune": False},
    "methods": {"fedavg": {}},
    "grid": {"datasets": ["images"], "partitions": ["iid"], "methods": ["fedavg"], "seeds": [0]},
}


def address(machine: str) -> str:
    return f"{NET}{1 + MACHINES.index(machine)}"


class Network:
    """`MACHINES` that are connected by a switch, each in its own folder of ``root``."""

    def __init__(self, root: Path) -> None:
        self.root, self.hub = root, f"fedflow-{os.getpid()}"
        self.programs: list[subprocess.Popen] = []
        password = f"me:{secrets.token_hex(16)}"
        self.environment = os.environ | {
            "PYTHONPATH": str(Path(__file__).parents[1]),
            "OMP_NUM_THREADS": "1",
            "PREFECT_API_URL": f"http://{address('prefect')}:4200/api",
            "PREFECT_API_AUTH_STRING": password,
            "PREFECT_SERVER_API_AUTH_STRING": password,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_LOGGING_TO_API_ENABLED": "false",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
        }

    def __enter__(self) -> "Network":
        _ip("netns", "add", self.hub)
        _ip("-n", self.hub, "link", "add", "switch", "type", "bridge")
        _ip("-n", self.hub, "link", "set", "switch", "up")
        for machine in MACHINES:
            space = f"{self.hub}-{machine}"
            _ip("netns", "add", space)
            _ip("-n", self.hub, *f"link add {machine} type veth peer name eth0 netns {space}".split())
            _ip("-n", self.hub, "link", "set", machine, "master", "switch", "up")
            _ip("-n", space, "address", "add", f"{address(machine)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", space, "link", "set", device, "up")
        return self

    def __exit__(self, *error: object) -> None:
        for program in self.programs:
            program.kill()
        for space in (*(f"{self.hub}-{machine}" for machine in MACHINES), self.hub):
            ids = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True, check=False)
            for process in ids.stdout.split():
                subprocess.run(["kill", "-9", process], check=False, stderr=subprocess.DEVNULL)
            _ip("netns", "delete", space)

    def start(self, machine: str, *command: str) -> subprocess.Popen:
        """Start a program on a machine, with the empty data folder ``cache``."""
        folder = self.root / machine
        folder.mkdir(exist_ok=True)
        folders = {"FEDFLOW_CACHE": str(folder / "cache"), "PREFECT_HOME": str(folder / "home")}
        with (folder / "log").open("ab") as log:
            inside = ["ip", "netns", "exec", f"{self.hub}-{machine}", str(BIN / command[0]), *command[1:]]
            program = subprocess.Popen(
                inside, cwd=folder, env=self.environment | folders, stdout=log, stderr=log
            )
        self.programs.append(program)
        return program

    def wait(self, machine: str, said: str) -> None:
        deadline = time.monotonic() + 300
        while said not in (log := (self.root / machine / "log").read_text()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{machine} did not say {said!r}: {log[-2000:]}")
            time.sleep(0.2)


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def counted(hub: str) -> dict[str, int]:
    """The bytes that each machine has sent and received, as the other end of its cable counts them."""
    links = {link["ifname"]: link["stats64"] for link in json.loads(_ip("-n", hub, "-j", "-s", "link"))}
    sent = {f"{machine} sent": links[machine]["rx"]["bytes"] for machine in MACHINES}
    return sent | {f"{machine} received": links[machine]["tx"]["bytes"] for machine in MACHINES}


@contextmanager
def cluster(network: Network, executor: str) -> Iterator[str]:
    """A scheduler on the machine of the run, and a worker on each of two others; its address."""
    if executor == "dask":
        at = f"tcp://{address('run')}:8786"
        here = ("--host", address("run"), "--port", "8786", "--no-dashboard")
        network.start("run", "dask", "scheduler", *here)
        network.wait("run", "Scheduler at")
        for machine in ("one", "two"):
            options = ("--nthreads", "1", "--no-dashboard", "--no-nanny", "--host", address(machine))
            network.start(machine, "dask", "worker", at, *options)
            network.wait(machine, "Registered to")
    else:
        at = f"{address('run')}:6379"
        sessions = tempfile.mkdtemp(prefix="ray-", dir=network.root)
        head = ("--head", "--port", "6379", "--include-dashboard", "false", "--temp-dir", sessions)
        for machine in ("run", "one", "two"):
            where = head if machine == "run" else ("--address", at)
            node = ("--node-ip-address", address(machine), "--num-cpus", str(int(machine != "run")))
            store = ("--object-store-memory", "200000000")
            network.start(machine, "ray", "start", "--block", *node, *where, *store)
            network.wait(machine, "runtime started")
    yield at


def measured(executor: str) -> dict[str, Any]:
    """MB that every machine sent and received in the first round, and in a later one; sizes."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedflow-")))
        network = stack.enter_context(Network(root))
        network.start("prefect", "prefect", "server", "start", "--host", address("prefect"), "--port", "4200")
        at = stack.enter_context(cluster(network, executor))
        (root / "project").mkdir()
        me = (sys.executable, "-m", "benchmarks.traffic", executor, at, str(root / "project"), network.hub)
        if network.start("run", *me).wait():
            raise RuntimeError((root / "run" / "log").read_text()[-4000:])
        counts = json.loads((root / "run" / "counts.json").read_text())
    totals = counts.pop("totals")
    rounds = [{name: after[name] - before[name] for name in after} for before, after in pairwise(totals)]
    later = rounds[1:-1]  # the last one evaluates
    first = {name: value / 1e6 for name, value in rounds[0].items()}
    median = {name: statistics.median(row[name] for row in later) / 1e6 for name in first}
    return counts | {"first": first, "later": median}


def one(executor: str, at: str, project: str, hub: str) -> None:
    """The run: its project is on a disk that only this process sees."""
    import numpy as np
    from prefect import flow

    from fedflow.config import load_params
    from fedflow.simulation.loop import Simulation
    from fedflow.stages.experiment import Experiment
    from fedflow.stages.partition import prepare_partition
    from fedflow.stages.prepare import prepare_dataset
    from tasks.shards import PrefectExecutor

    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", project], check=True)
    root, rng = Path(project), np.random.default_rng(0)
    x, y = rng.integers(0, 256, (IMAGES, 32, 32, 3), np.uint8), np.arange(IMAGES) % 10
    np.savez(root / "images.npz", x_train=x, y_train=y, x_test=x[:100], y_test=y[:100])
    here = PARAMS | {"data": {"images": {"source": "npz", "path": str(root / "images.npz")}}}
    (root / "params.yaml").write_text(json.dumps(here))  # JSON is YAML
    params = load_params(root / "params.yaml")
    prepare_dataset(params, "images", root)
    prepare_partition(params, "iid", root)
    experiment = Experiment(params, "iid", "fedavg", 0, root)
    totals = []

    @flow
    def rounds() -> None:
        with PrefectExecutor(executor, WORKERS, at) as engine:
            time.sleep(5)
            totals.append(counted(hub))
            for _ in Simulation(experiment.job, experiment.run, engine).rounds():
                time.sleep(0.5)  # what is still on its way
                totals.append(counted(hub))

    while socket.socket().connect_ex((address("prefect"), 4200)):  # it is starting
        time.sleep(0.5)
    rounds()
    folders = (experiment.prepared_folder, experiment.partition_folder)
    sizes = {
        "content": sum(file.stat().st_size for folder in folders for file in folder.iterdir()) / 1e6,
        "model": 4 * experiment.job.federation.open().model.size / 1e6,
    }
    Path("counts.json").write_text(json.dumps({"totals": totals, **sizes}))


def main() -> dict[str, Any]:
    rows = {}
    for executor in ("dask", "ray"):
        rows[executor] = row = measured(executor)
        print(f"{executor}: data and partition {row['content']:.1f} MB, a model {row['model']:.2f} MB")
        for name in ("first", "later"):
            words = ", ".join(f"{what} {value:.2f}" for what, value in row[name].items())
            print(f"  {name} round, MB   {words}", flush=True)
    return rows


if __name__ == "__main__":
    one(*sys.argv[1:])
