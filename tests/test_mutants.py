"""Planted faults, by which the suite is measured (`tests/mutants/run.py`), follow the code they change."""

import csv
import os
import subprocess
from pathlib import Path

HOME = Path(__file__).parents[1]
MUTANTS = sorted((HOME / "tests" / "mutants").glob("*.patch"))


def test_every_mutant_can_still_be_planted() -> None:
    assert len(MUTANTS) > 50
    here = os.environ | {
        "GIT_CEILING_DIRECTORIES": str(HOME.parent)
    }  # not of a repository around this folder
    errors = {}
    for patch in MUTANTS:
        command = ["git", "apply", "--check", "--verbose", str(patch)]
        done = subprocess.run(command, cwd=HOME, env=here, capture_output=True, text=True, check=False)
        if done.returncode or "Checking patch" not in done.stderr or "Skipped" in done.stderr:
            errors[patch.stem] = done.stderr.strip()
    assert not errors, "these changed with the code: make each patch again, or replace it"


def test_the_matrix_says_which_test_catches_each_mutant() -> None:
    with (HOME / "tests" / "mutants" / "matrix.csv").open(newline="") as file:
        rows = {row["mutant"]: row for row in csv.DictReader(file)}
    assert sorted(rows) == [patch.stem for patch in MUTANTS]
    assert [name for name, row in rows.items() if not row["test"]] == []
    assert {row["mutant"]: row["plants"] for row in rows.values()} == {
        patch.stem: patch.read_text().splitlines()[0] for patch in MUTANTS
    }
