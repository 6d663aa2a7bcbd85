"""Processor seconds of `fedflow report` and `fedflow ls` over records of 200 and 2,000 small runs.

A few real runs are copied under other names of methods and seeds, a hundred seeds of every method.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

COUNTS, SEEDS, REAL = (200, 2000), 100, 3  # runs, seeds of a method, and seeds that are really run
METHODS = ("fedavg", "ditto", "ifca", "scaffold")
PARAMS: dict[str, Any] = {
    "data": {"digits": {"source": "digits"}},
    "models": {"digits": {"name": "mlp", "options": {"hidden": [16]}}},
    "partitions": {"few": {"dataset": "digits", "scheme": "dirichlet", "alpha": 0.5, "clients": 20}},
    "training": {"epochs": 1, "batch_size": 16, "lr": 0.1},
    "run": {"rounds": 20, "participation": 0.2, "evaluate_every": 1},
    "methods": {name: {} for name in METHODS},
    "grid": {"datasets": ["digits"], "partitions": ["few"], "methods": [*METHODS], "seeds": [*range(REAL)]},
    "engine": {"executor": "inline"},
}


def copied(runs: Path, count: int) -> None:
    """Fill the folder ``runs`` of one partition, which has the real runs, up to ``count`` runs."""
    wanted = [(method, k, seed) for k in range(count) for method in METHODS for seed in range(SEEDS)]
    for method, k, seed in wanted[:count]:
        folder = runs / (f"{method}-{k}" if k else method) / str(seed)
        if not folder.exists():
            shutil.copytree(runs / method / str(seed % REAL), folder)
            metrics = json.loads((folder / "metrics.json").read_text())
            metrics |= {"method": folder.parent.name, "seed": seed}
            (folder / "metrics.json").write_text(json.dumps(metrics))


def seconds(call: Callable[[], Any]) -> float:
    """Processor seconds of a call."""
    started = time.process_time()
    with redirect_stdout(StringIO()):
        call()
    return time.process_time() - started


def main() -> dict[str, Any]:
    from fedflow.cli.finished import ls
    from fedflow.stages.report import write_report

    measured = {}
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        Path("params.yaml").write_text(json.dumps(PARAMS))  # JSON is YAML
        subprocess.run([sys.executable, "-m", "fedflow.cli", "sweep", "--jobs", "1"], check=True)
        write_report()  # imports, and fonts of pictures
        for count in COUNTS:
            copied(Path("results") / "few", count)
            row = {"ls_seconds": seconds(lambda: ls(as_json=True)), "report_seconds": seconds(write_report)}
            print(
                f"{count:,} runs", ", ".join(f"{name} {value:.2f}" for name, value in row.items()), flush=True
            )
            measured[str(count)] = {name: round(value, 2) for name, value in row.items()}
    return measured


if __name__ == "__main__":
    main()
