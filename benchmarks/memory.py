"""Peak memory of a run with 1,000 clients, 50 per round: stateless, and with a vector per client in files."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CLIENTS, SAMPLES = 1000, 50


def peak_memory() -> float:
    """Peak resident memory of this process, MiB (Linux; ``getrusage`` would count the parent's too)."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def separately(call: str) -> Any:
    """The JSON value of the call ``MODULE.FUNCTION(..)`` of a benchmark in a new process."""
    code = f"import json; from benchmarks import {call.partition('.')[0]}; print(json.dumps({call}))"
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def one(method: str) -> dict[str, int]:
    """Peak resident memory of this process in two rounds of one method, and that before."""
    import torch

    from benchmarks.workload import TRAINING, federation
    from fedflow.methods import build_method
    from fedflow.simulation.job import Job
    from fedflow.simulation.loop import Simulation
    from fedflow.simulation.settings import RunSettings

    torch.set_num_threads(1)
    work = federation(CLIENTS, SAMPLES)
    before = peak_memory()
    settings = RunSettings(rounds=2, participation=0.05, fine_tune=False, checkpoint_every=1)
    with tempfile.TemporaryDirectory() as folder:
        job = Job(work, build_method(method), TRAINING, seed=0)
        for _ in Simulation(job, settings, checkpoints=Path(folder)).rounds():
            pass
    return {"peak_mib": round(peak_memory()), "before_mib": round(before)}


def main() -> dict[str, Any]:
    measured = {}
    for method in ("fedavg", "scaffold", "ditto"):
        measured[method] = found = separately(f"memory.one({method!r})")
        base = f"{found['before_mib']} MiB are Python, torch and {CLIENTS * SAMPLES:,} images"
        print(f"{method:10} peak {found['peak_mib']} MiB, of which {base}", flush=True)
    return measured
