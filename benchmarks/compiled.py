"""Gain and costs of compiled steps by processor time: steps in turn in one process, start-up in processes.

The compiler's time includes the C++ compiler's. A start from disk is what a process that finds the code
pays more than one that does not compile. The crossing is the number of steps from which compiling pays;
`auto` should compile from about twice as many.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from dataclasses import replace
from typing import Any

from benchmarks.workload import TRAINING, federation, significant, spread, summary

NETWORKS, TURNS, CLIENTS, SAMPLES = ("lenet5", "cnn_pfl"), 7, 2, 200


def start(network: str, *folder: str) -> None:
    """Prepare the first step of a process, with compiled steps from ``folder`` if given."""
    import torch

    from fedflow.local.fast.compiled import compiled_gradient

    torch.set_num_threads(1)
    work = federation(1, TRAINING.batch_size, network)
    for place in folder:
        if compiled_gradient(work.model, work.train, TRAINING, place) is None:
            sys.exit("the compiler failed")


def process(*words: str) -> float:
    """Processor seconds of `start` in a new process and its child processes."""
    import resource

    def used() -> float:
        facts = resource.getrusage(resource.RUSAGE_CHILDREN)
        return facts.ru_utime + facts.ru_stime

    before = used()
    subprocess.run(
        [sys.executable, "-m", "benchmarks.compiled", *words], check=True, stderr=subprocess.DEVNULL
    )
    return used() - before


def steps(network: str, folder: str) -> tuple[dict[str, list[float]], int]:
    """Milliseconds of local steps, plain and compiled in turn, and the steps from which `auto` compiles."""
    import torch

    from fedflow.local.fast.compiled import pays
    from fedflow.methods import build_method
    from fedflow.simulation.job import Job, Shard
    from fedflow.simulation.worker import train_shard

    torch.set_num_threads(1)
    work, count = federation(CLIENTS, SAMPLES, network), CLIENTS * SAMPLES // TRAINING.batch_size
    shard = Shard(1, [*range(CLIENTS)], [work.model.init(0)], [{"model": 0}] * CLIENTS, [{}] * CLIENTS)
    times: dict[str, list[float]] = {"plain": [], "compiled": []}
    plain = Job(work, build_method("fedavg"), TRAINING, seed=0, cohort="loop")
    jobs = {"plain": plain, "compiled": replace(plain, compiled=folder)}
    for turn in range(1 + TURNS):
        for way, job in jobs.items():
            started = time.process_time()
            train_shard(job, shard)
            if turn:  # the first warms up
                times[way].append(1000 * (time.process_time() - started) / count)
    thousands = range(1, 10_000)
    first = bisect_left(thousands, True, key=lambda n: pays(work.model, work.train, TRAINING, 1000 * n)[0])
    return times, 1000 * thousands[first]


def main() -> dict[str, Any]:
    measured: dict[str, Any] = {}
    for network in NETWORKS:
        with tempfile.TemporaryDirectory() as folder:
            bare = [process(network)]
            compiler = process(network, folder) - bare[0]
            disk = []
            for _ in range(3):
                bare.append(process(network))
                disk.append(process(network, folder) - bare[-1])
            times, auto = steps(network, folder)
        ratios = [plain / own for plain, own in zip(times["plain"], times["compiled"])]
        gain = statistics.median(plain - own for plain, own in zip(times["plain"], times["compiled"]))
        crossing = round(1000 * compiler / gain)
        print(
            f"{network}: a step {spread(times['plain'])} ms plain, {spread(times['compiled'])} compiled, "
            f"ratio {spread(ratios)}\n"
            f"{network}: the compiler {compiler:.1f} s, a start from disk {spread(disk)} s\n"
            f"{network}: compiling pays from {crossing:,} steps; auto compiles from {auto:,}",
            flush=True,
        )
        measured[network] = {way: summary(own) for way, own in times.items()} | {
            "ratio": summary(ratios),
            "compiler_s": significant(compiler),
            "disk_s": summary(disk),
            "pays_from_steps": crossing,
            "auto_from_steps": auto,
        }
    return measured


if __name__ == "__main__":
    start(*sys.argv[1:])
