"""Rounds on one worker and on two, in turn: Prefect's threads and processes, as ``engine`` sets them."""

import time
from typing import Any

from benchmarks.flow import prepared
from benchmarks.workload import spread, summary

WORKERS, WARM_UP, ROUNDS, TARGET = 2, 2, 6, 1.8


def main() -> dict[str, Any]:
    with prepared() as experiment:
        told = {}
        for kind in ("threads", "processes"):
            pairs = _pairs(experiment, kind)
            ratios = [one / two for one, two in pairs]
            print(f"{kind:9}  one worker   {spread([one for one, _ in pairs])} s a round")
            print(f"{'':9}  two workers  {spread([two for _, two in pairs])} s a round")
            target = f"   target: at least {TARGET}" if kind == "processes" else ""
            print(f"{'':9}  ratio        {spread(ratios)}{target}", flush=True)
            told[kind] = {
                "one_worker_seconds": summary([one for one, _ in pairs]),
                "two_workers_seconds": summary([two for _, two in pairs]),
                "ratio": summary(ratios),
            }
    return told | {"target": TARGET}


def _pairs(experiment: Any, kind: str) -> list[tuple[float, float]]:
    from prefect import flow

    from fedflow.simulation.rounds import Simulation
    from tasks.shards import PrefectExecutor

    @flow
    def in_turn() -> list[tuple[float, float]]:
        with PrefectExecutor(kind, 1) as one, PrefectExecutor(kind, WORKERS) as two:
            runs = [Simulation(experiment.job, experiment.params.run, e).rounds() for e in (one, two)]
            pairs = []
            for _ in range(WARM_UP + ROUNDS):
                started = time.perf_counter()
                next(runs[0])
                middle = time.perf_counter()
                next(runs[1])
                pairs.append((middle - started, time.perf_counter() - middle))
        return pairs[WARM_UP:]

    return in_turn()


if __name__ == "__main__":
    main()
