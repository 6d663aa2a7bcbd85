"""Processor seconds of `fedflow report` and `fedflow ls` over records of 200 and 2,000 small runs.

A few real runs are copied under other names of methods and seeds, ten seeds of every method. With
``BENCH_BEFORE``, the path of an earlier checkout, both are measured in turns, and ratios printed.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import chdir
from pathlib import Path
from statistics import median
from typing import Any

COUNTS, SEEDS, REAL = (200, 2000), 10, 3  # runs, seeds of a method, and seeds that are really run
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
HERE, TURNS = Path(__file__).parents[1], 3
COMMANDS = """
import contextlib, io, json, time
from fedflow.cli.finished import ls
from fedflow.stages.report import write_report
commands = {"ls": lambda: ls(as_json=True), "table": ls, "report": write_report}
seconds = {}
for command in commands.values():  # imports, fonts and caches
    with contextlib.redirect_stdout(io.StringIO()):
        command()
for name, command in commands.items():
    started = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        command()
    seconds[name] = time.process_time() - started
print(json.dumps(seconds))
"""


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


def seconds(code: Path) -> dict[str, float]:
    """Processor seconds of the commands in this folder, with the code of a checkout."""
    python = [sys.executable, "-c", COMMANDS]
    environment = os.environ | {"PYTHONPATH": str(code)}
    done = subprocess.run(python, env=environment, check=True, capture_output=True, text=True)
    last: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return last


def main() -> dict[str, Any]:
    before, measured = os.environ.get("BENCH_BEFORE"), {}
    checkouts = [HERE, *([Path(before).resolve()] if before else [])]
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        Path("params.yaml").write_text(json.dumps(PARAMS))  # JSON is YAML
        subprocess.run([sys.executable, "-m", "fedflow.cli", "sweep", "--jobs", "1"], check=True)
        for count in COUNTS:
            copied(Path("results") / "few", count)
            turns = [[seconds(code) for code in checkouts] for _ in range(TURNS)]
            row = {f"{n}_seconds": round(median(turn[0][n] for turn in turns), 2) for n in turns[0][0]}
            for name in turns[0][0] if before else ():
                row[f"{name}_ratio"] = round(median(turn[1][name] / turn[0][name] for turn in turns), 2)
            words = ", ".join(f"{name} {value:.2f}" for name, value in row.items())
            print(f"{count:,} runs", words, flush=True)
            measured[str(count)] = row
    return measured


if __name__ == "__main__":
    main()
