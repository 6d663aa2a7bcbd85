"""A million clients, 1,000 a round, 100 million parameters: unit costs, and what a run costs on 64 GPUs.

Each part runs in its own process: rows of all clients on disk, in fedflow's files and in memory-mapped files
(a prototype); rounds of LeNet-5 with a million clients; vectors of 100 million parameters; shards that pass
through Dask. The costs of a GPU are in ``results/gpu-first-*.json``.
SCALING_FOLDER names a folder on a disk with 5 GB for the rows.
"""

import json
import mmap
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from psutil import Process

from benchmarks.machine import RESULTS
from benchmarks.memory import peak_memory, separately
from benchmarks.workload import significant

CLIENTS, COHORT, PARAMETERS, ROUNDS, GPUS, MACHINES = 1_000_000, 1000, 100_000_000, 1000, 64, 8
ROWS = {1000: CLIENTS, 62_000: 20_000}  # by the length of a row: all, and as many as 5 GB hold
SAMPLES, FEWER = 30, 10_000  # of a client; the clients of the smaller federation
STEPS, BATCHES = 10, {"images": 20, "text": 2048}  # local steps, and rows of a batch: images or tokens
GIGABYTES = {"10 Gbit/s": 1.25, "100 Gbit/s": 12.5}  # a second, of links that are not measured
ADAPTER = 62_000  # floats that a client keeps, if not the whole model
PAGE, REPEATS = 4096, 5
KINDS = {"files": 0, "maps of 1,000": 1000, "one map": CLIENTS}  # clients in a memory-mapped file


def main() -> dict[str, Any]:
    """Measure every part, or only those that SCALING_PARTS names; the others are as they were measured."""
    parts = {f"{kind}, {floats}": f"rows({kind!r}, {floats})" for floats in ROWS for kind in KINDS}
    parts |= {name: f"{name}()" for name in ("rounds", "partition", "vectors", "dask", "gpu")}
    units, file = dict[str, Any](), RESULTS / "cpu-scaling.json"
    if chosen := os.environ.get("SCALING_PARTS"):
        units = json.loads(file.read_text())["measured"]["units"]
    for name, call in parts.items():
        if not chosen or name in chosen.split("; "):
            units[name] = separately(f"scaling.{call}")
        unit_costs = (f"{unit} {value:,.4g}" for unit, value in units.get(name, {}).items())
        print(f"{name}: {', '.join(unit_costs)}", flush=True)
    costs = derived(units)
    for place, each in costs.items():
        for name, value in each.items():
            print(f"{place:10} {name:60} {value:,.4g}")
    return {"units": units, "derived": costs}


