"""Compares current and earlier code on a sample of rows, after a change that should alter no number.

``git worktree add ../earlier COMMIT; python studies/recompute.py ../earlier`` takes all studies; names of
studies after it, only these. A change of a module makes the rows of ``results.csv`` of all runs that import
it outdated. Of all rows of the same methods, network and code, the quickest two of different settings
are computed by both codes side by side, without those that took more than ``--seconds N``. If all of their
numbers of every round and client are equal, the rows of this code hold again: the column ``equal_code``
gets the digest of the current code. COMMIT has the code of the rows, or the one in their ``equal_code``. If
one number differs, it is named, the rows stay outdated, and both results stay in ``.fedflow/recompute`` of
the study: run it again. ``--set KEY=VALUE`` changes ``params.yaml`` for both codes, as the sweep of rows with
changed settings. ``--rounds N`` computes N rounds of every run, each with an evaluation; ``--sample N`` takes
N rows of each code.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from fedflow.claims.results import CHANGES, CODE, DIGITS, EQUAL, read_results
from fedflow.claims.sources import RESULTS
from fedflow.config import PARAMS
from fedflow.finished.tables import write_csv
from fedflow.project.identity import FILE, Identity
from fedflow.stages.current import current_code, holds

HERE = Path(__file__).resolve().parent
FOLDER = Path(".fedflow") / "recompute"
SETTINGS = (FILE, "params.json")  # files that name the code
CELL = ("kind", "partition", "method", "seed")

Row = dict[str, str]
Pairs = Iterator[tuple[Path, Path]]


def code_of(row: Row) -> tuple[str, ...]:
    return tuple(row[name] for name in CODE)


def outdated(studies: Iterable[Path]) -> dict[tuple[str, ...], list[tuple[Path, Row]]]:
    """The rows that do not hold, with their studies, by the code that made them."""
    groups = defaultdict(list)
    for study in studies:
        for row in read_results(study):
            if not holds(row):
                groups[code_of(row)].append((study, row))
    return groups


def equal_codes() -> set[tuple[str, ...]]:
    """The earlier code of which a sample has shown that it gives the numbers of the current code."""
    rows = [row for file in HERE.glob(f"*/{RESULTS}") for row in read_results(file.parent)]
    return {code_of(row) for row in rows if row.get(EQUAL) and holds(row)}


def sample(rows: list[tuple[Path, Row]], seconds: float, changed: bool, most: int) -> list[tuple[Path, Row]]:
    """The quickest rows of different settings; with settings that are not in params.yaml if ``changed``."""
    chosen: dict[tuple[Path, str, str], tuple[Path, Row]] = {}
    for study, row in sorted(rows, key=lambda item: float(item[1]["seconds"] or "inf")):
        if bool(row.get(CHANGES)) <= changed and float(row["seconds"] or 0) <= seconds:
            chosen.setdefault((study, row["settings"], row["method"]), (study, row))
    return [*chosen.values()][:most]


def few(study: Path, rounds: int) -> list[str]:
    """Changes of ``params.yaml`` that give every run this number of rounds, each with an evaluation."""
    methods = yaml.safe_load((study / PARAMS).read_text()).get("methods") or {}
    sections = ["run", *(f"methods.{name}.run" for name, entry in methods.items() if "run" in (entry or {}))]
    values = {"rounds": rounds, "evaluate_every": 1, "checkpoint_every": rounds}
    return [f"{section}.{name}={value}" for section in sections for name, value in values.items()]


def compute(study: Path, checkout: Path, rows: list[Row], changes: Iterable[str]) -> Pairs:
    """Compute rows of a study by both codes; returns the folders of results, the earlier code's first.

    The same call resumes. Raises `SystemExit` if one of the two stops.
    """
    cells = json.dumps([[row[name] for name in CELL] for row in rows])
    roots, processes = [], []
    for name, code in (("earlier", checkout), ("now", HERE.parent)):
        root = study / FOLDER / name
        root.mkdir(parents=True, exist_ok=True)
        shutil.copy(study / PARAMS, root)
        command = [sys.executable, str(HERE / "compute.py"), str(root), cells, *changes]
        processes.append(subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(code.resolve())}))
        roots.append(root)
    stopped = [process.wait() for process in processes]
    if any(stopped):
        raise SystemExit(f"{study.name}: not computed")
    earlier, now = (map(Path, json.loads((root / "folders.json").read_text())) for root in roots)
    return zip(earlier, now, strict=True)


def numbers(folder: Path) -> dict[str, Any]:
    """The metrics of a result, the columns of its tables and digests of its other files, by file and name."""
    metrics = json.loads((folder / "metrics.json").read_text())
    facts = {f"metrics.json: {name}": value for name, value in metrics.items()}
    for file in folder.rglob("*"):
        if file.suffix in (".csv", ".parquet"):
            table = pd.read_csv(file) if file.suffix == ".csv" else pd.read_parquet(file)
            facts |= {f"{file.name}: {name}": table[name].tolist() for name in table}
        elif file.name not in SETTINGS and str(file.relative_to(folder)) in metrics.get("files", ()):
            facts[file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
    return {name: repr(value) for name, value in facts.items()}  # NaN equals itself


def differences(row: Row, earlier: Path, now: Path) -> list[str]:
    """Columns and metrics of a row that are not equal in both folders of results; empty if all are."""
    made = Identity.read(earlier)
    if not made or not Identity.read(now):
        return ["no result"]
    if made.code[:DIGITS] not in (row["code"], row.get(EQUAL)):
        return [f"its code is {row['code']}, the checkout's {made.code[:DIGITS]}"]
    old, new = numbers(earlier), numbers(now)
    return sorted(name for name in old | new if old.get(name) != new.get(name))


def main(
    checkout: Path,
    names: list[str],
    seconds: float = float("inf"),
    changes: Sequence[str] = (),
    most: int = 2,
    rounds: int | None = None,
) -> None:
    studies = [HERE / name for name in names] or sorted(file.parent for file in HERE.glob(f"*/{RESULTS}"))
    groups, shown = outdated(studies), equal_codes()
    samples = {
        code: sample(rows, seconds, bool(changes), most) for code, rows in groups.items() if code not in shown
    }
    wanted = defaultdict(list)
    for items in samples.values():
        for study, row in items:
            wanted[study].append(row)
    print(f"{sum(map(len, wanted.values()))} of {sum(map(len, groups.values()))} outdated rows to compute")
    pairs = {
        study: compute(study, checkout, rows, [*changes, *(few(study, rounds) if rounds else ())])
        for study, rows in wanted.items()
    }
    equal = {code for code in groups if code in shown or samples[code]}
    kept = set()
    for code, items in samples.items():
        for study, row in items:
            if differ := differences(row, *next(pairs[study])):
                equal.discard(code)
                kept.add(study)
                print(f"{study.name}: {' · '.join(row[name] for name in CELL[1:])}: {', '.join(differ)}")
    held = [(study, row) for code in equal for study, row in groups[code]]
    for study in {study for study, _ in held}:
        table = [
            row | {EQUAL: current_code(*code_of(row)[:3])}
            if code_of(row) in equal and not holds(row)
            else row
            for row in read_results(study)
        ]
        write_csv(pd.DataFrame(table, dtype=object).fillna(""), study / RESULTS)
    print(f"{len(held)} rows hold")
    for study in wanted.keys() - kept:
        shutil.rmtree(study / FOLDER)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--sample", dest="most", type=int, default=2)
    parser.add_argument("--rounds", type=int)
    main(**vars(parser.parse_intermixed_args()))
