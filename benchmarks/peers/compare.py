"""fedflow and other simulators against a hand-written loop, all on the same work, in one run.

Each runs in a separate process, and each peer in a separate environment (made under ``.bench/`` on
first use, from the versions pinned beside this file). They take turns, with the hand-written loop before
and after each: a ratio is against the mean of these two, so that a slow minute of the machine counts for
both. TURNS=3 in the environment repeats everything. BENCH_WORK=pfl is another work (see work.py).
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import psutil

from benchmarks.peers.work import COHORT, DEVICE, STEPS, WORK
from benchmarks.workload import significant, spread

HERE = Path(__file__).parent
ROOT, ENVIRONMENTS = HERE.parents[1], HERE.parents[1] / ".bench"
PEERS = ("flwr", "pfl", "fluke", "fedjax")
SIZES, TURNS = {"lenet5": (100, 1000), "pfl": (1000,), "tiny": (10,)}[WORK], int(os.environ.get("TURNS", "1"))
ROUNDS = int(os.environ.get("ROUNDS", "20" if DEVICE.type == "cuda" else "3"))  # measured
SECONDS, POLL = 600, 1.0  # limit of a driver; between two samples of its memory
PFL_PROCESSES = (2, 4, 8)  # that share the GPU
PAGES = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
}  # as fedflow keeps them
OFFLINE = PAGES | {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
OFFLINE["PFL_PYTORCH_DEVICE"] = str(DEVICE)  # else it takes a GPU wherever there is one


class Unavailable(Exception):
    """A peer that cannot be installed or does not finish; says why."""


def main() -> dict[str, Any]:
    drivers, skipped = _drivers()
    measured: dict[str, Any] = {"steps_per_round": STEPS, "cohort": COHORT, "skipped": skipped}
    for clients in SIZES:
        print(f"{clients:,} clients, {COHORT} a round, {STEPS} client steps a round", flush=True)
        measured[f"clients_{clients}"] = _in_turn(clients, drivers, skipped)
    return measured


def _drivers() -> tuple[dict[str, list[str]], dict[str, str]]:
    """The command of every driver that can run, and why the others cannot."""
    here = [sys.executable, "-m"]
    own, skipped = [*here, "benchmarks.peers.fedflow_driver"], dict[str, str]()
    drivers = {"fedflow": own, "hand-written vmap": [*here, "benchmarks.peers.vmap_driver"]}
    if DEVICE.type == "cpu":
        drivers["fedflow, compiled"] = [*own, "compiled"]
    else:
        drivers["hand-written streams"] = [*here, "benchmarks.peers.streams_driver"]
    for peer in PEERS:
        try:
            drivers[peer] = [str(_environment(peer)), "-m", f"benchmarks.peers.{peer}_driver"]
        except Unavailable as problem:
            _skip(skipped, peer, f"cannot be installed: {problem}")
    for processes in PFL_PROCESSES if DEVICE.type == "cuda" and "pfl" in drivers else ():
        several = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes), "-m"]
        drivers[f"pfl, {processes} processes"] = [
            drivers["pfl"][0],
            *several,
            "benchmarks.peers.pfl_processes",
        ]
    return drivers, skipped


def _in_turn(clients: int, drivers: dict[str, list[str]], skipped: dict[str, str]) -> dict[str, Any]:
    bare = [sys.executable, "-m", "benchmarks.peers.eager_driver"]
    rates: dict[str, list[float]] = {name: [] for name in ("hand-written loop", *drivers)}
    ratios: dict[str, list[float]] = {name: [] for name in drivers}
    measured: dict[str, dict[str, Any]] = {}
    for _ in range(TURNS):
        before = _drive(bare, clients)
        for name, command in drivers.items():
            if name in skipped:
                continue
            try:
                ran = _drive(command, clients)
            except Unavailable as problem:
                _skip(skipped, name, str(problem))
                continue
            after = _drive(bare, clients)
            rates[name] += ran["rates"]
            rates["hand-written loop"] += after["rates"]
            around = statistics.mean(statistics.median(one["rates"]) for one in (before, after))
            ratios[name].append(statistics.median(ran["rates"]) / around)
            before = after
            measured |= {name: ran, "hand-written loop": after}
    found = {}
    for name, values in rates.items():
        if not values:
            continue
        ran = measured[name]
        ratio = statistics.median(ratios[name]) if name in ratios else 1.0
        found[name] = {
            "package": ran["package"],
            "torch": ran["torch"],
            "client_steps_per_second": significant(statistics.median(values)),
            "spread": [significant(min(values)), significant(max(values))],
            "against_hand_written": significant(ratio),
            "warm_up_seconds": significant(sum(ran["warm_up_seconds"])),
            "peak_memory_mib": ran["peak_memory_mib"],
        }
        print(
            f"{name:18} {spread(values)} client steps/s   ratio {ratio:.3f}   "
            f"peak {ran['peak_memory_mib']} MiB   {ran['package'] or ''}",
            flush=True,
        )
    ours = found["fedflow"]["against_hand_written"] if "fedflow" in found else None
    for peer in set(found) - {"hand-written loop"}:
        if ours and not peer.startswith("fedflow"):
            found[peer]["fedflow_is_times_as_fast"] = significant(ours / found[peer]["against_hand_written"])
    return found


def _drive(command: list[str], clients: int) -> dict[str, Any]:
    """What one driver printed, its rates in client steps per second, and its peak memory."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | OFFLINE | {"PYTHONPATH": str(ROOT), "FLWR_HOME": folder}
        with (Path(folder) / "errors").open("w+") as errors:
            process = subprocess.Popen(
                [*command, "--clients", str(clients), "--rounds", str(ROUNDS)],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
                env=environment,
                start_new_session=True,  # Linux shares a busy machine by session, and Ray starts new ones
            )
            memory = _Memory(process.pid)
            memory.start()
            try:
                printed, _ = process.communicate(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                for one in (*psutil.Process(process.pid).children(recursive=True), process):
                    one.kill()
                process.communicate()
                raise Unavailable(f"did not finish in {SECONDS} s") from None
            finally:
                memory.end()
            errors.seek(0)
            lines = [line for line in errors.read().splitlines() if line.strip()]
    if process.returncode:
        raise Unavailable(f"ended with exit status {process.returncode}: {lines[-1] if lines else '?'}")
    measured = json.loads(printed.splitlines()[-1])
    if measured["steps"] != [STEPS] * ROUNDS:
        raise Unavailable(f"trained {measured['steps']} client steps a round, not {STEPS}")
    measured["rates"] = [STEPS / seconds for seconds in measured["seconds"]]
    measured["peak_memory_mib"] = round(memory.peak / 2**20)
    return measured


class _Memory(threading.Thread):
    """Peak of the resident memory of a process and its descendants; shared pages are counted once (PSS)."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.peak, self.ended = pid, 0, threading.Event()

    def run(self) -> None:
        while not self.ended.wait(POLL):
            try:
                root = psutil.Process(self.pid)
                everyone = [root, *root.children(recursive=True)]
            except psutil.Error:
                continue
            total = 0
            for process in everyone:
                try:
                    total += process.memory_full_info().pss
                except (psutil.Error, OSError):
                    continue  # it has just ended
            self.peak = max(self.peak, total)

    def end(self) -> None:
        self.ended.set()
        self.join()


def _environment(peer: str) -> Path:
    """The Python of the peer's environment, which is rebuilt unless it has the pinned versions."""
    pinned, folder = (HERE / f"{peer}.txt").read_text(), ENVIRONMENTS / peer
    python, stamp = folder / "bin" / "python", folder / "installed.txt"
    if stamp.exists() and stamp.read_text() == pinned:
        return python
    print(f"installing {peer} in .bench/{peer}", flush=True)
    uv = [sys.executable, "-m", "uv"]
    for command in (
        [*uv, "venv", "-q", "--clear", "--python", sys.executable, str(folder)],
        [*uv, "pip", "install", "-q", "--python", str(python), "-r", str(HERE / f"{peer}.txt")],
    ):
        certificates = os.environ | {"UV_SYSTEM_CERTS": "1"}
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=certificates)
        if done.returncode:
            said = " ".join(line.strip(" ╰─▶×") for line in done.stderr.splitlines())
            raise Unavailable(said[:200] or f"exit status {done.returncode}")
    stamp.write_text(pinned)
    return python


def _skip(skipped: dict[str, str], name: str, reason: str) -> None:
    skipped[name] = reason
    print(f"{name}: skipped: {reason}", flush=True)
