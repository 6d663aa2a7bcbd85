"""A whole run (Prefect, MLflow, checkpoint, progress) against the bare engine, in turn.

Rounds of a second on a CPU, and rounds of 40 ms on a device that is a stub: it sleeps.
"""

import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.workload import spread, summary

if TYPE_CHECKING:
    from fedflow.experiment import Experiment

ROUNDS = 14
REPEATS, SHORT, DEVICE = 5, 200, 0.04  # runs of short rounds, their rounds, and seconds of a device in one
PARAMS: dict[str, Any] = {
    "data": {"mnist5k": {"source": "mnist5k"}},
    "models": {"mnist5k": "lenet5"},
    "partitions": {"iid": {"dataset": "mnist5k", "scheme": "iid", "clients": 10}},
    "training": {"epochs": 2, "batch_size": 10, "lr": 0.02},
    "run": {
        "rounds": ROUNDS,
        "participation": 1.0,
        "evaluate_every": ROUNDS,
        "checkpoint_every": 1,
        "fine_tune": False,
    },
    "grid": {"datasets": ["mnist5k"], "partitions": ["iid"], "methods": ["fedavg"], "seeds": [0]},
    "engine": {"executor": "threads", "workers": 1},
}


@contextmanager
def prepared() -> Iterator["Experiment"]:
    """The experiment of `PARAMS` with its data, in a temporary folder, and a Prefect server."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        Path("params.yaml").write_text(json.dumps(PARAMS))  # JSON is YAML
        os.environ |= {
            "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "WARNING",
            "PREFECT_LOGGING_TO_API_ENABLED": "false",
        }
        import torch

        from fedflow.config import load_params
        from fedflow.experiment import Experiment
        from fedflow.stages.partition import prepare_partition
        from fedflow.stages.prepare import prepare_dataset
        from flows.server import prefect_api, stop

        torch.set_num_threads(1)
        params, root = load_params(), Path(folder)
        prepare_dataset(params, "mnist5k", root)
        prepare_partition(params, "iid", root)
        try:
            with prefect_api():
                yield Experiment(params, "iid", "fedavg", 0, root)
        finally:
            stop()


def main() -> dict[str, Any]:
    with prepared() as experiment:
        pairs = _pairs(experiment)[1:]
        short = [_short(experiment, number) for number in range(REPEATS)]
    measured = {}
    for name, found, target in (
        ("rounds of a second", pairs, "at most 1.05"),
        (f"rounds of {1000 * DEVICE:.0f} ms on a device", short, "at most 1.2"),
    ):
        bare, whole, ratios = [a for a, _ in found], [b for _, b in found], [b / a for a, b in found]
        print(name)
        print(f"  bare engine  {spread(bare)} s a round")
        print(f"  whole flow   {spread(whole)} s a round")
        print(f"  ratio        {spread(ratios)}   target: {target}")
        measured[name] = {
            "bare_seconds": summary(bare), "flow_seconds": summary(whole), "ratio": summary(ratios),
        }  # fmt: skip
    first, second = measured.values()
    return {**first, "target": 1.05, "short_rounds": {**second, "target": 1.2}}


def _short(experiment: "Experiment", number: int) -> tuple[float, float]:
    """Seconds of a round of the bare engine and of a whole run, on a device that only takes time."""
    from dataclasses import replace

    from prefect import flow

    from fedflow.simulation.loop import Simulation
    from fedflow.tracking import open_run
    from tasks.gpu import OneGpu, in_blocks
    from tasks.progress import PrefectProgress

    class Device(OneGpu):
        """Trains and evaluates once; from then on it sleeps, and returns the same results."""

        def __init__(self) -> None:
            self.done: dict[Any, list[Any]] = {}

        def map(self, work: Any, job: Any, shards: Any, title: str) -> list[Any]:
            if work not in self.done:
                self.done[work] = super().map(work, job, shards, title)
            time.sleep(DEVICE)
            return self.done[work]

    device, root = Device(), experiment.root
    settings = replace(experiment.run, rounds=SHORT, evaluate_every=10, checkpoint_every=5)

    def seconds(rounds: Iterator[Any], each: Any = None) -> float:
        started = time.perf_counter()
        for report in rounds:
            if each is not None:
                each(report)
        return (time.perf_counter() - started) / SHORT

    @flow
    def whole() -> float:
        with PrefectProgress(experiment) as progress:
            run = Simulation(experiment.job, settings, device, checkpoints=root / f"short-{number}")
            key = f"short {number}"
            record = open_run(
                root, experiment="benchmark", name=key, key=key, params=experiment.params.as_dict()
            )

            def each(report: Any) -> None:
                record.round(report)
                progress.round(report, SHORT)

            with record:
                taken = seconds(in_blocks(run.rounds()), each)
                record.flush()
                record.finish(run.outcome())
        return taken

    for _ in range(2):  # the first one trains
        bare = seconds(Simulation(experiment.job, settings, device).rounds())
    return bare, whole()


def _pairs(experiment: "Experiment") -> list[tuple[float, float]]:
    from prefect import flow

    from fedflow.simulation.executors import Inline
    from fedflow.simulation.loop import Simulation
    from fedflow.tracking import open_run
    from tasks.progress import PrefectProgress
    from tasks.shards import executor_for

    params, root = experiment.params, experiment.root

    @flow
    def in_turn() -> list[tuple[float, float]]:
        with executor_for(params.engine) as executor, PrefectProgress(experiment) as progress:
            whole = Simulation(experiment.job, experiment.run, executor, checkpoints=root / "checkpoints")
            bare = Simulation(experiment.job, experiment.run, Inline())
            record = open_run(
                root, experiment="benchmark", name="flow", key=whole.fingerprint, params=params.as_dict()
            )
            pairs = []
            with record:
                rounds, plain = whole.rounds(), bare.rounds()
                for _ in range(ROUNDS):
                    started = time.perf_counter()
                    next(plain)
                    middle = time.perf_counter()
                    report = next(rounds)
                    record.round(report)
                    progress.round(report, ROUNDS)
                    pairs.append((middle - started, time.perf_counter() - middle))
                record.finish(whole.outcome())
        return pairs

    return in_turn()


if __name__ == "__main__":
    main()
