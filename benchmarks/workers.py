"""Rounds on one worker and on two, in turn: Prefect's threads and processes, as ``engine`` sets them.

With few and with many local epochs, because the overhead of a round is the same.
"""

import time
from dataclasses import replace
from itertools import product
from typing import Any

from benchmarks.flow import prepared
from benchmarks.workload import spread, summary

WORKERS, WARM_UP, TARGET = 2, 2, 1.8
ROUNDS = {2: 6, 10: 4}  # by local epochs


def main() -> dict[str, Any]:
    with prepared() as experiment:
        measured = {}
        for epochs, kind in product(ROUNDS, ("threads", "processes")):
            pairs = _pairs(experiment, kind, epochs)
            ratios = [one / two for one, two in pairs]
            print(f"{epochs} epochs, {kind}")
            print(f"  one worker   {spread([one for one, _ in pairs])} s a round")
            print(f"  two workers  {spread([two for _, two in pairs])} s a round")
            target = f"   target: at least {TARGET}" if kind == "processes" else ""
            print(f"  ratio        {spread(ratios)}{target}", flush=True)
            measured[f"{kind}, {epochs} epochs"] = {
                "one_worker_seconds": summary([one for one, _ in pairs]),
                "two_workers_seconds": summary([two for _, two in pairs]),
                "ratio": summary(ratios),
            }
    return measured | {"target": TARGET}


def _pairs(experiment: Any, kind: str, epochs: int) -> list[tuple[float, float]]:
    from prefect import flow

    from fedflow.local.local_training import LocalTraining
    from fedflow.simulation.loop import Simulation
    from tasks.shards import PrefectExecutor

    @flow
    def in_turn() -> list[tuple[float, float]]:
        with PrefectExecutor(kind, 1) as one, PrefectExecutor(kind, WORKERS) as two:
            training = LocalTraining.parse(experiment.job.training.as_dict() | {"epochs": epochs})
            job = replace(experiment.job, training=training)
            runs = [Simulation(job, experiment.run, e).rounds() for e in (one, two)]
            pairs = []
            for _ in range(WARM_UP + ROUNDS[epochs]):
                started = time.perf_counter()
                next(runs[0])
                middle = time.perf_counter()
                next(runs[1])
                pairs.append((middle - started, time.perf_counter() - middle))
        return pairs[WARM_UP:]

    return in_turn()
