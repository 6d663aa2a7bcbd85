"""A whole run (Prefect, MLflow, checkpoint, progress) against the bare engine, round by round in turn."""

import json
import os
import tempfile
import time
from contextlib import chdir
from pathlib import Path

from benchmarks.workload import spread

ROUNDS = 14
PARAMS = {
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


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        Path("params.yaml").write_text(json.dumps(PARAMS))  # JSON is YAML
        os.environ |= {
            "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "WARNING",
            "PREFECT_LOGGING_TO_API_ENABLED": "false",
        }
        from flows.server import prefect_api, stop

        with prefect_api():
            _measure(Path(folder))
        stop()


def _measure(root: Path) -> None:
    import torch
    from prefect import flow

    from fedflow.config import load_params
    from fedflow.experiment import Experiment, prepare_dataset, prepare_partition
    from fedflow.simulation.executors import Inline
    from fedflow.simulation.rounds import Simulation
    from fedflow.tracking import open_run
    from tasks.progress import PrefectProgress
    from tasks.shards import executor_for

    torch.set_num_threads(1)
    params = load_params()
    experiment = Experiment(params, "iid", "fedavg", 0, root)
    prepare_dataset(params, "mnist5k", root)
    prepare_partition(params, "iid", root)

    @flow
    def in_turn() -> list[tuple[float, float]]:
        with executor_for(params.engine) as executor, PrefectProgress(experiment) as progress:
            whole = Simulation(experiment.job, params.run, executor, checkpoints=root / "checkpoints")
            bare = Simulation(experiment.job, params.run, Inline())
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

    pairs = in_turn()[1:]
    print(f"bare engine  {spread([a for a, _ in pairs])} s a round")
    print(f"whole flow   {spread([b for _, b in pairs])} s a round")
    print(f"ratio        {spread([b / a for a, b in pairs])}   target: at most 1.10 on rounds of 1 s or more")


if __name__ == "__main__":
    main()
