"""Plant every known fault in a copy of the project, and run the tests until one fails.

A mutant is a file NAME.patch in this folder: a line that says what it plants, a line that names the fix of a
real fault of its kind, and a diff. `matrix.csv` says which test catches each mutant, and `costs.csv` how
many CPU seconds each test file takes. CONTRIBUTING.md says when to run this.
"""

import argparse
import ast
import csv
import fnmatch
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
HOME = HERE.parents[1]
COSTS, MATRIX = HERE / "costs.csv", HERE / "matrix.csv"
COLUMNS = ("mutant", "plants", "file", "test", "seconds")
NEAREST, NONE = "not caught by the nearest files", "survived"  # in place of a file
COLLECTION = "collection"  # in place of a test: the file could not be imported
FAR = 3  # distance of files that have nothing to do with a mutant, as it seems
WALL = 3600  # seconds after which a run of pytest is killed


def table(path: Path) -> dict[str, dict[str, str]]:
    """The rows of a table by their first column; none if there is no such file."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {next(iter(row.values())): row for row in csv.DictReader(lines)}


def write(path: Path, rows: Iterable[dict[str, str]], columns: Sequence[str]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def costs() -> dict[str, float]:
    """CPU seconds by test file; a file that was never measured is assumed to take ten."""
    known = table(COSTS)
    files = [str(path.relative_to(HOME)) for path in sorted((HOME / "tests").rglob("test_*.py"))]
    return {file: float(known[file]["seconds"]) if file in known else 10.0 for file in files}


def distance(patch: Path, file: str) -> int:
    """How near a test file is to a mutant: 0 by its name, 1 by its imports, 2 by folder or words, else 3."""
    text, found = (HOME / file).read_text(), FAR
    for source in map(Path, re.findall(r"^\+\+\+ b/(.+)$", patch.read_text(), re.M)):
        parts = source.with_suffix("").parts[: -1 if source.stem == "__init__" else None]
        names = [parts[-1].strip("_")]
        inner = parts[parts[0] == "fedflow" : -1]
        body = ast.parse((HOME / source).read_text()).body if source.suffix == ".py" else []
        names += [node.name for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
        public = "|".join(name for name in names if not name.startswith("_"))
        reasons = (
            re.search(rf"/test_{names[0]}(_|\.)", file),
            re.search(rf"\b{'.'.join(parts)}\b", text),
            (inner and file.startswith(f"tests/{'/'.join(inner)}/")) or re.search(rf"\b({public})\b", text),
        )
        found = min([found, *(at for at, reason in enumerate(reasons) if reason)])
    return found


def pytest_in(copy: Path, files: Sequence[str], arguments: Sequence[str], limit: float = 0) -> dict:
    """What `clock` says of a run of the tests in ``files``, the CPU seconds of all of it, and its output."""
    said = copy / ".git" / "said.json"
    said.unlink(missing_ok=True)
    ours = {"PYTHONPATH": f"{copy}{os.pathsep}{HERE}", "MUTANTS_SAID": str(said), "MUTANTS_LIMIT": f"{limit}"}
    command = [sys.executable, "-m", "pytest", "-p", "clock", "-p", "no:cacheprovider", *arguments, *files]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(
        command,
        cwd=copy,
        env={"OMP_NUM_THREADS": "1", **os.environ, **ours},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=WALL)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    ended = {"seconds": {}, "failed": f"pytest::ended with {process.returncode}", "cut": False}
    return (json.loads(said.read_text()) if said.exists() else ended) | {"all": used, "output": output}


def caught(patch: Path, copy: Path, before: str, asked: argparse.Namespace) -> dict[str, str]:
    """The row of a mutant: the file that caught it ``before`` runs first, then near files, then the others.

    Of files equally near, the cheapest runs first.
    """
    for command in (["reset", "-q", "--hard"], ["clean", "-q", "-fdx"], ["apply", str(patch)]):
        subprocess.run(["git", "-C", str(copy), *command], check=True)
    cost, used = costs(), 0.0
    order = sorted((distance(patch, file), seconds, file) for file, seconds in cost.items())
    parts = [[file for at, _, file in order if at == far] for far in range(FAR + (not asked.nearest))]
    row = {"mutant": patch.stem, "plants": patch.read_text().splitlines()[0], "file": NEAREST, "test": ""}
    for files in filter(None, ([before] * (before in cost), *parts)):
        said = pytest_in(copy, files, ["-x", *asked.pytest], asked.limit)
        used += said["all"]
        if said["failed"]:
            row["file"], _, test = said["failed"].partition("::")
            row["test"] = test or COLLECTION
            break
        if said["cut"]:
            break
    else:
        row["file"] = NEAREST if asked.nearest else NONE
    return row | {"seconds": f"{used:.0f}"}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="*", help="mutants with these names, as a pattern of a shell")
    parser.add_argument("--missing", action="store_true", help="only mutants without a test in the table")
    parser.add_argument("--nearest", action="store_true", help="only the test files nearest to the mutant")
    parser.add_argument("--limit", type=float, default=0, help="CPU seconds of pytest; 0 = no limit")
    parser.add_argument("--matrix", type=Path, default=MATRIX, help="the table to write")
    parser.add_argument("--clean", action="store_true", help="run the tests of the matrix without any mutant")
    parser.add_argument("--measure", action="store_true", help="measure all test files again, for costs.csv")
    parser.add_argument("pytest", nargs="*", help="arguments of pytest, after --: -- -m 'not slow'")
    return parser.parse_args()


def main() -> None:
    asked = options()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background process ignores it
    patches = {path.stem: path for path in sorted(HERE.glob("*.patch"))}
    known, rows = ({n: row for n, row in table(f).items() if n in patches} for f in (MATRIX, asked.matrix))
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder) / "fedflow"  # of HEAD; its fedflow is what tests import
        subprocess.run(["git", "clone", "-q", "--no-hardlinks", str(HOME), str(copy)], check=True)
        if asked.measure:
            said = pytest_in(copy, [], asked.pytest)["seconds"]
            each = [{"file": file, "seconds": f"{said[file]:.1f}"} for file in sorted(said)]
            write(COSTS, each, ("file", "seconds"))
        elif asked.clean:
            named = [row for row in rows.values() if row["test"] not in ("", COLLECTION)]
            tests = {f"{row['file']}::{row['test']}" for row in named}
            print(pytest_in(copy, sorted(tests), asked.pytest)["output"])
        else:
            for name in fnmatch.filter(patches, asked.only):
                if not (asked.missing and rows.get(name, {}).get("test")):
                    rows[name] = caught(patches[name], copy, known.get(name, {}).get("file", ""), asked)
                    print("  ".join(rows[name].values()), flush=True)
                    write(asked.matrix, (rows[each] for each in sorted(rows)), COLUMNS)


if __name__ == "__main__":
    main()
