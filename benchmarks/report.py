"""Processor seconds of commands over records of 200 and 2,000 small runs, and over runs that are large.

A few real runs are copied under other names of methods and seeds, ten seeds of every method, also in MLflow.
With ``BENCH_BEFORE``, the path of an earlier checkout, both are measured in turns, and ratios printed. The
large runs have 2,000 rounds, tables of 10,000 clients, and partitions of 100,000.
"""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import chdir
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

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
from fedflow.cli.finished import compare, ls, show
from fedflow.stages.report import write_report
commands = {
    "ls": lambda: ls(as_json=True), "table": ls, "show": lambda: show("few/fedavg/0"),
    "compare": lambda: compare(["few/fedavg", "few/ditto"]), "report": write_report,
}
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

LARGE: dict[str, Any] = PARAMS | {
    "data": {"rows": {"source": "npz", "path": "rows.npz"}},
    "models": {"rows": {"name": "mlp", "options": {"hidden": [8]}}},
    "partitions": {
        name: {"dataset": "rows", "scheme": "iid", "clients": clients}
        for name, clients in (("ten", 10_000), ("hundred", 100_000))
    },
    "training": {"epochs": 1, "batch_size": 10, "lr": 0.05},
    "run": {"rounds": 2000, "participation": 0.001, "evaluate_clients": 10, "checkpoint_every": 100},
    "grid": {"datasets": ["rows"], "partitions": ["ten"], "methods": ["fedavg"], "seeds": [0]},
}
SHORT = ["--set", "run.rounds=2", "--set", "run.evaluate_clients=null", "--set", "run.fine_tune=false"]
STEPS = {  # commands on large runs
    "partition of 100,000 clients": "partition hundred".split(),
    "2,000 rounds of 10 clients, all evaluated": "run --partition ten --method fedavg".split(),
    "2 rounds, 10,000 clients scored": ["run", "--partition", "ten", "--method", "ditto", *SHORT],
    "2 rounds, 100,000 clients scored": ["run", "--partition", "hundred", "--method", "fedavg", *SHORT],
    "`fedflow show` of 2,000 rounds": "show ten/fedavg/0".split(),
    "`fedflow ls` of these runs": ["ls"],
    "`fedflow report` on these runs": ["report"],
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


def recorded(store: Path, count: int) -> None:
    """Fill MLflow's database up to ``count`` runs with copies, under other ids and keys."""
    with sqlite3.connect(store) as database:
        tables = ("runs", "tags", "params", "metrics", "latest_metrics")
        columns = {
            table: [row[1] for row in database.execute(f"pragma table_info({table})")] for table in tables
        }
        runs = [row[0] for row in database.execute("select run_uuid from tags where key = 'fedflow.key'")]
        (there,) = database.execute("select count(*) from runs").fetchone()
        for i in range(count - there):
            name = f"{i:032x}"
            for table, names in columns.items():
                values = ", ".join("?" if column == "run_uuid" else f'"{column}"' for column in names)
                copy = f"insert or ignore into {table} select {values} from {table} where run_uuid = ?"
                database.execute(copy, (name, runs[i % len(runs)]))
            database.execute(
                "update tags set value = ? where run_uuid = ? and key = 'fedflow.key'", (name[8:], name)
            )
            methods = "update tags set value = value || ? where run_uuid = ? and key = 'method'"
            database.execute(methods, (f"-{1 + i // len(runs)}", name))


def large() -> dict[str, Any]:
    """Processor seconds and peak memory, in MiB, of the commands in `STEPS`; the size of the page."""
    rng, measured = np.random.default_rng(0), dict[str, Any]()
    x, y = rng.standard_normal((200_000, 8), dtype=np.float32), np.arange(200_000) % 10
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        np.savez("rows.npz", x_train=x, y_train=y, x_test=x[:1000], y_test=y[:1000])
        data = {"rows": {"source": "npz", "path": str(Path("rows.npz").resolve())}}
        Path("params.yaml").write_text(json.dumps(LARGE | {"data": data}))
        for name, arguments in STEPS.items():
            program = subprocess.Popen(
                [sys.executable, "-m", "fedflow.cli", *arguments], stdout=subprocess.DEVNULL
            )
            _, status, used = os.wait4(program.pid, 0)
            if status:
                raise RuntimeError(f"fedflow {' '.join(arguments)} failed")
            row = {"seconds": round(used.ru_utime + used.ru_stime, 1), "mib": round(used.ru_maxrss / 1024)}
            print(name, row, flush=True)
            measured[name] = row
        measured["page_mb"] = round(Path("report/index.html").stat().st_size / 1e6, 2)
    return measured


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
            recorded(Path("mlruns") / "mlflow.db", count)
            turns = [[seconds(code) for code in checkouts] for _ in range(TURNS)]
            row = {f"{n}_seconds": round(median(turn[0][n] for turn in turns), 2) for n in turns[0][0]}
            for name in turns[0][0] if before else ():
                row[f"{name}_ratio"] = round(median(turn[1][name] / turn[0][name] for turn in turns), 2)
            row["page_mb"] = round(Path("report/index.html").stat().st_size / 1e6, 2)
            words = ", ".join(f"{name} {value:.2f}" for name, value in row.items())
            print(f"{count:,} runs", words, flush=True)
            measured[str(count)] = row
    return measured | {"large": large()}
