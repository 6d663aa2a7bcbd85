"""A network of 100 M parameters, of which 1,000 clients keep one each: time, memory and disk of its rounds.

Ditto with 4 clients a round, one batch of 20 images each for the common and for the personal model. Whatever
the number of clients, memory holds the rows of a cohort, and a round writes these rows once.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.memory import peak_memory, separately

CLIENTS, COHORT, ROUNDS, SAMPLES, WIDTHS = 1000, 4, 4, 20, (8600, 8600)


def one() -> dict[str, Any]:
    """The measurements of the rounds, run in this process."""
    import torch

    from benchmarks.workload import federation, significant
    from fedflow.local.local_training import LocalTraining
    from fedflow.methods import build_method
    from fedflow.simulation.job import Job
    from fedflow.simulation.loop import Simulation
    from fedflow.simulation.settings import RunSettings

    torch.set_num_threads(1)
    work = federation(CLIENTS, SAMPLES, "mlp", images=1000, hidden=WIDTHS)
    settings = RunSettings(
        rounds=ROUNDS,
        participation=COHORT / CLIENTS,
        checkpoint_every=2,
        evaluate_every=ROUNDS,
        evaluate_clients=COHORT,
        fine_tune=False,
    )
    training = LocalTraining(epochs=1, batch_size=SAMPLES, lr=0.01)
    with tempfile.TemporaryDirectory() as folder:
        simulation = Simulation(
            Job(work, build_method("ditto"), training, seed=0), settings, checkpoints=Path(folder)
        )
        seconds, gib = [], []
        rounds = simulation.rounds()
        for _ in range(ROUNDS):
            started, before = time.perf_counter(), _rows(folder)
            next(rounds)
            seconds.append(time.perf_counter() - started)
            gib.append((_rows(folder) - before) / 2**30)
    return {
        "parameters": work.model.parameters,
        "clients": CLIENTS,
        "cohort": COHORT,
        "seconds_per_round": [significant(each) for each in seconds],
        "rows_gib_per_round": [significant(each) for each in gib],
        "row_gib": significant(4 * work.model.size / 2**30),
        "peak_gib": significant(peak_memory() / 1024),
    }


def _rows(folder: str) -> int:
    """Bytes of the rows of all clients."""
    return sum(path.stat().st_size for path in Path(folder).rglob("*.bin"))


def main() -> dict[str, Any]:
    found: dict[str, Any] = separately("large.one()")
    seconds = ", ".join(f"{each:.1f}" for each in found["seconds_per_round"])
    rows = ", ".join(f"{each:.2f}" for each in found["rows_gib_per_round"])
    print(f"{found['parameters']:,} parameters, {CLIENTS:,} clients, {COHORT} a round")
    print(f"  seconds of each round    {seconds} (the last one evaluates)")
    print(
        f"  GiB of rows written      {rows} ({found['row_gib']:.2f} a row; "
        f"{CLIENTS * found['row_gib']:.0f} for all clients)"
    )
    print(f"  peak memory              {found['peak_gib']:.1f} GiB", flush=True)
    return found