@dataclass
class Mapped:
    """A prototype of `ClientStore`: two rows in turn for each client, in sparse memory-mapped files.

    A new row never overwrites the row of the last checkpoint, and has a digest, as in fedflow's files.
    """

    floats: int
    clients: int
    folder: Path
    share: int  # clients in a file
    maps: dict[int, np.ndarray] = field(default_factory=dict)
    changed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.stride = -(-4 * self.floats // PAGE) * PAGE // 4  # rows share no page
        self.written, self.turn = (np.zeros(self.clients, np.uint8) for _ in range(2))
        self.digests = np.zeros(self.clients, np.int64)

    def put(self, client: int, values: Mapping[str, Any]) -> None:
        from fedflow.simulation.clients import _digest

        row = values["v"].numpy()
        if client not in self.changed:
            self.turn[client] ^= 1
            self.changed.add(client)
        self._row(client)[:] = row
        self.written[client], self.digests[client] = 1, _digest(row)

    def get(self, client: int) -> np.ndarray:
        row, size = self._row(client), 4 * self.stride
        if size > PAGE:  # one read instead of one for each page
            start = size * (2 * (client % self.share) + int(self.turn[client]))
            self.maps[client // self.share]._mmap.madvise(mmap.MADV_WILLNEED, start, size)  # type: ignore[attr-defined]
        return np.array(row)

    def changes(self) -> dict[str, Any]:
        from torch import from_numpy

        for number in {client // self.share for client in self.changed}:
            with self.path(number * self.share).open("rb") as file:
                os.fsync(file.fileno())  # writes the changed pages of the map, too
        return {name: from_numpy(getattr(self, name)) for name in ("written", "turn", "digests")}

    def settle(self) -> None:
        self.changed.clear()

    def path(self, client: int) -> Path:
        return self.folder / f"{client // self.share}.bin"

    def _row(self, client: int) -> np.ndarray:
        number, at = divmod(client, self.share)
        if number not in self.maps:
            path, shape = self.path(client), (min(self.share, self.clients), 2, self.stride)
            self.maps[number] = np.memmap(path, np.float32, "r+" if path.exists() else "w+", shape=shape)
            self.maps[number]._mmap.madvise(mmap.MADV_RANDOM)  # type: ignore[attr-defined]
        return self.maps[number][at, self.turn[client], : self.floats]


def rows(kind: str, floats: int) -> dict[str, Any]:
    """Every row written once, and then rounds of a cohort, whose rows are not in memory."""
    import torch

    from fedflow.simulation.checkpoint import load_checkpoint, save_checkpoint
    from fedflow.simulation.clients import ClientStore

    clients, rng, row = ROWS[floats], np.random.default_rng(0), {"v": torch.randn(floats)}
    before, times = _anonymous(), defaultdict[str, list[float]](list)
    with tempfile.TemporaryDirectory(dir=os.environ.get("SCALING_FOLDER")) as name:
        folder = Path(name)

        def opened() -> Any:
            if kind != "files":
                return Mapped(floats, clients, folder, KINDS[kind])
            return ClientStore({"v": torch.zeros(floats)}, clients, folder)

        store, found = opened(), {"rows": clients}
        with timed(times["fill"]):
            for cohort in rng.permutation(clients).reshape(-1, COHORT).tolist():
                for client in cohort:
                    store.put(client, row)
                store.settle()
        os.sync()
        found |= {"private_mb": significant(_anonymous() - before), "gb_on_disk": _on_disk(folder) / 1e9}
        for _ in range(REPEATS):
            cohort = rng.choice(clients, COHORT, replace=False).tolist()
            if kind != "files":
                store.maps.clear()
            for path in {store._path("v", k) if kind == "files" else store.path(k) for k in cohort}:
                with path.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            with timed(times["read"]):
                for client in cohort:
                    store.get(client)
            with timed(times["write"]):
                for client in cohort:
                    store.put(client, row)
            with timed(times["sync"]):
                tensors = store.changes()
            with timed(times["checkpoint"]):
                save_checkpoint(folder, tensors, {})
            with timed(times["settle"]):
                store.settle()
        found["checkpoint_mb"] = (folder / "checkpoint.safetensors").stat().st_size / 1e6
        with timed(times["resume"]):
            saved, store = load_checkpoint(folder), opened()
            if kind == "files" and saved:
                store.restore(saved[0])
        files = list(folder.rglob("*.bin"))
        found["files"] = len(files)
        with timed(times["delete"]):
            for path in files:
                path.unlink()
    found |= {f"{name}_s": median(each) for name, each in times.items()}
    return {name: significant(value) for name, value in found.items()}


def partition() -> dict[str, Any]:
    """The lists of all clients: made, written and read."""
    from fedflow.partition import load_partition

    times, before = defaultdict[str, list[float]](list), _anonymous()
    with tempfile.TemporaryDirectory() as name:
        with timed(times["make"]):
            made = _partition(CLIENTS)
        with timed(times["save"]):
            made.save(Path(name))
        size = sum(path.stat().st_size for path in Path(name).iterdir())
        held = _anonymous() - before
        with timed(times["load"]):
            load_partition(Path(name))
    seconds = {f"{name}_s": significant(median(each)) for name, each in times.items()}
    return {"samples": CLIENTS * SAMPLES, "mb": significant(size / 1e6), "private_mb": round(held)} | seconds


def rounds() -> dict[str, Any]:
    """Rounds of LeNet-5 with 1,000 of 10,000 and of a million clients, in turn, and the record of the end."""
    from functools import partial

    import torch

    from benchmarks import scale
    from benchmarks.workload import TRAINING, random_images
    from fedflow.finished.results import write_results
    from fedflow.methods import build_method
    from fedflow.models import build
    from fedflow.models.flat import FlatModel
    from fedflow.simulation.federation import Federation
    from fedflow.simulation.job import Job
    from fedflow.simulation.loop import Simulation
    from fedflow.simulation.settings import RunSettings

    torch.set_num_threads(1)
    scale.ROUNDS, scale.CHECKPOINT_EVERY = 8, 3
    train, test = random_images(60_000), random_images(1000)
    model, images = FlatModel(partial(build, "lenet5", tuple(train.x.shape[1:]), 10)), peak_memory()
    with tempfile.TemporaryDirectory(dir=os.environ.get("SCALING_FOLDER")) as name:
        runs = []
        for clients in (FEWER, CLIENTS):
            settings = RunSettings(
                rounds=scale.ROUNDS,
                participation=COHORT / clients,
                checkpoint_every=3,
                evaluate_every=scale.ROUNDS,
                evaluate_clients=100,
                fine_tune=False,
            )
            job = Job(
                Federation(model, train, test, _partition(clients)), build_method("fedavg"), TRAINING, 0
            )
            runs.append(Simulation(job, settings, checkpoints=Path(name) / str(clients)))
        wall, processor = scale._in_turns(runs)
        (checkpoint,) = (Path(name) / str(CLIENTS)).rglob("checkpoint.safetensors")
        (history,) = (Path(name) / str(CLIENTS)).rglob("history.jsonl")
        found = {
            "round_s": scale._per_round(wall)[1],
            "processor_s_more": scale._per_round(processor)[1] - scale._per_round(processor)[0],
            "last_round_s_more": processor[-1, 1] - processor[-1, 0],
            "checkpoint_mb": checkpoint.stat().st_size / 1e6,
            "history_bytes_a_round": history.stat().st_size / scale.ROUNDS,
        }
        times: list[float] = []
        with timed(times):
            outcome = runs[1].outcome()
        with timed(times):
            run = runs[1]
            write_results(Path(name), {}, {}, run.state.history, outcome, run.sizes, None)
        found |= {"outcome_s": times[0], "results_s": times[1]}
        found["clients_parquet_mb"] = (Path(name) / "clients.parquet").stat().st_size / 1e6
    found["mib_above_images"] = peak_memory() - images
    return {name: significant(value) for name, value in found.items()}


def vectors() -> dict[str, Any]:
    """One vector of 100 million parameters: summed, merged, averaged, sent as bytes, saved and read."""
    import torch

    from fedflow.simulation.checkpoint import load_checkpoint, save_checkpoint
    from fedflow.simulation.exact import ExactSum

    torch.set_num_threads(1)
    times, rng = defaultdict[str, list[float]](list), torch.Generator().manual_seed(0)
    update, total = torch.randn(PARAMETERS, generator=rng), ExactSum()
    before = peak_memory()
    for _ in range(REPEATS):
        with timed(times["add"]):
            total.add(update, 30)
    with timed(times["pickle_sum"]):
        sent = pickle.dumps(total, protocol=5)
    assert total.high is not None and total.low is not None
    other = ExactSum(total.high.clone(), total.low.clone(), total.weight)
    for _ in range(2):
        with timed(times["merge"]):
            total.merge(other)
    with timed(times["mean"]):
        total.mean(torch.float32)
    size, memory = len(sent) / 1e6, peak_memory() - before
    del sent, other, total
    with tempfile.TemporaryDirectory(dir=os.environ.get("SCALING_FOLDER")) as name:
        with timed(times["save"]):
            save_checkpoint(Path(name), {"w": update}, {})
        with timed(times["load"]):
            load_checkpoint(Path(name))
    found = {f"{name}_s": median(each) for name, each in times.items()}
    return {name: significant(v) for name, v in found.items()} | {"sum_mb": size, "sums_mib": round(memory)}


def dask() -> dict[str, Any]:
    """Rounds of 1 and of 4 shards of a wide network: what a shard adds to the time and to each process.

    The scheduler and one worker are processes of this machine, so that nothing crosses a network.
    """
    from benchmarks import flow

    clients, counts = 100, (1, 4)
    flow.PARAMS["models"]["mnist5k"] = {"name": "mlp", "options": {"hidden": [3000, 3000]}}
    flow.PARAMS["partitions"]["iid"]["clients"] = clients
    flow.PARAMS["training"] = {"epochs": 1, "batch_size": 50, "lr": 0.02}
    with flow.prepared() as experiment, _cluster() as (address, processes):
        import prefect

        from fedflow.simulation.loop import Simulation
        from tasks.shards import PrefectExecutor

        def measured(count: int, executor: Any) -> dict[str, float]:
            settings = replace(experiment.run, rounds=4, evaluate_every=4, participation=count / clients)
            steps = Simulation(experiment.job, settings, executor).rounds()
            next(steps)  # opens the data
            for pid in processes.values():
                Path(f"/proc/{pid}/clear_refs").write_text("5")  # forget the peak
            before = {f"{name} MB": _status("VmRSS", pid) for name, pid in processes.items()}
            before |= {f"{name} s": _processor(pid) for name, pid in processes.items()}
            next(steps)
            next(steps)
            steps.close()
            after = {f"{name} MB": _status("VmHWM", pid) for name, pid in processes.items()}
            after |= {f"{name} s": _processor(pid) for name, pid in processes.items()}
            return {
                name: (value - before[name]) / (2 if name[-1] == "s" else 1) for name, value in after.items()
            }

        @prefect.flow
        def all_counts() -> list[dict[str, float]]:
            found = []
            for count in counts:
                with PrefectExecutor("dask", count, address) as executor:
                    found.append(measured(count, executor))
            return found

        few, many = all_counts()
        mb = experiment.job.federation.open().model.size * 4 / 1e6
    more = {name: (many[name] - few[name]) / (counts[1] - counts[0]) for name in many}
    found = {"model MB": mb} | {f"{name} a shard": value for name, value in more.items()}
    return {name.replace(" ", "_"): significant(value) for name, value in found.items()}


@contextmanager
def _cluster() -> Iterator[tuple[str, dict[str, int]]]:
    """The address of a Dask scheduler with one worker, and the numbers of the processes."""
    from socket import socket

    with socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    quiet = ["--no-dashboard", "--host", "127.0.0.1"]
    alone = [address, "--nthreads", "1", "--no-nanny", "--memory-limit", "0", "--local-directory", "dask"]
    calls = {"scheduler": [*quiet, "--port", address.rpartition(":")[2]], "worker": [*quiet, *alone]}
    started = {
        kind: subprocess.Popen([sys.executable, "-m", "dask", kind, *words], stderr=subprocess.DEVNULL)
        for kind, words in calls.items()
    }
    try:
        yield address, {"driver": os.getpid()} | {kind: process.pid for kind, process in started.items()}
    finally:
        for process in started.values():
            process.terminate()
            process.wait()


def gpu() -> dict[str, float]:
    """Measured rates of an H100."""
    ceilings = json.loads((RESULTS / "gpu-first-ceilings.json").read_text())["measured"]["measured"]
    headline = json.loads((RESULTS / "gpu-first-headline-complete.json").read_text())["measured"]
    return {
        "fp32_tflops": significant(ceilings["fp32 FLOP/s"] / 1e12),
        "gb_a_second": significant(ceilings["bytes/s"] / 1e9),
        "of_prediction": significant(headline["measured"]["s a round"] / headline["predicted"]["s a round"]),
    }


def derived(units: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Costs of a round, and of 1,000 rounds, at each place, from the unit costs."""
    model, total = 4 * PARAMETERS / 1e9, units["vectors"]["sum_mb"] / 1e3  # GB of a model, and of a sum
    vectors, dask, gpu = units["vectors"], units["dask"], units["gpu"]
    larger, each = model * 1e3 / dask["model_MB"], COHORT / GPUS
    files, small = units[f"files, {ADAPTER}"], units[f"files, {min(ROWS)}"]
    fedavg = units["rounds"]
    levels, rates = (GPUS - 1).bit_length(), (gpu["fp32_tflops"] * 1e12, gpu["gb_a_second"] * 1e9)
    found: dict[str, dict[str, float]] = {
        "driver": {
            "processor s to send 64 shards": dask["driver_s_a_shard"] * larger * GPUS,
            "s of the mean": vectors["mean_s"],
            "s of a checkpoint of the model": vectors["save_s"],
            "processor s more than with 10,000 clients": fedavg["processor_s_more"],
            "GB of sums": vectors["sums_mib"] * 2**20 / 1e9,
        },
        "scheduler": {
            "GB while 64 shards pass": dask["scheduler_MB_a_shard"] * larger * GPUS / 1e3,
            "processor s while 64 shards pass": dask["scheduler_s_a_shard"] * larger * GPUS,
        },
        "network": {"GB to the workers": model * GPUS, "GB of sums between workers": total * (GPUS - 1)},
        "worker": {
            "clients": each,
            "processor s of a shard, with a local step on the CPU": dask["worker_s_a_shard"] * larger,
            "GB of host memory for a shard": dask["worker_MB_a_shard"] * larger / 1e3,
            "GB of GPU memory for the model, a client's copy, its gradient and the sum": 7 * model,
        },
        "store": {
            "TB of whole models on disk": CLIENTS * model / 1e3,
            "GB of adapters on disk": CLIENTS * files["gb_on_disk"] / files["rows"],
            "s to read adapters": files["read_s"],
            "s to write adapters, and to sync them": files["write_s"] + files["sync_s"] + files["settle_s"],
            "MB of memory": small["private_mb"],
            "MB of a checkpoint": small["checkpoint_mb"],
            "s to resume": small["resume_s"],
        },
        "record": {
            "MB of the history of 1,000 rounds": fedavg["history_bytes_a_round"] * ROUNDS / 1e6,
            "MB of clients.parquet": fedavg["clients_parquet_mb"],
            "s of results": fedavg["outcome_s"] + fedavg["results_s"],
        },
    }
    for link, rate in GIGABYTES.items():
        found["network"][f"s of models through one port, {link}"] = model * GPUS / rate
        found["network"][f"s of sums in {levels} steps, {link}"] = total * levels / rate
    for kind, count in BATCHES.items():
        step = 6 * PARAMETERS * count / rates[0] + 6 * model * 1e9 / rates[1]  # as `first_gpu` predicts
        found["worker"][f"s of training, {kind}"] = gpu["of_prediction"] * step * STEPS * each
    return {place: {n: significant(v) for n, v in costs.items()} for place, costs in found.items()}


def _partition(clients: int) -> Any:
    """Clients of 30 of 60,000 samples, who are all tested on the same 1,000."""
    from fedflow.partition import Partition

    offsets, none = np.arange(clients + 1), np.zeros(clients, np.int64)
    indices = np.arange(clients * SAMPLES) % 60_000
    return Partition(offsets * SAMPLES, indices, np.array([0, 1000]), np.arange(1000), offsets, none)


@contextmanager
def timed(seconds: list[float]) -> Iterator[None]:
    """Append the seconds of the block."""
    started = time.perf_counter()
    yield
    seconds.append(time.perf_counter() - started)


def _status(name: str, pid: int | str = "self") -> float:
    """A size from the status of a process, in MB."""
    return int(Path(f"/proc/{pid}/status").read_text().partition(f"{name}:")[2].split()[0]) / 1000


def _processor(pid: int) -> float:
    """Processor seconds of a process so far."""
    times = Process(pid).cpu_times()
    return times.user + times.system


def _anonymous() -> float:
    """Memory of this process that is no page of a file, in MB."""
    return _status("RssAnon")


def _on_disk(folder: Path) -> int:
    """Bytes that the rows occupy."""
    return sum(512 * path.stat().st_blocks for path in folder.rglob("*.bin"))
