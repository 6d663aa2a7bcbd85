"""Computes a sample of the rows of results.csv again, after a change of code that should change no number.

``python studies/recompute.py`` takes all studies; names of studies after it, only these. A change of a module
makes the rows of all runs that import it outdated. Of all rows of the same methods, network and code, the
quickest `SAMPLE` of different settings are computed again and replace theirs, without those that took more
than ``--seconds N``. If all of their numbers are equal, the other rows hold again: the column ``equal_code``
gets the digest of the code of now. If one number differs, it is printed, and rows of this code stay outdated:
run the study again.
"""

import argparse
import shutil
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from fedflow.claims.results import CHANGES, EQUAL, ORIGIN, RUN, read_results
from fedflow.claims.sources import CLAIMS, RESULTS
from fedflow.config import PARAMS, load_params
from fedflow.errors import FedflowError
from fedflow.finished.tables import write_csv
from fedflow.stages.all_stages import run_experiment
from fedflow.stages.current import current_code, holds
from fedflow.stages.experiment import Experiment
from fedflow.stages.grid import Cell, to_do
from fedflow.stages.procedure import ProcedureRun, run_procedure
from fedflow.stages.report import record_verdicts

HERE = Path(__file__).parent
SAMPLE = 2
FOLDER = Path(".fedflow") / "recompute"
CODE = ("kind", "registered", "networks", "code")
NAMES = ("partition", "method", "seed", "variant")

Row = dict[str, str]


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
    """The earlier code of which a sample has shown that it gives the numbers of the code of now."""
    rows = [row for file in HERE.glob(f"*/{RESULTS}") for row in read_results(file.parent)]
    return {code_of(row) for row in rows if row.get(EQUAL) and holds(row)}


def sample(rows: list[tuple[Path, Row]], seconds: float) -> list[tuple[Path, Row]]:
    """The quickest rows of different settings, without those that other settings than params.yaml's made."""
    chosen: dict[tuple[Path, str, str], tuple[Path, Row]] = {}
    for study, row in sorted(rows, key=lambda item: float(item[1]["seconds"] or "inf")):
        if not row.get(CHANGES) and float(row["seconds"] or 0) <= seconds:
            chosen.setdefault((study, row["settings"], row["method"]), (study, row))
    return [*chosen.values()][:SAMPLE]


def recomputed(study: Path, rows: Iterable[Row]) -> list[Row]:
    """These rows of a study, computed by the code of now; the same call resumes."""
    root = study / FOLDER
    root.mkdir(parents=True, exist_ok=True)
    for file in filter(Path.exists, (study / PARAMS, study / CLAIMS)):
        shutil.copy(file, root)
    params = load_params(root / PARAMS)
    cells: dict[tuple[str, ...], Cell] = {}
    for row in rows:
        name, method, seed = row["partition"], row["method"], int(row["seed"])
        if row["kind"] == RUN:
            cells[name, method, row["seed"]] = Experiment(params, name, method, seed, root)
        else:
            cells[name, row["seed"]] = ProcedureRun(params, name, seed, root)
    for cell in to_do(params, root, [*cells.values()]):
        try:
            run_experiment(cell) if isinstance(cell, Experiment) else run_procedure(cell)
        except FedflowError as error:
            print(f"{study.name}: {cell.title}: {error}")
    record_verdicts(root)
    return read_results(root)


def key_of(row: Row) -> tuple[str, ...]:
    return tuple(row.get(name, "") for name in NAMES)


def differences(before: Row, now: Row) -> list[str]:
    """Columns of the earlier row that have other numbers now, to six digits, apart from the origin."""
    names = [name for name, text in before.items() if text and name not in {*ORIGIN, EQUAL, CHANGES}]
    return sorted(name for name in names if _rounded(before[name]) != _rounded(now.get(name, "")))


def _rounded(text: str) -> str:
    """A number to the digits of earlier rows; other text as it is."""
    try:
        return f"{float(text):.6g}"
    except ValueError:
        return text


def main(names: list[str], seconds: float = float("inf")) -> None:
    studies = [HERE / name for name in names] or sorted(file.parent for file in HERE.glob(f"*/{RESULTS}"))
    groups, shown = outdated(studies), equal_codes()
    samples = {code: sample(rows, seconds) for code, rows in groups.items() if code not in shown}
    wanted = defaultdict(list)
    for items in samples.values():
        for study, row in items:
            wanted[study].append(row)
    print(
        f"{sum(map(len, wanted.values()))} of {sum(map(len, groups.values()))} outdated rows to compute again"
    )
    made = {(study, key_of(row)): row for study, rows in wanted.items() for row in recomputed(study, rows)}
    changed: dict[tuple[Path, tuple[str, ...]], Row] = {}
    for code, rows in groups.items():
        equal = code in shown or bool(samples[code])
        for study, row in samples.get(code, ()):
            now = made.get((study, key_of(row)))
            differ = differences(row, now) if now else ["no result"]
            if now and not differ:
                changed[study, key_of(row)] = now
            else:
                equal = False
                print(f"{study.name}: {' · '.join(key_of(row))}: {', '.join(differ)}")
        for study, row in rows if equal else ():
            changed.setdefault((study, key_of(row)), row | {EQUAL: current_code(*code[:3])})
    for study in {study for study, _ in changed}:
        table = [changed.get((study, key_of(row)), row) for row in read_results(study)]
        write_csv(pd.DataFrame(table, dtype=object).fillna(""), study / RESULTS)
    for study in wanted:
        shutil.rmtree(study / FOLDER)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    main(**vars(parser.parse_args()))
